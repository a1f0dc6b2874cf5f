"""A few deaths in every test run; `python -m benchmarks crash --rounds 1000` is the proof."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash import kill

ROUNDS = 2
SEED = 4711


@pytest.mark.slow
@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_kill_9_loses_nothing(tmp_path: Path, flush: str) -> None:
    summary = kill.run(tmp_path, ROUNDS, SEED, flush=flush)
    assert summary.wrong == []
    assert summary.rounds == ROUNDS
    assert summary.acked > 0
    assert summary.resets + summary.remade + summary.retries > 0
