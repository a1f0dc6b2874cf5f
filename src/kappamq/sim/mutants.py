"""Bugs planted on purpose. A simulation is only as good as what it finds: checkers that do not know these bugs must find each of them.

Each is a broker, or a cluster, that does one thing wrong. None of this is in the code that runs in production.
"""

from __future__ import annotations

from typing import NamedTuple

from kappamq.raft import (
    Append,
    Ballot,
    Confirmed,
    Cut,
    Effect,
    Log,
    MemberId,
    Node,
    Persist,
    RoleChanged,
)
from kappamq.raft.leadership import Leadership
from kappamq.raft.messages import Diverged, Message, Position, PreVote, Report, Vote
from kappamq.raft.quorum import held_by_majority
from kappamq.sim.broker import Broker
from kappamq.sim.cluster import Cluster
from kappamq.sim.disk import Disk, Piece


class Mutant(NamedTuple):
    what: str
    broker: type[Broker] = Broker
    cluster: type[Cluster] = Cluster


# Bugs in the driver


class AcksBeforeFsync(Broker):
    """Counts written bytes as flushed, as if the page cache were durable."""

    def _flush(self) -> None:
        super()._flush()
        self._later(0.0, lambda: self._event(self.node.flushed, self.disk.end, self.node.log.generation))


class SavesBallotLater(Broker):
    """Goes on before the ballot is on disk."""

    def _persist(self, effect: Persist) -> None:
        self._later(200.0, self._saved, effect.ballot)

    def _saved(self, ballot: Ballot) -> None:
        if ballot.term >= self.disk.ballot.term:
            self.disk.ballot = ballot

    _DO = {**Broker._DO, Persist: _persist}


class ShowsWritten(Broker):
    """Dispatches written records before they are confirmed."""

    def write(self, piece: Piece) -> None:
        super().write(piece)
        self.cluster.checker.shown(self, piece.end)


class LeavesTail(Broker):
    """A cut only moves the end; the bytes behind it come back after a crash, if the log then ends where they begin."""

    tail: tuple[Piece, ...] = ()

    def _cut_is_done(self, effect: Cut) -> None:
        self.tail = self.disk.between(effect.offset, self.disk.end)
        super()._cut_is_done(effect)

    def crash(self) -> None:
        if self.alive:
            super().crash()
            disk = self.disk
            for piece in self.tail:
                if piece.start == disk.end and (piece.record is None or piece.term > disk.terms().last.term):
                    disk.append(piece)
            disk.synced = disk.end


class ServesBeforeReady(Broker):
    """Confirms the log that it found as soon as it leads."""

    def _role_changed(self, effect: RoleChanged) -> None:
        super()._role_changed(effect)
        if self.node.leadership is not None and self.node.log.flushed > self.node.log.confirmed:
            self._confirmed(Confirmed(self.node.log.flushed))

    _DO = {**Broker._DO, RoleChanged: _role_changed}


class NamesWantedTerms(Broker):
    """Names the term records of the wanted bytes, but sends more bytes if the first piece is longer."""

    def _transmit(self, append: Append, wanted: int) -> list[Effect]:
        records = tuple(record for record in append.records if record.start < wanted)
        return super()._transmit(append._replace(records=records), wanted)


class WipedIsTheSame(Cluster):
    """A member that has lost its disk comes back under the same incarnation."""

    def returning(self, broker: Broker) -> MemberId:
        return broker.me

    def _wipe(self) -> None:
        before = dict(self.brokers)
        super()._wipe()
        for name, broker in self.brokers.items():
            if before[name] is not broker:
                members = before[name].node.members
                broker.disk = Disk(broker.disk.base._replace(members=members))


# Bugs in the core


class CountsEarlierTerms(Leadership):
    def _is_of_our_term(self, offset: int) -> bool:
        return self._begin is not None


class CountsLearners(Leadership):
    def count(self) -> None:
        held = {member: peer.flushed for member, peer in self.peers.items()}
        held[self.me] = self._log.flushed
        self._confirm(held_by_majority(self.members.all, held))


class CountsWritten(Leadership):
    """The leader counts its own bytes as soon as they are written."""

    def count(self) -> None:
        held = {member: peer.flushed for member, peer in self.peers.items()}
        held[self.me] = self._log.end
        self._confirm(held_by_majority(self.members.voters, held))


class CountsSent(Leadership):
    """Counts sent bytes as received."""

    def on_report(self, report: Report) -> None:
        peer = self.peers.get(report.source)
        super().on_report(report if peer is None else report._replace(flushed=peer.sent))


class CountsHalf(Leadership):
    """Counts half of an even number of voters as a majority."""

    def count(self) -> None:
        held = {member: peer.flushed for member, peer in self.peers.items()}
        held[self.me] = self._log.flushed
        offsets = sorted((held.get(voter, 0) for voter in self.members.voters), reverse=True)
        self._confirm(offsets[(len(offsets) - 1) // 2])


class KeepsLeading(Leadership):
    """Does not check that a majority answers."""

    def tick(self, now: float) -> bool:
        super().tick(now)
        return True


class BelievesPositions(Leadership):
    """Streams to any follower with enough bytes, whatever their term."""

    def on_position(self, position: Position) -> None:
        last_term = self._log.terms.term_before(min(position.end, self._log.end))
        super().on_position(position._replace(last_term=last_term))


class ChangesAtOnce(Leadership):
    """Allows a change of members before the previous one is confirmed."""

    def _may_change(self) -> bool:
        return self.ready and not self._changing


class IgnoresGeneration(Log):
    __slots__ = ()

    def was_flushed(self, offset: int, generation: int) -> bool:
        return super().was_flushed(min(offset, self.end), self.generation)


class ReportsWritten(Node):
    def _report(self, leader: MemberId) -> None:
        flushed, self.log.flushed = self.log.flushed, self.log.end
        super()._report(leader)
        self.log.flushed = flushed


class BelievesOldReports(Node):
    """Accepts reports of an earlier term."""

    def _is_of_this_term(self, message: Message) -> bool:
        return isinstance(message, Report) or super()._is_of_this_term(message)

    def step(self, message: Message, now: float) -> list[Effect]:
        if isinstance(message, Report) and self.leadership is not None and 0 < message.term < self.term:
            peer = self.leadership.peers.get(message.source)
            if peer is not None:
                message = message._replace(stream=peer.stream)
        return super().step(message, now)


class VotesForShorter(Node):
    def _has_our_log(self, ask: PreVote | Vote) -> bool:
        return True


class ComparesOwnTerm(Node):
    """Compares the terms that members have reached instead of the last terms of their logs."""

    def _has_our_log(self, ask: PreVote | Vote) -> bool:
        return (ask.term, ask.end) >= (self.term, self.log.end)


class VotesTwice(Node):
    def _on_vote(self, ask: Vote, now: float) -> None:
        if self.leader is None and self.ballot.voted_for not in (None, self.me):
            self.ballot = Ballot(self.term, None)
        super()._on_vote(ask, now)


class StandsAtOnce(Node):
    """Stands without a pre-vote."""

    def _stand(self, now: float) -> None:
        if self._may_stand():
            self._campaign(now, forced=False)


class CutsWhatItHears(Node):
    """Takes every answer about a position as the answer to the present one."""

    def _on_diverged(self, answer: Diverged) -> None:
        log = self.log
        if max(answer.point_end, log.confirmed) < log.end:
            self._stream = 0
            super()._on_diverged(answer._replace(last_term=log.last_term, end=log.end))


class ConfirmsUnmatched(Node):
    """Confirms what a beat says is confirmed before the logs were compared."""

    def _on_beat(self, beat: object) -> None:
        confirmed = min(beat.confirmed, self.log.flushed)  # type: ignore[attr-defined]
        if confirmed > self.log.confirmed:
            self.log.confirm(confirmed)
            self._emit(Confirmed(confirmed))
        super()._on_beat(beat)  # type: ignore[arg-type]


def with_leadership(kind: type[Leadership]) -> type[Broker]:
    class Leading(Node):
        def _lead(self, now: float) -> None:
            super()._lead(now)
            assert self.leadership is not None
            self.leadership.__class__ = kind

    return with_node(Leading)


def with_log(kind: type[Log]) -> type[Broker]:
    class Logging(Broker):
        def start(self) -> None:
            super().start()
            self.node.log.__class__ = kind

    return Logging


def with_node(kind: type[Node]) -> type[Broker]:
    class Running(Broker):
        make_node = kind

    return Running


MUTANTS: dict[str, Mutant] = {
    "ack-before-fsync": Mutant("what is written counts as flushed", AcksBeforeFsync),
    "ballot-later": Mutant("the vote is not durable when it is given", SavesBallotLater),
    "shows-written": Mutant("dispatch before confirmed", ShowsWritten),
    "cut-leaves-tail": Mutant("a cut is not safe against a crash", LeavesTail),
    "serves-before-ready": Mutant("a new leader takes what it found for confirmed", ServesBeforeReady),
    "terms-not-named": Mutant("bytes are sent without the term record in them", NamesWantedTerms),
    "wiped-votes": Mutant("a member that has lost its disk votes on", Broker, WipedIsTheSame),
    "earlier-terms": Mutant("bytes of earlier terms are confirmed by counting", with_leadership(CountsEarlierTerms)),
    "learners-count": Mutant("learners count for the majority", with_leadership(CountsLearners)),
    "leader-counts-written": Mutant("the leader counts what it has not flushed", with_leadership(CountsWritten)),
    "sent-counts": Mutant("a report counts for all that was sent", with_leadership(CountsSent)),
    "half-is-enough": Mutant("half of the voters confirm", with_leadership(CountsHalf)),
    "no-check-quorum": Mutant("a leader without a majority goes on", with_leadership(KeepsLeading)),
    "positions-believed": Mutant("the leader does not compare terms", with_leadership(BelievesPositions)),
    "changes-at-once": Mutant("two changes of members at a time", with_leadership(ChangesAtOnce)),
    "old-flush": Mutant("a flush from before a cut is believed", with_log(IgnoresGeneration)),
    "reports-written": Mutant("a follower reports what it has not flushed", with_node(ReportsWritten)),
    "old-reports": Mutant("a report of an earlier term is believed", with_node(BelievesOldReports)),
    "votes-for-shorter": Mutant("a vote for a log that lacks something", with_node(VotesForShorter)),
    "compares-own-term": Mutant("the term of a log is its owner's", with_node(ComparesOwnTerm)),
    "votes-twice": Mutant("two votes in a term", with_node(VotesTwice)),
    "no-pre-vote": Mutant("elections without asking first", with_node(StandsAtOnce)),
    "old-answer-cuts": Mutant("an old answer cuts the log", with_node(CutsWhatItHears)),
    "confirms-unmatched": Mutant("a follower confirms before logs were compared", with_node(ConfirmsUnmatched)),
}
