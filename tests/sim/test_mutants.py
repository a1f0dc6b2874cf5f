"""Planted bugs are found, in a few histories each, by checkers that know nothing of them.

Most are found in the first histories. Some take hundreds; for these the search begins where `make sim ARGS=--mutants` has found them, which
saves the suite the time, and goes on for a while if histories have changed since.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from kappamq.sim.mutants import MUTANTS, IgnoresGeneration
from kappamq.sim.running import failure, failures
from tests.dialogue import Script
from tests.raft import group

BEGIN_AT = {"changes-at-once": 130, "cut-leaves-tail": 70, "old-reports": 190}
HISTORIES_MAX = 120
# Needs a flush that takes longer than a cut and all that is written after it: more histories than a test run has time for.
BY_SCRIPT = {"old-flush"}


def test_a_flush_from_before_a_cut_is_found_by_its_script(monkeypatch: pytest.MonkeyPatch) -> None:
    def play() -> None:
        script = Script(Path(group.__file__).parent / "dialogues" / "reconciliation.txt")
        script.replay(lambda scenario: scenario.run_without_loop(group.Group()))

    play()
    monkeypatch.setattr(group, "Log", IgnoresGeneration)
    with pytest.raises(pytest.fail.Exception, match="- C: nothing"):
        play()


@pytest.mark.parametrize("name", sorted(MUTANTS.keys() - BY_SCRIPT))
def test_a_planted_bug_is_found(name: str) -> None:
    mutant = MUTANTS[name]
    begin = BEGIN_AT.get(name, 0)
    found = next(failures(range(begin, begin + HISTORIES_MAX), mutant.broker, mutant.cluster), None)
    assert found is not None, f"{mutant.what}: not found in {HISTORIES_MAX} histories from seed {begin}"
    assert failure(found.seed) is None, "the bug, and not the history, is what was found"
