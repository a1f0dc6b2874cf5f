"""Bugs planted in the broker and its store are found by checkers that know nothing of them.

A whole broker's history takes a while, so the search begins where `python -m kappamq.sim --brokers --mutants --seeds 2000` has found
each of them first, and goes on a little if histories have changed since.
"""

from __future__ import annotations

import pytest

from kappamq.sim.brokers import command
from kappamq.sim.brokers.mutants import MUTANTS

BEGIN_AT = {"wiped-votes": 30}
HISTORIES_MAX = 30


@pytest.mark.parametrize("name", sorted(MUTANTS))
def test_a_planted_bug_is_found(name: str) -> None:
    begin = BEGIN_AT.get(name, 0)
    found = next(command.failures(range(begin, begin + HISTORIES_MAX), name), None)
    assert found is not None, f"{command.what(name)}: not found in {HISTORIES_MAX} histories from seed {begin}"
    healthy = next(command.failures(range(found.seed, found.seed + 1)), None)
    assert healthy is None, "the bug, and not the history, is what was found"
