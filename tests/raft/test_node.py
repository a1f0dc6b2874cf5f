"""Nodes that speak with each other, as dialogues; each trap of other implementations that concerns the core has one."""

from __future__ import annotations

import pytest

from kappamq.raft import Ballot, Log, MemberId, Members, Node, TermRecord, Terms
from tests.dialogue import Script, scripts
from tests.raft.group import Group

A = MemberId("A", 1)


@scripts(__file__, "elections", "reconciliation", "confirming", "membership", "transfer")
def test_nodes(script: Script) -> None:
    script.replay(lambda scenario: scenario.run_without_loop(Group()))


def test_a_ballot_that_is_older_than_the_log_is_refused() -> None:
    terms = Terms(TermRecord(0, 0, Members(frozenset({A}))), [TermRecord(0, 3, Members(frozenset({A})))])
    with pytest.raises(ValueError, match="bytes of term 3, but the ballot says 2"):
        Node(A, Ballot(2, None), Log(terms, 10, 0), now=0, dice=lambda: 0.5)


def test_time_goes_on() -> None:
    node = Node(A, Ballot(0, None), Log(Terms(TermRecord(0, 0, Members())), 0, 0), now=100, dice=lambda: 0.5)
    with pytest.raises(AssertionError, match="liveness time goes back"):
        node.tick(99)
