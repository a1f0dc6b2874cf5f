"""Planted bugs are found, in a few histories each, by checkers that know nothing of them.

Most are found in the first histories. Some take hundreds; for these the search begins where `make sim ARGS=--mutants` has found them, which
saves the suite the time, and goes on for a while if histories have changed since.
"""

from __future__ import annotations

import pytest

from kappamq.sim.mutants import MUTANTS
from kappamq.sim.running import failure, failures

BEGIN_AT: dict[str, int] = {}
HISTORIES_MAX = 120


@pytest.mark.parametrize("name", sorted(MUTANTS))
def test_a_planted_bug_is_found(name: str) -> None:
    mutant = MUTANTS[name]
    begin = BEGIN_AT.get(name, 0)
    found = next(failures(range(begin, begin + HISTORIES_MAX), mutant.broker, mutant.cluster), None)
    assert found is not None, f"{mutant.what}: not found in {HISTORIES_MAX} histories from seed {begin}"
    assert failure(found.seed) is None, "the bug, and not the history, is what was found"
