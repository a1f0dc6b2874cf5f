"""The invariants, checked after every event, whatever was lost, duplicated, delayed, cut off or switched off."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kappamq.raft import Ballot, MemberId, Message, Role
from kappamq.raft.messages import PreVoteAnswer, TimeoutNow, Vote, VoteAnswer
from kappamq.sim.disk import Disk, Piece

if TYPE_CHECKING:
    from kappamq.sim.broker import Broker


class Violation(Exception):
    """An invariant does not hold."""


def demand(holds: bool, text: str) -> None:
    if not holds:
        raise Violation(text)


class Checker:
    """Knows all brokers, and everything that was ever confirmed."""

    def __init__(self) -> None:
        self.confirmed_end = 0
        self.confirmed_by_end: dict[int, int] = {0: 0}  # end of a piece -> chain: the log that must never be lost
        self._confirmed_in: dict[int, int] = {}  # term -> how far its leader has confirmed
        self.leaders: dict[int, MemberId] = {}
        self.brokers: dict[str, Broker] = {}
        self.gone: dict[MemberId, Disk] = {}  # members that were wiped, with the disks they had
        self._chains: dict[tuple[int, int], int] = {}  # (term, end) -> chain
        self._votes: dict[tuple[MemberId, int], MemberId] = {}
        self._spoken: dict[MemberId, int] = {}  # the last term in which a member sent something
        self._backing: dict[tuple[MemberId, int], set[MemberId]] = {}

    # Votes and terms

    def said(self, broker: Broker, message: Message) -> None:
        """A broker sends a message."""
        me, prospective = broker.me, isinstance(message, PreVoteAnswer) and message.granted
        if not prospective and not isinstance(message, TimeoutNow):
            self._spoken[me] = max(self._spoken.get(me, 0), broker.node.term)
        if isinstance(message, VoteAnswer) and message.granted:
            self._voted(me, message.term, message.target)
        elif isinstance(message, Vote):
            self._voted(me, message.term, me)
        elif isinstance(message, PreVoteAnswer) and message.granted:
            self._backing.setdefault((message.target, message.term), {message.target}).add(me)
        elif isinstance(message, TimeoutNow):
            self._backing.setdefault((message.target, message.term + 1), set()).add(message.target)
            self._backing[message.target, message.term + 1].update(broker.node.members.voters)

    def _voted(self, voter: MemberId, term: int, candidate: MemberId) -> None:
        before = self._votes.setdefault((voter, term), candidate)
        demand(before == candidate, f"{voter} votes for {candidate} in term {term}, after it voted for {before}")

    def role_changed(self, broker: Broker, role: Role, term: int) -> None:
        me = broker.me
        if role is Role.CANDIDATE:
            voters = broker.node.members.voters
            backing = self._backing.get((me, term), {me}) & voters
            demand(2 * len(backing) > len(voters), f"{me} disturbs the group in term {term}: nobody said it could win")
        elif role is Role.LEADER:
            before = self.leaders.setdefault(term, me)
            demand(before == me, f"two leaders in term {term}: {before} and {me}")
            self._has_all_that_is_confirmed(broker, term)

    def _has_all_that_is_confirmed(self, broker: Broker, term: int) -> None:
        """Check for what was confirmed in earlier terms only: votes that were delayed for long may still elect a leader of an old term."""
        end = max((end for earlier, end in self._confirmed_in.items() if earlier < term), default=0)
        if end >= broker.disk.base.start:
            demand(
                broker.disk.chain_at(end) == self.confirmed_by_end[end],
                f"{broker.me} leads in term {term}, but its log, which ends at {broker.disk.end}, lacks what is confirmed up to {end}",
            )

    # Logs

    def started(self, broker: Broker) -> None:
        self.brokers[broker.name] = broker
        me, disk = broker.me, broker.disk
        demand(
            disk.ballot.term >= self._spoken.get(me, 0),
            f"{me} starts in term {disk.ballot.term}, but has spoken in term {self._spoken.get(me)}",
        )
        self._was_ballot_kept(me, disk.ballot)
        demand(
            disk.end >= disk.confirmed, f"the log of {me} ends at {disk.end}, it was confirmed up to {disk.confirmed}"
        )
        self._is_confirmed_log(broker, disk.confirmed)

    def _was_ballot_kept(self, me: MemberId, ballot: Ballot) -> None:
        voted = self._votes.get((me, ballot.term))
        demand(voted in (None, ballot.voted_for), f"{me} has forgotten its vote for {voted} in term {ballot.term}")

    def written(self, broker: Broker, piece: Piece) -> None:
        chain = self._chains.setdefault((piece.term, piece.end), piece.chain)
        demand(
            chain == piece.chain,
            f"{broker.me} has other bytes of term {piece.term} before {piece.end} than somebody else",
        )

    def stepped(self, broker: Broker) -> None:
        """Called after every event of a broker."""
        node, disk = broker.node, broker.disk
        demand(
            broker.is_blocked or node.log.cutting or node.log.end == disk.end,
            f"{broker.me} believes that its log ends at {node.log.end}, it is {disk.end}",
        )

    def shown(self, broker: Broker, offset: int) -> None:
        demand(
            offset <= self.confirmed_end,
            f"{broker.me} shows its log up to {offset}, only {self.confirmed_end} is confirmed",
        )

    def confirmed(self, broker: Broker, offset: int) -> None:
        """A broker reports that its log is confirmed up to `offset`."""
        if offset > self.confirmed_end:
            demand(
                broker.node.role is Role.LEADER,
                f"{broker.me} follows, and has more confirmed ({offset}) than any leader ({self.confirmed_end})",
            )
            self._is_of_the_leaders_term(broker, offset)
            self._is_on_disk_of_majority(broker, offset)
            self._extend(broker.disk, offset)
            self._confirmed_in[broker.node.term] = offset
        self._is_confirmed_log(broker, offset)
        self.shown(broker, offset)

    def _is_of_the_leaders_term(self, broker: Broker, offset: int) -> None:
        # Bytes of an earlier term may be on a majority of disks and still be lost: a log with a later last term can win an election.
        term = broker.disk.term_before(offset)
        demand(
            term == broker.node.term,
            f"{broker.me} confirms up to {offset} in term {broker.node.term}, but the bytes before that are of term {term}",
        )

    def _is_on_disk_of_majority(self, broker: Broker, offset: int) -> None:
        voters, chain = broker.node.members.voters, broker.disk.chain_at(offset)
        holding = sum(self._is_on_disk_of(voter, offset, chain) for voter in voters)
        demand(
            2 * holding > len(voters),
            f"{broker.me} confirms up to {offset}, but only {holding} of {len(voters)} voters have that on disk",
        )

    def _is_on_disk_of(self, voter: MemberId, offset: int, chain: int | None) -> bool:
        broker = self.brokers.get(voter.name)
        disk = broker.disk if broker is not None and broker.me == voter else self.gone.get(voter)
        return disk is not None and disk.synced >= offset and disk.chain_at(offset) == chain

    def _extend(self, disk: Disk, offset: int) -> None:
        chain = disk.chain_at(self.confirmed_end)
        demand(
            chain == self.confirmed_by_end[self.confirmed_end],
            f"what is confirmed up to {offset} does not contain what was confirmed up to {self.confirmed_end}",
        )
        for piece in disk.between(self.confirmed_end, offset):
            self.confirmed_by_end[piece.end] = piece.chain
        self.confirmed_end = offset

    def _is_confirmed_log(self, broker: Broker, offset: int) -> None:
        demand(
            offset in self.confirmed_by_end and broker.disk.chain_at(offset) == self.confirmed_by_end[offset],
            f"the log of {broker.me} is said to be confirmed up to {offset}, but it is another one",
        )

    # After the end of all faults

    def is_healed(self, leader: Broker | None, brokers: list[Broker]) -> str:
        """The reason why the group has not recovered: one leader, all members with the same log, all of it confirmed. Empty if it has."""
        if leader is None or not leader.serving or leader.node.leadership is None:
            return "no leader is ready"
        members = leader.node.members
        by_id = {broker.me: broker for broker in brokers}
        if gone := members.all - by_id.keys():
            return f"{sorted(map(str, gone))} are members and are gone"
        if members.learners:
            return f"{sorted(map(str, members.learners))} have not become voters"
        for member in sorted(members.all):
            broker = by_id[member]
            if not broker.alive:
                return f"{member} is starting"
            log = broker.node.log
            if (log.end, log.confirmed) != (leader.disk.end, leader.disk.end):
                return (
                    f"{member} has {log.end}, confirmed {log.confirmed}; the leader {leader.me} has {leader.disk.end}"
                )
            if broker.disk.chain != leader.disk.chain:
                return f"{member} and {leader.me} have different logs"
        if leader.disk.end < self.confirmed_end:
            return f"what was confirmed up to {self.confirmed_end} is lost: the log ends at {leader.disk.end}"
        return ""
