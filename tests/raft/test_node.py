"""Nodes that speak with each other, as dialogues; each trap of other implementations that concerns the core has one."""

from __future__ import annotations

import pytest

from kappamq.raft import Ballot, Log, MemberId, Members, Node, TermRecord, Terms
from kappamq.raft.messages import Beat, Diverged, TimeoutNow
from tests.dialogue import Script, scripts
from tests.raft.group import Group

A, B, C = (MemberId(name, 1) for name in "ABC")


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


def test_who_does_not_lead_our_term_is_known_before_it_is_believed() -> None:
    """And whoever believes it nevertheless stops: a term has one leader."""
    everybody = Members(frozenset({A, B, C}))
    terms = Terms(TermRecord(0, 0, everybody))
    node = Node(A, Ballot(3, None), Log(terms, 30, 20), now=0, dice=lambda: 0.5)
    beat = Beat(B, A, 3, 0, 0, 0)
    assert node.contradiction(beat) is None, "nobody is known to lead"
    node.step(beat, 1)
    assert node.contradiction(beat) is None
    for wrong in (beat._replace(source=C), TimeoutNow(C, A, 3), Diverged(C, A, 3, 0, 30, 0, 25)):
        assert node.contradiction(wrong) == "B leads term 3"
        assert node.contradiction(wrong._replace(term=4)) is None, "the next term may be another one's"
        assert node.contradiction(wrong._replace(term=2)) is None, "it is dropped"
    assert node.contradiction(beat._replace(source=C, target=B)) is None, "likewise"
    with pytest.raises(AssertionError, match="both lead in term 3"):
        node.step(beat._replace(source=C), 2)


def test_what_a_leader_cannot_say_is_known_before_it_is_believed() -> None:
    """And whoever believes it nevertheless stops: nobody cuts below what is confirmed."""
    everybody = Members(frozenset({A, B}))
    terms = Terms(TermRecord(0, 0, everybody), [TermRecord(0, 3, everybody)])
    node = Node(A, Ballot(3, None), Log(terms, 30, 20), now=0, dice=lambda: 0.5)
    said = Diverged(B, A, 4, 3, 30, 3, 20)
    assert node.contradiction(said) is None
    wrong = said._replace(point_end=19)
    assert node.contradiction(wrong) == "our logs part at 19, and ours is confirmed up to 20"
    assert node.contradiction(wrong._replace(end=29)) is None, "it answers an earlier position, and is dropped"
    assert node.contradiction(wrong._replace(term=2)) is None, "likewise"
    assert node.contradiction(TimeoutNow(B, A, 4)) is None
    with pytest.raises(AssertionError, match="refusing to cut"):
        node.step(wrong, 1)
