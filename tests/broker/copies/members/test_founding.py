"""A group begins only if all of its members are new; who comes later is a newcomer."""

from __future__ import annotations

from pathlib import Path

from kappamq.broker.copies.members.founding import first_vote, node_at_start
from kappamq.broker.copies.members.member_files import MemberFiles
from kappamq.config.copies import CopiesConfig
from kappamq.raft import Ballot, MemberId, Members, TermRecord, Terms
from kappamq.replication.greeting import MemberHello
from kappamq.replication.vote_file import Vote
from kappamq.store.files import Files
from kappamq.store.message_store import MessageStore
from tests.store.stores import config, make

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


def stored(root: Path, count: int) -> MessageStore:
    """A store with so many messages more, all of them dispatched."""
    store = make(config(root), "twin")
    store.open("boot", enter_up_to=0)
    for _ in range(count):
        store.append(("tea", 0, 0, 0, 1_700_000_000_000, bytes(8), 0, 0, b"x" * 100, b""), 1_700_000_000_000)
    store.write(1_700_000_000_000)
    return store


def test_a_term_record_that_the_log_has_lost_does_not_come_back_when_the_log_has_grown_past_it(tmp_path: Path) -> None:
    """It was on disk before the log was, or a crash came between a cut and its being taken out."""
    founders = Members(frozenset(MemberId(name, 1) for name in "abc"))
    files = MemberFiles(tmp_path, Files())
    vote = Vote(counter=9, ballot=Ballot(3, None), member=MemberId("a", 1), group_id="g")
    store = stored(tmp_path, 1)
    lost = TermRecord(store.log.end, 2, founders)
    files.save_terms(Terms(TermRecord(0, 0, founders), [TermRecord(0, 1, founders), lost]), "g")
    assert node_at_start(CONFIG, store, files, vote, 0.0).log.last_term == 1
    store.close()
    store = stored(tmp_path, 5)  # of term 1, from another leader
    assert store.log.end > lost.start
    assert node_at_start(CONFIG, store, files, vote, 0.0).log.last_term == 1
    store.close()
