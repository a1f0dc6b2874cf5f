"""Bugs planted in the broker and its store are found by checkers that know nothing of them.

Here only those that every third history finds, or more of them: that does not depend on which histories these are. The rare ones need
hundreds of histories, and which one finds them changes with every change of the broker; `make sim ARGS='--brokers --mutants' SEEDS=2000`
looks for all of them.
"""

from __future__ import annotations

import pytest

from kappamq.sim.brokers import command
from kappamq.sim.brokers.mutants import MUTANTS, planted
from tests.state.test_locks import test_what_is_read_holds_for_a_lease_from_when_we_begin_to_serve as leases_are_kept

# In so many of 30 histories, from seed 1000: cut-in-memory 1, deletes-ahead 4, old-flush none, wiped-votes 5.
RARE = {"cut-in-memory", "deletes-ahead", "old-flush", "wiped-votes"}
# The others in 9 of them or more, or 4 (terms-not-named).
# Histories have their own time, so their number bounds the CPU time: a third of a second each.
HISTORIES_MAX = 100
# Locks are rarely held when another leader comes, and asked for by somebody else soon enough after that.
BY_SCRIPT = {"leases-forgotten"}


@pytest.mark.parametrize("name", sorted(MUTANTS.keys() - BY_SCRIPT - RARE))
def test_a_planted_bug_is_found(name: str) -> None:
    found = next(command.failures(range(HISTORIES_MAX), name), None)
    assert found is not None, f"{command.what(name)}: not found in {HISTORIES_MAX} histories"
    healthy = next(command.failures(range(found.seed, found.seed + 1)), None)
    assert healthy is None, "the bug, and not the history, is what was found"


@pytest.mark.parametrize("name", sorted(RARE))
def test_a_rare_bug_can_be_planted(name: str) -> None:
    """What it replaces is still there, is replaced, and comes back."""
    places = MUTANTS[name].places
    before = [getattr(owner, attribute) for owner, attribute, _ in places]
    with planted(MUTANTS[name]):
        assert [getattr(owner, attribute) for owner, attribute, _ in places] == [bug for *_, bug in places]
    assert [getattr(owner, attribute) for owner, attribute, _ in places] == before


def test_forgotten_leases_are_found_by_their_script() -> None:
    leases_are_kept()
    with planted(MUTANTS["leases-forgotten"]), pytest.raises(AssertionError):
        leases_are_kept()
