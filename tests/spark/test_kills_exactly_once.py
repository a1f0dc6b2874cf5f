"""Two kills of a query between topics, as `python -m tests.spark.kills_exactly_once` makes twenty of: each row is there once."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spark import kills_exactly_once
from tests.spark.kills_exactly_once import Counts, Found

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_a_killed_query_writes_each_row_once(spark: SparkSession, tmp_path: Path) -> None:
    told: list[str] = []
    at_last = functools.partial(kills_exactly_once.finish, spark)
    counts = kills_exactly_once.run(2, 3, tmp_path, told.append, at_last)
    assert counts.right, f"{counts}\n{told}"
    assert len(counts.kills) == 2


def test_a_kill_counts_if_its_own_driver_had_begun_a_batch() -> None:
    before = Found(staged=2, own=2, begun_ms=5, decided=3, committed=3)
    assert before.inside(Found())
    assert not before.inside(before), "the driver did not come as far"
    assert Found(staged=1, own=1, begun_ms=6, decided=3, committed=3).inside(before)
    assert not Found(staged=1, begun_ms=6, decided=3, committed=3).inside(before), "the driver before has left it"
    assert not Found(staged=0, begun_ms=6, decided=3, committed=3).inside(before)
    assert Found(decided=4, committed=3).inside(before)
    assert not Found(decided=4, committed=4).inside(before)


def test_counts_are_right_only_if_they_agree() -> None:
    assert Counts(5, 5, 5, 0, ()).right
    for wrong in ((5, 4, 4, 0), (5, 6, 5, 0), (5, 5, 5, 1)):
        assert not Counts(*wrong, ()).right
