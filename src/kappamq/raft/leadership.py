"""State that exists only while a node leads: peers and their streams, the confirmed offset, membership changes, leadership transfer.

- **Confirmed** is the largest offset that a majority of the voters, including our own disk, has on disk, if it lies behind the
  beginning of our own term record. Bytes of earlier terms are confirmed along with it, never by counting: another log could still win.
- A report counts only for the stream in which it was made, and only up to what was sent in that stream.
- Members change one at a time, by a term record, and only once our own term record and the previous change are confirmed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kappamq.raft.effects import AppendRecord, Confirmed, Effect, HoldAppends, LeaderReady, Replicate, Seed, Send
from kappamq.raft.log import Log
from kappamq.raft.members import MemberId, Members
from kappamq.raft.messages import Append, Beat, Diverged, Join, Position, Report, TimeoutNow
from kappamq.raft.progress import Progress
from kappamq.raft.quorum import held_by_majority, is_majority
from kappamq.raft.settings import RaftSettings

_MAKE_WAY_AGAIN: Final = 5  # in election timeouts: appends are held during a transfer, so not all the time
_TERM_RECORDS_MAX: Final = (
    64  # in one message: its head may only be so long, and an election costs no more than a record
)
_DOUBLED_MAX: Final = 4  # how often the pause is doubled if every member has ignored us: to a minute and a half


class Refused(Exception):
    """An operator's request cannot be carried out now; the text says why, and what would help."""


class Leadership:
    """One term of one leader. Created when the leader is elected, dropped when it steps down."""

    def __init__(
        self, me: MemberId, term: int, log: Log, settings: RaftSettings, emit: Callable[[Effect], None], now: float
    ) -> None:
        self.me, self.term = me, term
        self.ready = False
        self.peers: dict[MemberId, Progress] = {}
        self._log, self._settings, self._emit = log, settings, emit
        self._begin: int | None = None  # start of our term record, once it is appended
        self._changing = True  # a term record was ordered and is not appended yet
        self._next_beat = now
        self._successor: MemberId | None = None
        self._transfer_until = 0.0
        self._make_way_at = 0.0
        self._ignored: dict[MemberId, int] = {}  # how often a member was asked to take over and did not
        self._meet_members(now)
        emit(AppendRecord(term, self.members))

    @property
    def members(self) -> Members:
        return self._log.terms.last.members

    @property
    def transferring(self) -> bool:
        return self._successor is not None

    # Time

    def tick(self, now: float) -> bool:
        """Return whether a majority still answers. If not, the caller ends this leadership."""
        answering = {voter for voter in self.members.voters if self._answers(voter, now)}
        if not is_majority(answering, self.members.voters):
            return False
        if now >= self._next_beat:
            self._next_beat = now + self._settings.beat_ms
            for peer in self.peers.values():
                self._beat(peer)
        if self._successor is not None and now >= self._transfer_until:
            self._end_transfer()
        self._promote_learners(now)
        return True

    def was_late(self, gap: float) -> None:
        """This process paused for `gap` milliseconds: silence during that time says nothing about the peers."""
        for peer in self.peers.values():
            peer.heard += gap
        self._transfer_until += gap

    def heard(self, member: MemberId, now: float) -> None:
        if (peer := self.peers.get(member)) is not None:
            peer.heard = now

    def _answers(self, member: MemberId, now: float) -> bool:
        peer = self.peers.get(member)
        return member == self.me or (peer is not None and now - peer.heard <= self._settings.election_max_ms)

    def _beat(self, peer: Progress) -> None:
        stream = peer.stream if peer.streaming else 0
        self._emit(Send(Beat(self.me, peer.member, self.term, stream, peer.sent, self._log.confirmed)))

    # Our own log

    def record_appended(self, start: int, now: float) -> None:
        if self._begin is None:
            self._begin = start
        self._changing = False
        self._meet_members(now)
        self.grown()

    def grown(self) -> None:
        """Send what was added to the log."""
        for peer in self.peers.values():
            self._replicate(peer)

    def count(self) -> None:
        """Confirm what a majority has on disk."""
        held = {member: peer.flushed for member, peer in self.peers.items()}
        held[self.me] = self._log.flushed
        self._confirm(held_by_majority(self.members.voters, held))

    def _confirm(self, offset: int) -> None:
        if offset <= self._log.confirmed or not self._is_of_our_term(offset):
            return
        # A majority may have on disk what we have only written; our log contains all of it.
        self._log.confirm(offset)
        self._emit(Confirmed(offset))
        if not self.ready:
            self.ready = True
            self._emit(LeaderReady(self.term))

    def _is_of_our_term(self, offset: int) -> bool:
        # Counted offsets are ends of whole records: an offset behind the record's beginning is at or behind its end.
        return self._begin is not None and offset > self._begin

    # Streams

    def on_position(self, position: Position) -> None:
        peer = self.peers.get(position.source)
        if peer is None or peer.is_answered(position.stream):
            return
        terms = self._log.terms
        point_term, point_end = terms.end_of(position.last_term, self._log.end)
        if position.end < terms.base.start or point_term > position.last_term:
            peer.end_stream()
            self._emit(Seed(position.source))
        elif point_term == position.last_term and position.end <= point_end:
            peer.begin_stream(position.end, position.flushed, position.stream)
            self._emit(Send(self._append(peer, peer.sent)))
            self._heard_of_disk(peer)
        else:
            self._emit(
                Send(
                    Diverged(
                        self.me, position.source, self.term, position.last_term, position.end, point_term, point_end
                    )
                )
            )

    def on_report(self, report: Report) -> None:
        peer = self.peers.get(report.source)
        if peer is not None and peer.was_reported(report.stream, report.flushed):
            self._heard_of_disk(peer)

    def sent(self, member: MemberId, stream: int, end: int) -> None:
        peer = self.peers.get(member)
        if peer is not None and peer.was_sent(stream, end):
            self._replicate(peer)

    def disconnected(self, member: MemberId) -> None:
        if (peer := self.peers.get(member)) is not None:
            peer.end_stream()

    def trimmed(self) -> None:
        """The log begins later: end the stream of a follower that needs deleted bytes, and ask for its position."""
        for peer in self.peers.values():
            if peer.streaming and peer.sent < self._log.terms.base.start:
                peer.end_stream()

    def _heard_of_disk(self, peer: Progress) -> None:
        self.count()
        self._replicate(peer)
        self._hand_over()

    def _replicate(self, peer: Progress) -> None:
        """Order the next piece for a peer if it may get one. Only one piece is read at a time; several may be in flight."""
        log, settings = self._log, self._settings
        if not peer.streaming or peer.reading or peer.sent >= log.end:
            return
        if peer.sent - peer.flushed >= settings.window_bytes:
            return
        peer.reading = True
        append = self._append(peer, log.end)
        wanted = min(append.end, append.start + settings.append_bytes_max)
        if len(append.records) > _TERM_RECORDS_MAX:
            wanted = min(wanted, append.records[_TERM_RECORDS_MAX].start)
        self._emit(Replicate(append, wanted))

    def _append(self, peer: Progress, end: int) -> Append:
        terms = self._log.terms
        return Append(
            self.me,
            peer.member,
            self.term,
            peer.stream,
            peer.sent,
            end,
            terms.term_before(peer.sent),
            terms.between(peer.sent, end),
            self._log.confirmed,
        )

    # Members

    def on_join(self, join: Join) -> None:
        """A member came back under a later incarnation: its old one is gone, and the new one begins as a learner."""
        old = self.members.named(join.source.name)
        if old is None or old == self.me or old.incarnation >= join.source.incarnation or not self._may_change():
            return
        self._change(self.members.without(old).with_learner(join.source))

    def add(self, member: MemberId) -> None:
        """Add a learner; it becomes a voter automatically when it has caught up."""
        self._demand_change()
        if (other := self.members.named(member.name)) is not None:
            raise Refused(f"{member.name} is a member already ({other}): remove it first")
        self._change(self.members.with_learner(member))

    def remove(self, member: MemberId, now: float) -> None:
        self._demand_change()
        if member not in self.members.all:
            raise Refused(f"{member} is no member; members are {', '.join(sorted(map(str, self.members.all)))}")
        if member == self.me:
            raise Refused(f"{member} is the leader: transfer the leadership first, then remove it")
        left = self.members.without(member)
        if not is_majority({voter for voter in left.voters if self._answers(voter, now)}, left.voters):
            raise Refused(f"too few of the others answer: without {member} the group would stand still")
        self._change(self.members.without(member))

    def _demand_change(self) -> None:
        if not self.ready:
            raise Refused(
                "the leader has just been elected and nothing of its term is confirmed yet: try again shortly"
            )
        if not self._may_change():
            raise Refused("another change of members, or a transfer, is under way: try again when it is done")

    def _may_change(self) -> bool:
        last_is_confirmed = self._log.terms.last.start < self._log.confirmed
        return self.ready and not self._changing and last_is_confirmed and self._successor is None

    def _change(self, members: Members) -> None:
        assert members.is_one_step_from(self.members), f"{members} is more than one voter away from {self.members}"
        self._changing = True
        self._emit(AppendRecord(self.term, members))

    def _promote_learners(self, now: float) -> None:
        enough = self._log.confirmed - self._settings.caught_up_bytes
        for learner in self.members.learners:
            peer = self.peers.get(learner)
            if peer is None or not peer.streaming or peer.flushed < enough or not self._may_change():
                continue
            if now - peer.heard <= 2 * self._settings.beat_ms:
                self._change(self.members.promoted(learner))
                return

    def _meet_members(self, now: float) -> None:
        """A membership change takes effect when its record is appended, confirmed or not."""
        others = self.members.all - {self.me}
        self.peers = {
            member: self.peers.get(member) or Progress(member, now)
            for member in sorted(others)  # in a fixed order, so that a history can be replayed
        }

    # Transfer

    def transfer(self, member: MemberId, now: float) -> None:
        if not self.ready:
            raise Refused(
                "the leader has just been elected and nothing of its term is confirmed yet: try again shortly"
            )
        if member not in self.members.voters:
            raise Refused(f"{member} is no voter; voters are {', '.join(sorted(map(str, self.members.voters)))}")
        if member == self.me:
            raise Refused(f"{member} leads already")
        if self._successor is not None:
            raise Refused(f"the leadership is being transferred to {self._successor}: try again when that is done")
        self._successor = member
        self._transfer_until = now + self._settings.election_max_ms
        self._emit(HoldAppends(True))
        self._hand_over()

    def make_way(self, now: float) -> None:
        """We are not fit to lead: transfer to the voter that answers, has ignored us least often, and has most of the log. Retry until one
        takes over, with growing pauses: voters that ignore us may be no fitter than we are."""
        if not self.ready or self._successor is not None or now < self._make_way_at:
            return
        others = [
            peer
            for peer in self.peers.values()
            if peer.member in self.members.voters and peer.streaming and self._answers(peer.member, now)
        ]
        again = _MAKE_WAY_AGAIN * self._settings.election_max_ms
        if others:
            chosen = min(others, key=lambda peer: (self._ignored.get(peer.member, 0), -peer.flushed)).member
            again <<= min(self._ignored.get(chosen, 0), _DOUBLED_MAX)
            self.transfer(chosen, now)
        self._make_way_at = now + again

    def _hand_over(self) -> None:
        if self._successor is None or self._changing:
            return
        peer = self.peers.get(self._successor)
        if peer is not None and peer.streaming and peer.flushed == self._log.end:
            self._emit(Send(TimeoutNow(self.me, self._successor, self.term)))

    def _end_transfer(self) -> None:
        if self._successor is not None:
            self._ignored[self._successor] = self._ignored.get(self._successor, 0) + 1
        self._successor = None
        self._emit(HoldAppends(False))
