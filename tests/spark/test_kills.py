"""Two kills of a streaming query, as `python -m tests.spark.kills` makes twenty of: nothing is lost, nothing is there twice."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spark import kills

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_a_killed_stream_reads_each_message_once(spark: SparkSession, tmp_path: Path) -> None:
    told: list[str] = []
    counts = kills.run(2, 5, tmp_path, told.append, functools.partial(kills.finish, spark))
    assert counts.right, f"{counts}\n{told}"
    assert counts.rounds == 2


def test_an_open_batch_is_seen_in_the_checkpoint(tmp_path: Path) -> None:
    assert not kills.in_batch(tmp_path)
    for kind, numbers in (("offsets", (0, 1)), ("commits", (0,))):
        (tmp_path / "checkpoint" / kind).mkdir(parents=True)
        for number in numbers:
            (tmp_path / "checkpoint" / kind / str(number)).touch()
    (tmp_path / "checkpoint" / "offsets" / ".2.tmp").touch()
    assert kills.in_batch(tmp_path)
    (tmp_path / "checkpoint" / "commits" / "1").touch()
    assert not kills.in_batch(tmp_path)


def test_counts_are_right_only_if_they_agree() -> None:
    assert kills.Counts(5, 5, 5, 2, 1, 0).right
    for wrong in ((5, 4, 4, 0), (5, 6, 5, 0), (5, 5, 5, 1)):
        produced, consumed, distinct, lag = wrong
        assert not kills.Counts(produced, consumed, distinct, 2, 1, lag).right
