"""A group begins only if all of its members are new; who comes later is a newcomer."""

from __future__ import annotations

from kappamq.broker.copies.members.founding import first_vote
from kappamq.config.copies import CopiesConfig
from kappamq.replication.greeting import MemberHello

CONFIG = CopiesConfig(group="g", members={"a": "h:1", "b": "h:2", "c": "h:3"}, member="a")


def said(member: str, term: int = 0, end: int = 0, group_id: str = "") -> MemberHello:
    return MemberHello(
        cluster="c", name="n", group="g", members="a,b,c", member=member, address="h:9", segment_bytes=1, delay_levels="1s",
        term=term, end=end, group_id=group_id,
    )  # fmt: skip


def test_nothing_is_promised_before_all_are_known_to_be_new() -> None:
    assert first_vote(CONFIG, [None, None]) is None
    assert first_vote(CONFIG, [said("b"), None]) is None


def test_the_members_of_a_new_group_make_the_same_one() -> None:
    vote = first_vote(CONFIG, [said("b"), said("c", group_id="g:a,b,c")])
    assert vote is not None
    assert (vote.member.name, vote.member.incarnation, vote.group_id, vote.ballot.term) == ("a", 1, "g:a,b,c", 0)


def test_one_that_comes_to_a_group_that_exists_is_somebody_else() -> None:
    for old in (said("b", term=3, group_id="theirs"), said("b", end=10, group_id="theirs")):
        vote = first_vote(CONFIG, [old, None])
        assert vote is not None
        assert vote.member.incarnation > 1
        assert vote.group_id == "theirs"
