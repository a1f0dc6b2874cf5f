"""A few rounds in every test run; `python -m benchmarks failover --rounds 100` and `make chaos ROUNDS=100` are the proof."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from benchmarks.servers import nameserver
from tests.chaos import failover
from tests.chaos.backlog import Backlog
from tests.chaos.failover import quantile


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("backlog", [None, Backlog(80, 500, 2000)], ids=["empty", "full"])
def test_a_killed_leader_is_replaced_and_nothing_is_lost(tmp_path: Path, backlog: Backlog | None) -> None:
    with nameserver(tmp_path / "names") as names:
        summary = asyncio.run(failover.run(tmp_path, names, 1, 4711, life_s=(0.5, 0.5), backlog=backlog))
    assert summary.wrong == []
    assert 1 <= len(summary.rounds) <= 2
    assert all(one.gap_s > 0 and one.elected_s > 0 for one in summary.rounds)
    assert summary.acked > 0
    assert summary.compared_bytes > 0


def test_quantiles() -> None:
    assert [quantile([3.0, 1.0, 2.0], part) for part in (0.0, 0.5, 0.95)] == [1.0, 2.0, 3.0]
    assert quantile([7.0], 0.95) == 7.0
