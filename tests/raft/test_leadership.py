"""What a leader does alone; what it does with others is in the dialogues of test_node.py."""

from __future__ import annotations

import itertools

import pytest

from kappamq.raft import (
    AppendRecord,
    Confirmed,
    Effect,
    HoldAppends,
    LeaderReady,
    Log,
    MemberId,
    Members,
    RaftSettings,
    Replicate,
    Send,
    TermRecord,
    Terms,
)
from kappamq.raft.leadership import Leadership, Refused
from kappamq.raft.messages import Join, Position, Report, TimeoutNow

A, B, C = (MemberId(name, 1) for name in "ABC")


class Leader:
    def __init__(self, members: Members, settings: RaftSettings | None = None) -> None:
        self.effects: list[Effect] = []
        self.log = Log(Terms(TermRecord(0, 0, members)), 100, 0)
        self.it = Leadership(A, 5, self.log, settings or RaftSettings(), self.effects.append, now=0)

    def record(self) -> None:
        ordered = next(effect for effect in self.effects if isinstance(effect, AppendRecord))
        self.effects.clear()
        start = self.log.end
        self.log.record_appended(TermRecord(start, 5, ordered.members), start + 10)
        self.it.record_appended(start, now=0)

    def said(self, kind: type[Effect]) -> list[Effect]:
        return [effect for effect in self.effects if isinstance(effect, kind)]


def test_earlier_terms_are_confirmed_with_the_first_record_of_our_own_only() -> None:
    leader = Leader(Members(frozenset({A, B, C})))
    leader.it.on_position(Position(B, A, 5, 0, 100, 100))
    assert not leader.said(Confirmed), "two of three have 100 bytes on disk, of an earlier term"
    leader.record()
    leader.it.sent(B, 1, 110)
    leader.it.on_report(Report(B, A, 5, 1, 110, 110))
    assert not leader.said(Confirmed), "B alone has the record on disk"
    assert leader.log.was_flushed(110, 0)
    leader.it.count()
    assert leader.effects[-2:] == [Confirmed(110), LeaderReady(5)]


def test_strangers_are_not_heard() -> None:
    leader = Leader(Members(frozenset({A, B, C})))
    leader.record()
    stranger = MemberId("X", 1)
    before = list(leader.effects)
    leader.it.on_position(Position(stranger, A, 5, 0, 100, 100))
    leader.it.on_report(Report(stranger, A, 5, 1, 110, 110))
    leader.it.sent(stranger, 1, 110)
    leader.it.disconnected(stranger)
    leader.it.on_join(Join(stranger, A, 0))
    assert leader.effects == before


def test_nothing_changes_before_the_leader_is_ready() -> None:
    leader = Leader(Members(frozenset({A, B, C})))
    for wish in (
        lambda: leader.it.add(MemberId("D", 1)),
        lambda: leader.it.remove(B, 0),
        lambda: leader.it.transfer(B, 0),
    ):
        with pytest.raises(Refused, match="just been elected"):
            wish()
    leader.it.on_join(Join(MemberId("C", 2), A, 0))
    assert len(leader.said(AppendRecord)) == 1, "that of the term"


def test_an_earlier_incarnation_does_not_come_back() -> None:
    again = MemberId("C", 3)
    leader = Leader(Members(frozenset({A}), frozenset({again})))
    leader.record()
    assert leader.log.was_flushed(110, 0)
    leader.it.count()
    assert leader.it.ready
    leader.it.on_join(Join(MemberId("C", 2), A, 0))
    leader.it.on_join(Join(again, A, 0))
    assert not leader.said(AppendRecord)
    leader.it.on_join(Join(MemberId("C", 4), A, 0))
    assert leader.said(AppendRecord) == [AppendRecord(5, Members(frozenset({A}), frozenset({MemberId("C", 4)})))]


def test_who_is_not_fit_to_lead_makes_way_for_whoever_has_most_and_does_not_try_all_the_time() -> None:
    leader = Leader(Members(frozenset({A, B, C})))
    leader.record()
    leader.it.make_way(0)
    assert not leader.it.transferring, "nothing of its term is confirmed yet"
    for other, end in ((B, 110), (C, 100)):
        leader.it.on_position(Position(other, A, 5, 5 if end == 110 else 0, end, end))
    assert leader.log.was_flushed(110, 0)
    leader.it.count()
    assert leader.it.ready
    leader.effects.clear()
    leader.it.make_way(0)
    assert leader.effects == [HoldAppends(True), Send(TimeoutNow(A, B, 5))]
    leader.it.tick(1000)
    assert not leader.it.transferring, "B did not take it"
    leader.it.make_way(1001)
    assert not leader.it.transferring, "senders have a while without being held back"
    for other in (B, C):
        leader.it.heard(other, 5000)
    leader.it.make_way(5000)
    assert leader.it.transferring


def test_who_has_ignored_it_is_asked_after_the_others_and_more_and_more_seldom() -> None:
    """Every time senders are held back for a second, so that the group may be as well off with a leader that is not fit."""
    leader = Leader(Members(frozenset({A, B, C})))
    leader.record()
    for other in (B, C):
        leader.it.on_position(Position(other, A, 5, 5, 110, 110))
    assert leader.log.was_flushed(110, 0)
    leader.it.count()
    leader.effects.clear()
    asked: list[tuple[int, str]] = []
    for now in range(0, 600_000, 100):
        for other in (B, C):
            leader.it.heard(other, now)
        leader.it.tick(now)
        leader.it.make_way(now)
        said = [effect.message for effect in leader.effects if isinstance(effect, Send)]
        asked += [(now // 1000, wish.target.name) for wish in said if isinstance(wish, TimeoutNow)]
        leader.effects.clear()
    seconds = [when for when, _name in asked]
    assert [name for _when, name in asked[:4]] == ["B", "C", "B", "C"]
    assert seconds[:5] == [0, 5, 10, 20, 30]
    assert len(asked) < 20
    assert max(later - sooner for sooner, later in itertools.pairwise(seconds)) == 80


def test_nobody_makes_way_for_those_who_do_not_answer() -> None:
    leader = Leader(Members(frozenset({A, B, C})))
    leader.record()
    leader.it.on_position(Position(B, A, 5, 5, 110, 110))
    assert leader.log.was_flushed(110, 0)
    leader.it.count()
    leader.it.make_way(5000)
    assert not leader.it.transferring


def test_a_position_that_is_answered_already_begins_no_other_stream() -> None:
    """It was repeated on its way, or told again with the next beat while the answer was under way."""
    leader = Leader(Members(frozenset({A, B, C})))
    leader.record()
    leader.it.on_position(Position(B, A, 5, 5, 110, 110))
    assert leader.it.peers[B].stream == 1
    leader.effects.clear()
    for _ in range(3):
        leader.it.on_position(Position(B, A, 5, 5, 110, 110))
    assert (leader.it.peers[B].stream, leader.effects) == (1, [])
    leader.it.on_position(Position(B, A, 5, 5, 110, 110, stream=1))
    assert leader.it.peers[B].stream == 2, "it has heard of the first one, and has not got it"
    leader.it.disconnected(B)
    leader.it.on_position(Position(B, A, 5, 5, 110, 110))
    assert leader.it.peers[B].stream == 3, "nothing is under way any more"


def test_a_member_that_was_away_knows_larger_streams() -> None:
    leader = Leader(Members(frozenset({A, B, C})))
    leader.record()
    leader.it.on_position(Position(B, A, 5, 5, 110, 110, stream=7))
    assert leader.it.peers[B].stream == 8


def test_what_is_to_be_sent_names_all_term_records_up_to_the_end_of_the_log() -> None:
    """How long the first group of records is only the driver knows: it may end far behind what is wanted, where other terms began."""
    leader = Leader(Members(frozenset({A, B, C})), RaftSettings(append_bytes_max=50))
    leader.record()
    leader.it.on_position(Position(B, A, 5, 0, 10, 10))
    [order] = leader.said(Replicate)
    assert isinstance(order, Replicate)
    assert (order.append.start, order.wanted, order.append.end) == (10, 60, 110)
    assert [(record.start, record.term) for record in order.append.records] == [(100, 5)]
    leader.effects.clear()
    leader.it.sent(B, 1, 90)
    leader.it.on_report(Report(B, A, 5, 1, 90, 90))
    [order] = leader.said(Replicate)
    assert isinstance(order, Replicate)
    assert (order.append.start, order.wanted, order.append.end) == (90, 110, 110)


def test_a_message_names_a_bounded_number_of_term_records() -> None:
    """A group that elected all night and was sent nothing has a log of nothing else."""
    members = Members(frozenset({A, B, C}))
    leader = Leader(members)
    for _ in range(300):
        start = leader.log.end
        leader.log.record_appended(TermRecord(start, 4, members), start + 10)
    leader.record()
    leader.it.on_position(Position(B, A, 5, 0, 100, 100))
    sent = 100
    while sent < leader.log.end:
        order = leader.said(Replicate)[-1]
        assert isinstance(order, Replicate)
        append = order.append.ending(order.wanted)
        assert (append.start, len(append.records) <= 64) == (sent, True)
        sent = append.end
        leader.it.sent(B, 1, sent)
    assert len(leader.said(Replicate)) == 5
