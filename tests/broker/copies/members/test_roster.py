"""The other members of a group: those of its last list, where they were said to be last."""

from __future__ import annotations

from kappamq.broker.copies.members.roster import Roster
from kappamq.config.copies import CopiesConfig
from kappamq.raft import Ballot, Log, MemberId, Members, Node, TermRecord, Terms
from kappamq.replication.greeting import MemberHello
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


def said(member: str, place: str, group_id: str = "g:1", term: int = 0) -> MemberHello:
    return MemberHello(
        cluster="c", name="n", group="g", members="", member=member, address="h:9", segment_bytes=1, delay_levels="1s",
        term=term, end=1, group_id=group_id, place=place,
    )  # fmt: skip


def test_a_newcomer_believes_those_of_its_group_that_come() -> None:
    config = CopiesConfig(group="g", members={"n0": "a:1", "n1": "b:1", "n3": "d:1"}, member="n3")
    node: list[Node] = []
    roster = Roster(config, MemberPlaces(lambda *_: None), lambda: node[0] if node else None)
    assert not roster.meets(said("n2", "c:1")), "there is no group yet"
    me = MemberId("n3", 7)
    node.append(Node(me, Ballot(0, None), Log(Terms(TermRecord(0, 0, Members())), 0, 0), now=0, dice=lambda: 0.5))
    assert not roster.meets(said("n2", "nowhere"))
    assert not roster.meets(said("n2", "c:1", group_id=""))
    assert roster.meets(said("n2", "c:1"))
    assert roster.others() == {"n0": "a:1", "n1": "b:1", "n2": "c:1"}
    for number in range(100):
        roster.meets(said(f"x{number}", "c:2"))
    assert len(roster.others()) <= 20, "what strangers say is bounded"
    listed = Members(frozenset({MemberId("n0", 1), MemberId("n1", 1)}), frozenset({me}))
    node[0] = Node(me, Ballot(0, None), Log(Terms(TermRecord(0, 0, listed)), 0, 0), now=0, dice=lambda: 0.5)
    assert roster.others() == {"n0": "a:1", "n1": "b:1"}
    assert not roster.meets(said("n2", "c:1"))


def test_who_was_away_believes_those_that_know_of_later_terms() -> None:
    """The group has replaced a member meanwhile, and the new one leads."""
    me, others = MemberId("n0", 1), (MemberId("n1", 1), MemberId("n2", 1))
    terms = Terms(TermRecord(0, 0, Members(frozenset({me, *others}))))
    terms.append(TermRecord(0, 1, terms.base.members))
    node = Node(me, Ballot(1, None), Log(terms, 10, 0), now=0, dice=lambda: 0.5)
    roster = Roster(CopiesConfig(group="g", members=FOUNDERS, member="n0"), MemberPlaces(lambda *_: None), lambda: node)
    assert not roster.meets(said("n3", "d:1", term=1)), "our list is as new as that"
    assert roster.meets(said("n3", "d:1", term=2))
    assert roster.others() == {"n1": "b:1", "n2": "c:1", "n3": "d:1"}
    roster.has_left("n3")
    assert "n3" not in roster.others(), "nobody looks for a stranger that has gone"
    assert roster.meets(said("n3", "d:1", term=2))
    terms.append(TermRecord(10, 2, terms.base.members))
    node.log.appended(20)
    assert roster.others() == {"n1": "b:1", "n2": "c:1"}, "the log has come to that term, and does not list it"
    assert not roster.meets(said("n3", "d:1", term=2))
