"""Bugs planted in the broker and its store are found by checkers that know nothing of them.

A whole broker's history takes a while, so the search begins where `python -m kappamq.sim --brokers --mutants --seeds 2000` has found
each of them first, and goes on a little if histories have changed since.
"""

from __future__ import annotations

import pytest

from kappamq.sim.brokers import command
from kappamq.sim.brokers.mutants import MUTANTS, planted
from tests.state.test_locks import test_what_is_read_holds_for_a_lease_from_when_we_begin_to_serve as leases_are_kept

BEGIN_AT = {"wiped-votes": 30, "old-flush": 100, "cut-in-memory": 178}
HISTORIES_MAX = 30
# Locks are rarely held when another leader comes, and asked for by somebody else soon enough after that.
BY_SCRIPT = {"leases-forgotten"}


@pytest.mark.parametrize("name", sorted(MUTANTS.keys() - BY_SCRIPT))
def test_a_planted_bug_is_found(name: str) -> None:
    begin = BEGIN_AT.get(name, 0)
    found = next(command.failures(range(begin, begin + HISTORIES_MAX), name), None)
    assert found is not None, f"{command.what(name)}: not found in {HISTORIES_MAX} histories from seed {begin}"
    healthy = next(command.failures(range(found.seed, found.seed + 1)), None)
    assert healthy is None, "the bug, and not the history, is what was found"


def test_forgotten_leases_are_found_by_their_script() -> None:
    leases_are_kept()
    with planted(MUTANTS["leases-forgotten"]), pytest.raises(AssertionError):
        leases_are_kept()
