"""A few flips in every test run; `python -m benchmarks flips --count 500` is the proof."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.crash import flips
from tests.store.stores import kernels

COUNT = 12
SEED = 4711


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kernel", kernels())
def test_flips_are_noticed_repaired_and_cost_only_what_they_hit(tmp_path: Path, kernel: str) -> None:
    summary = flips.run(tmp_path / "flips", COUNT, SEED, kernel)
    assert summary.wrong == []
    assert summary.rounds == COUNT
    assert sum(count for (_kind, outcome), count in summary.outcomes.items() if outcome == "reported") >= COUNT // 4


def test_the_same_seed_makes_the_same_flips() -> None:
    places = [flips.Stretch(kind, Path(kind), 10, 1000, True) for kind in "abc"]
    first, second = ([flips.choose(dice, places) for _ in range(50)] for dice in (random.Random(3), random.Random(3)))
    assert first == second
    assert {flip.stretch.kind for flip in first} == set("abc")


def test_the_table_counts_by_kind() -> None:
    summary = flips.Summary()
    summary.outcomes.update({("log: record", "reported"): 3, ("padding", "not noticed"): 2})
    assert summary.table().splitlines()[2:] == [
        "| log: record | 3 | 3 | 0 | 0 | 0 |",
        "| padding | 2 | 0 | 0 | 2 | 0 |",
    ]
