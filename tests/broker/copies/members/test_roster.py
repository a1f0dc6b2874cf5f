"""The other members of a group: those of its last list, where they were said to be last."""

from __future__ import annotations

from kappamq.broker.copies.members.roster import Roster
from kappamq.config.copies import CopiesConfig
from kappamq.raft import Ballot, Log, MemberId, Members, Node, TermRecord, Terms
from kappamq.state.member_places import MemberPlaces

FOUNDERS = {"n0": "a:1", "n1": "b:1", "n2": "c:1"}


def test_before_there_is_a_group_the_founders_are_the_members() -> None:
    roster = Roster(CopiesConfig(group="g", members=FOUNDERS, member="n0"), MemberPlaces(lambda *_: None), lambda: None)
    assert roster.others() == {"n1": "b:1", "n2": "c:1"}
    assert roster.knows("n1")
    assert not roster.knows("n0")
    assert not roster.knows("n3")


def test_later_the_log_says_who_they_are_and_operators_where() -> None:
    listed = Members(
        frozenset({MemberId("n0", 1), MemberId("n1", 1)}), frozenset({MemberId("n3", 0), MemberId("n4", 0)})
    )
    node = Node(MemberId("n0", 1), Ballot(0, None), Log(Terms(TermRecord(0, 0, listed)), 0, 0), now=0, dice=lambda: 0.5)
    told = MemberPlaces(lambda *_: None)
    told.apply("member-place", {"member": "n3", "place": "d:1"})
    told.apply("member-place", {"member": "n1", "place": "e:1"})
    roster = Roster(CopiesConfig(group="g", members=FOUNDERS, member="n0"), told, lambda: node)
    assert roster.others() == {"n1": "e:1", "n3": "d:1"}, "where n4 is nobody has said yet"
    assert not roster.knows("n2"), "it was taken out"
    assert roster.place_of("n2") == "c:1"
    assert [roster.elsewhere(name) for name in ("n1", "n2", "n3")] == ["b:1", None, None]
    told.apply("member-place", {"member": "n0", "place": "f:1"})
    assert roster.place_of("n0") == "a:1", "where we are ourselves, nobody knows better"
