"""One member of a group: message in, time in, effects out.

The idea. The log is the same on all members up to `confirmed`, because

1. a term has one leader: a voter votes once a term, and its vote is durable before it is sent (`Ballot`, `Persist`);
2. only the leader of a term writes in it, and it only appends; so the term before an offset determines all bytes before it (`terms.py`);
3. confirmed bytes are on the disks of a majority, and a voter refuses a candidate whose log is behind: so every later leader has them;
4. a leader counts only what was written in its own term; that confirms everything before it (`leadership.py`);
5. no member cuts below what it knows to be confirmed.

Stale information is dropped. A flush that began before a cut, a report of another term or stream, a message to an earlier incarnation:
each is recognized by its number. A lost message delays things by one beat: every beat says how much was sent, and a follower that has
less sends its position.

Elections do not disturb a healthy group: a member asks first whether it would win (`PreVote`), and every member that hears a leader
refuses; a leader that does not hear from a majority steps down; a node that was paused restarts its timer instead of blaming the others.
A follower that loses its connection to the leader asks at once.
"""

from __future__ import annotations

from collections.abc import Callable

from kappamq.raft.effects import Ballot, Confirmed, Cut, Effect, Persist, Role, RoleChanged, Send, Write
from kappamq.raft.leadership import Leadership, Refused
from kappamq.raft.log import Log
from kappamq.raft.members import MemberId, Members
from kappamq.raft.messages import (
    Append,
    Beat,
    Diverged,
    Join,
    Message,
    Position,
    PreVote,
    PreVoteAnswer,
    Report,
    TimeoutNow,
    Vote,
    VoteAnswer,
)
from kappamq.raft.quorum import is_majority
from kappamq.raft.settings import RaftSettings
from kappamq.raft.terms import TermRecord

FROM_LEADER = (Beat, Append, Diverged, TimeoutNow)
NEVER = float("-inf")


class Node:
    """Each public method that takes an event returns its effects, in the order in which they must be carried out.

    `now`: liveness time in milliseconds, which never goes back. `dice`: returns a number in [0, 1). Call `tick` every 50 ms or so.
    """

    def __init__(
        self,
        me: MemberId,
        ballot: Ballot,
        log: Log,
        *,
        now: float,
        dice: Callable[[], float],
        settings: RaftSettings | None = None,
    ) -> None:
        """Raises ValueError if the log is of a later term than the ballot: then the ballot was lost, and a new incarnation is needed."""
        if log.terms.last.term > ballot.term:
            raise ValueError(
                f"the log has bytes of term {log.terms.last.term}, but the ballot says {ballot.term}: the ballot is not this log's"
            )
        self.me, self.ballot, self.log = me, ballot, log
        self.role = Role.FOLLOWER
        self.leader: MemberId | None = None
        self.leadership: Leadership | None = None
        self.settings = settings or RaftSettings()
        self._fit = True
        self._dice = dice
        self._effects: list[Effect] = []
        self._unsaved = False  # the ballot has changed since the last `Persist`
        self._now = now
        self._heard = NEVER  # when the leader was last heard
        self._deadline = 0.0
        self._wait(now)
        self._yes: set[MemberId] = set()
        self._asking = False  # a pre-vote is under way
        self._stream = 0  # the leader's stream that we accept; 0: none
        self._asked = 0  # the last stream for which a position was sent
        self._leaders_confirmed = 0

    @property
    def term(self) -> int:
        return self.ballot.term

    @property
    def members(self) -> Members:
        return self.log.terms.last.members

    # Events: time and messages

    def tick(self, now: float) -> list[Effect]:
        self._clock(now)
        if self.leadership is not None:
            if not self.leadership.tick(now):
                self._become_follower(None)
            elif not self._fit:
                self.leadership.make_way(now)
        elif now >= self._deadline:
            self._wait(now)
            self._stand(now)
        return self._taken()

    def step(self, message: Message, now: float) -> list[Effect]:
        self._clock(now)
        if message.target != self.me:
            if message.target.name == self.me.name and isinstance(message, FROM_LEADER):
                self._send(Join(self.me, message.source, 0))
        elif isinstance(message, Join):
            if self.leadership is not None:
                self.leadership.on_join(message)
        elif self._is_of_this_term(message):
            self._handle(message, now)
        return self._taken()

    def contradiction(self, message: Message) -> str | None:
        """Return why no leader can send us this message, or None if one can. The driver may drop the sender before the node acts on it."""
        is_of_our_term = message.term == self.term and message.target == self.me
        if isinstance(message, FROM_LEADER) and is_of_our_term and self.leader not in (None, message.source):
            return f"{self.leader} leads term {self.term}"
        if isinstance(message, Diverged) and message.term >= self.term and self._is_of_our_position(message):
            offset, confirmed = self._parting(message), self.log.confirmed
            if offset < confirmed:
                return f"our logs part at {offset}, and ours is confirmed up to {confirmed}"
        return None

    def connection_lost(self, member: MemberId, now: float) -> list[Effect]:
        """The connection to a member was closed just now."""
        self._clock(now)
        if self.leadership is not None:
            self.leadership.disconnected(member)
        elif member == self.leader:
            self._heard = NEVER
            # A random delay: members that stand at the same moment would all vote for themselves.
            self._deadline = min(self._deadline, now + self._dice() * self.settings.beat_ms)
        return self._taken()

    # Events: our own log

    def appended(self, end: int) -> list[Effect]:
        """The leader has appended bytes that no effect asked for, and the log now ends at `end`."""
        assert self.leadership is not None, f"{self.me} appended up to {end}, but does not lead"
        self.log.appended(end)
        self.leadership.grown()
        return self._taken()

    def record_appended(self, start: int, end: int, members: Members, now: float) -> list[Effect]:
        """The term record that `AppendRecord` ordered ends at `end`. `start`: where the log ended; bytes before the record are ours."""
        assert self.leadership is not None, f"{self.me} appended a term record at {start}, but does not lead"
        self.log.record_appended(TermRecord(start, self.term, members), end)
        self.leadership.record_appended(start, now)
        return self._taken()

    def flushed(self, offset: int, generation: int) -> list[Effect]:
        """An fdatasync of this `generation` that began when the log ended at `offset` has finished."""
        if self.log.was_flushed(offset, generation):
            if self.leadership is not None:
                self.leadership.count()
            else:
                self._learn_confirmed()
                if self.leader is not None and self._stream:
                    self._report(self.leader)
        return self._taken()

    def sent(self, member: MemberId, stream: int, end: int) -> list[Effect]:
        """A `Replicate` was carried out up to `end`."""
        if self.leadership is not None:
            self.leadership.sent(member, stream, end)
        return self._taken()

    def cut_done(self, generation: int, now: float) -> list[Effect]:
        """A `Cut` is durable."""
        self._clock(now)
        if generation == self.log.generation and self.log.cutting:
            self.log.cut_done()
            if self.leader is not None:
                self._tell_position(self.leader)
        return self._taken()

    def trimmed(self, offset: int) -> list[Effect]:
        """Old log files are deleted: the log begins at `offset`."""
        assert offset <= self.log.confirmed, f"deleted up to {offset}, but only {self.log.confirmed} is confirmed"
        self.log.terms.trim(offset)
        if self.leadership is not None:
            self.leadership.trimmed()
        return self._taken()

    # Events: an operator's requests. They raise Refused.

    def transfer(self, member: MemberId, now: float) -> list[Effect]:
        """Transfer the leadership to `member`. The attempt ends after the longest election timeout; then this node goes on leading."""
        self._clock(now)
        self._leading().transfer(member, now)
        return self._taken()

    def may_lead(self, fit: bool) -> None:
        """`fit`: whether this node should lead. An unfit node does not stand for election and hands over if it leads, but it votes."""
        self._fit = fit or len(self.members.voters) == 1

    def add(self, member: MemberId) -> list[Effect]:
        """Add a member, first as a learner; it becomes a voter when it has caught up."""
        self._leading().add(member)
        return self._taken()

    def remove(self, member: MemberId, now: float) -> list[Effect]:
        """Remove a member other than this one."""
        self._clock(now)
        self._leading().remove(member, now)
        return self._taken()

    def _leading(self) -> Leadership:
        if self.leadership is None:
            raise Refused(
                f"{self.me} does not lead; ask {self.leader}" if self.leader else f"{self.me} knows no leader now"
            )
        return self.leadership

    # Effects

    def _emit(self, effect: Effect) -> None:
        # The ballot must be saved before any effect that may reveal it.
        self._save()
        self._effects.append(effect)

    def _save(self) -> None:
        if self._unsaved:
            self._unsaved = False
            self._effects.append(Persist(self.ballot))

    def _send(self, message: Message) -> None:
        self._emit(Send(message))

    def _taken(self) -> list[Effect]:
        self._save()
        effects, self._effects = self._effects, []
        return effects

    # Time and terms

    def _clock(self, now: float) -> None:
        gap = now - self._now
        assert gap >= 0, f"liveness time goes back from {self._now} to {now}"
        self._now = now
        if gap > self.settings.late_ms:
            self._heard += gap
            if self._deadline < now + self.settings.election_min_ms:
                self._wait(now)
            if self.leadership is not None:
                self.leadership.was_late(gap)

    def _wait(self, now: float) -> None:
        low, high = self.settings.election_min_ms, self.settings.election_max_ms
        self._deadline = now + low + self._dice() * (high - low)

    def _hears_leader(self, now: float) -> bool:
        return self.role is Role.LEADER or (
            self.leader is not None and now - self._heard < self.settings.election_min_ms
        )

    def _is_of_this_term(self, message: Message) -> bool:
        """Enter the message's term, or answer a message of an earlier one. Return whether to handle the message."""
        if message.term == self.term:
            return True
        if isinstance(message, PreVote) or (isinstance(message, PreVoteAnswer) and message.granted):
            return True  # it names a term that its sender has not entered
        if message.term > self.term:
            if isinstance(message, Vote) and not message.forced and self._hears_leader(self._now):
                return False
            self._enter(message.term)
            return True
        if isinstance(message, FROM_LEADER):
            # A leader that was deposed without noticing. If we stay silent it sends beats for ever, and we stay without a leader.
            self._send(Report(self.me, message.source, self.term, 0, 0, 0))
        elif isinstance(message, Vote):
            self._send(VoteAnswer(self.me, message.source, self.term, False))
        return False

    def _enter(self, term: int) -> None:
        # In this order: a former leader must stop appending before it waits for its disk.
        self._become_follower(None)
        self.ballot = Ballot(term, None)
        self._unsaved = True

    def _become_follower(self, leader: MemberId | None) -> None:
        if self.leadership is not None:
            self.leadership = None
            self._wait(self._now)
        changed = self.role is not Role.FOLLOWER or self.leader != leader
        self.role, self.leader = Role.FOLLOWER, leader
        self._yes, self._asking = set(), False
        self._stream = self._asked = 0
        self._leaders_confirmed = 0
        if changed:
            self._emit(RoleChanged(Role.FOLLOWER, self.term, leader))

    def _handle(self, message: Message, now: float) -> None:
        match message:
            case Beat() | Append() | Diverged() | TimeoutNow():
                self._hear_leader(message.source, now)
                self._handle_leader(message, now)
            case PreVote():
                self._on_pre_vote(message, now)
            case Vote():
                self._on_vote(message, now)
            case PreVoteAnswer():
                if message.granted and self._asking and message.term == self.term + 1:
                    self._count_vote(message.source, now)
            case VoteAnswer():
                if message.granted and self.role is Role.CANDIDATE:
                    self._count_vote(message.source, now)
            case Position() | Report() if self.leadership is not None:
                self.leadership.heard(message.source, now)
                if isinstance(message, Report):
                    self.leadership.on_report(message)
                else:
                    self.leadership.on_position(message)

    # Elections

    def _stand(self, now: float) -> None:
        """Ask the other voters whether we would win an election."""
        if not self._may_stand():
            return
        if self.role is not Role.FOLLOWER or self.leader is not None:
            self._become_follower(None)
        self._yes, self._asking = set(), True
        for voter in self._other_voters():
            self._send(PreVote(self.me, voter, self.term + 1, self.log.last_term, self.log.end))
        self._count_vote(self.me, now)

    def _may_stand(self) -> bool:
        return self._fit and self.me in self.members.voters and not self.log.cutting

    def _other_voters(self) -> list[MemberId]:
        return sorted(self.members.voters - {self.me})

    def _campaign(self, now: float, *, forced: bool) -> None:
        self.ballot = Ballot(self.term + 1, self.me)
        self._unsaved = True
        self.role, self.leader = Role.CANDIDATE, None
        self._yes, self._asking = set(), False
        self._wait(now)
        self._emit(RoleChanged(Role.CANDIDATE, self.term, None))
        for voter in self._other_voters():
            self._send(Vote(self.me, voter, self.term, self.log.last_term, self.log.end, forced))
        self._count_vote(self.me, now)

    def _count_vote(self, voter: MemberId, now: float) -> None:
        self._yes.add(voter)
        if not is_majority(self._yes, self.members.voters):
            return
        if self._asking:
            self._campaign(now, forced=False)
        elif self.role is Role.CANDIDATE:
            self._lead(now)

    def _lead(self, now: float) -> None:
        self.role, self.leader = Role.LEADER, self.me
        self._emit(RoleChanged(Role.LEADER, self.term, self.me))
        self.leadership = Leadership(self.me, self.term, self.log, self.settings, self._emit, now)
        self.leadership.tick(now)

    def _on_pre_vote(self, ask: PreVote, now: float) -> None:
        granted = ask.term > self.term and self._has_our_log(ask) and not self._hears_leader(now)
        if granted:
            self._give_way(ask, now)
        self._send(PreVoteAnswer(self.me, ask.source, ask.term if granted else self.term, granted))

    def _give_way(self, ask: PreVote, now: float) -> None:
        """Let another member try first, for a moment: two candidates at the same time would both vote for themselves."""
        ours = (self.log.last_term, self.log.end, self.me)
        if self._asking and (ask.last_term, ask.end, ask.source) > ours:
            self._asking = False
            self._wait(now)
        elif not self._asking:
            self._deadline = max(self._deadline, now + 2 * self.settings.beat_ms)

    def _on_vote(self, ask: Vote, now: float) -> None:
        is_free = self.ballot.voted_for == ask.source or (self.ballot.voted_for is None and self.leader is None)
        granted = is_free and self._has_our_log(ask)
        if granted:
            if self.ballot.voted_for is None:
                self.ballot = Ballot(self.term, ask.source)
                self._unsaved = True
            self._wait(now)
        self._send(VoteAnswer(self.me, ask.source, self.term, granted))

    def _has_our_log(self, ask: PreVote | Vote) -> bool:
        """Whether its log is at least as new as ours. The term of a log is that of its last byte, not the one its owner has reached."""
        return (ask.last_term, ask.end) >= (self.log.last_term, self.log.end)

    # Following

    def _hear_leader(self, leader: MemberId, now: float) -> None:
        assert self.role is not Role.LEADER, f"{leader} and {self.me} both lead in term {self.term}"
        if self.leader != leader:
            assert self.leader is None, f"{leader} and {self.leader} both lead in term {self.term}"
            self._become_follower(leader)
        self._asking = False
        self._heard = now
        self._wait(now)

    def _handle_leader(self, message: Beat | Append | Diverged | TimeoutNow, now: float) -> None:
        if isinstance(message, TimeoutNow):
            if self._may_stand():
                self._campaign(now, forced=True)
        elif self.log.cutting:
            # The end of our log is not settled, but report that we are alive.
            self._send(Report(self.me, message.source, self.term, 0, self.log.end, 0))
        elif isinstance(message, Beat):
            self._on_beat(message)
        elif isinstance(message, Append):
            self._on_append(message)
        else:
            self._on_diverged(message)

    def _on_beat(self, beat: Beat) -> None:
        if 0 < beat.stream < self._stream:
            return  # late, from an earlier stream
        if beat.stream == 0 or beat.stream != self._stream or self.log.end < beat.sent:
            self._asked = max(self._asked, beat.stream)
            self._tell_position(beat.source)
            return
        self._learn_confirmed(beat.confirmed)
        self._report(beat.source)

    def _on_append(self, append: Append) -> None:
        log = self.log
        if append.stream < self._stream:
            return  # late, from an earlier stream
        if append.start == log.end and append.before_term == log.last_term:
            if not log.terms.may_follow(append.records, append.start, append.end, append.term):
                return
            self._stream = append.stream
            if append.end > append.start:
                for record in append.records:
                    log.terms.append(record)
                log.appended(append.end)
                self._emit(Write(append.start, append.end, append.records))
            self._learn_confirmed(append.confirmed)
        elif append.stream > self._asked and not (append.stream == self._stream and append.end <= log.end):
            # Bytes before this are missing. Ask once per stream: its later pieces will not fit, either.
            self._asked = append.stream
            self._tell_position(append.source)

    def _on_diverged(self, answer: Diverged) -> None:
        # In a stream our log agrees with the leader's, and an answer to an earlier position says nothing about this one.
        if self._stream or not self._is_of_our_position(answer):
            return
        offset = self._parting(answer)
        self.log.cut(offset)
        self._emit(Cut(offset, self.log.generation))

    def _is_of_our_position(self, answer: Diverged) -> bool:
        return (answer.last_term, answer.end) == (self.log.last_term, self.log.end)

    def _parting(self, answer: Diverged) -> int:
        """The offset up to which our log and the leader's are the same."""
        term, end = self.log.terms.end_of(answer.point_term, self.log.end)
        return min(end, answer.point_end) if term == answer.point_term else end

    def _tell_position(self, leader: MemberId) -> None:
        log, stream = self.log, max(self._stream, self._asked)
        self._send(Position(self.me, leader, self.term, log.last_term, log.end, log.flushed, stream))

    def _report(self, leader: MemberId) -> None:
        self._send(Report(self.me, leader, self.term, self._stream, self.log.end, self.log.flushed))

    def _learn_confirmed(self, leaders: int = 0) -> None:
        """Bytes that the leader has confirmed are confirmed here once they are on our disk, so a restart never finds fewer."""
        self._leaders_confirmed = max(self._leaders_confirmed, leaders)
        offset = min(self._leaders_confirmed, self.log.flushed)
        if self._stream and offset > self.log.confirmed:
            self.log.confirm(offset)
            self._emit(Confirmed(offset))
