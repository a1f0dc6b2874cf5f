"""The invariants, checked after every turn of every broker, whatever was lost, torn, delayed, cut off or switched off.

The checker has a log of its own: everything that was ever confirmed, byte by byte. Only bytes that a majority has on disk are added;
everything that a broker confirms, shows, answers or leads with is compared with it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from kappamq.protocol.names import METADATA_TOPIC
from kappamq.protocol.records.record import Record, iter_records
from kappamq.raft import MemberId, Role
from kappamq.raft.effects import Ballot
from kappamq.replication import vote_file
from kappamq.sim.checkers import Violation, demand
from kappamq.store.queues.deleted_topics import DELETED_KIND
from kappamq.store.snapshots import decode

if TYPE_CHECKING:
    from kappamq.broker.broker import Broker
    from kappamq.broker.copies.members.group import Group
    from kappamq.sim.brokers.machine import Machine
    from kappamq.sim.brokers.sim_disk import SimDisk

SNAPSHOTS = "/data/config/"
LOG = "/data/commitlog/"
QUEUES = "/data/consumequeue/"
HARMLESS = (ConnectionError, EOFError, TimeoutError)


@dataclass
class Seen:
    """What the checker knows about a machine's present life."""

    loop: object
    group: object = None  # the group whose confirmations it observes
    confirmed: int = 0
    led: int = 0  # the last term in which it was seen leading
    leads: bool = False
    failures: int = 0


@dataclass
class Checker:
    segment_bytes: int
    machines: dict[str, Machine] = field(default_factory=dict)
    log: bytearray = field(default_factory=bytearray)  # everything that was ever confirmed
    queues: dict[tuple[str, int], dict[int, Record]] = field(default_factory=dict)  # in it: queue offset -> record
    bodies: dict[bytes, int] = field(default_factory=dict)  # bodies of the clients' messages in it -> log offset
    deleted: set[str] = field(default_factory=set)  # topics that confirmed records delete
    leaders: dict[int, MemberId] = field(default_factory=dict)
    gone: dict[MemberId, SimDisk] = field(default_factory=dict)  # wiped members, and the disks that they had
    promised: dict[MemberId, Ballot] = field(default_factory=dict)
    log_min: int = 0  # the largest start of a leader's log
    _sent: set[tuple[str, bytes]] = field(default_factory=set)
    _acknowledged: list[tuple[str, int, int, list[bytes]]] = field(default_factory=list)
    _leases: dict[str, dict[str, float]] = field(default_factory=dict)  # queue -> owner -> relies on the lock until
    _unlocked: dict[tuple[str, str], float] = field(default_factory=dict)
    _seen: dict[str, Seen] = field(default_factory=dict)
    _terms: list[tuple[int, int]] = field(default_factory=list)  # (end of the log, term that confirmed it)
    now: float = 0.0

    @property
    def end(self) -> int:
        return len(self.log)

    # -- disks -------------------------------------------------------------------------------------------------------------

    def watch(self, machine: Machine) -> None:
        """Observe what is done on the disk of this machine from now on."""
        machine.disk.tell(lambda path: self._removing(machine, path), lambda path: self._renamed(machine, path))

    def _renamed(self, machine: Machine, path: str) -> None:
        if path.startswith(SNAPSHOTS) and path.endswith(".json") and machine.alive and machine.is_up:
            content = bytes(machine.disk._names[path].data)
            stamp = decode(content).log_offset
            self._hold(
                machine,
                stamp is None or stamp <= self.end,
                f"writes {path.removeprefix(SNAPSHOTS)} as of {stamp}, only {self.end} is confirmed",
            )

    def _removing(self, machine: Machine, path: str) -> None:
        if not machine.alive or not machine.is_up or machine.broker is None:
            return
        if path.startswith(QUEUES) and "/" not in path.removeprefix(QUEUES):
            topic = path.removeprefix(QUEUES)
            self._hold(machine, topic in self.deleted, f"removes the queues of {topic}: no confirmed record deletes it")
        elif path.startswith(LOG) and path.removeprefix(LOG).isdigit():
            start = int(path.removeprefix(LOG))
            end = start + self.segment_bytes
            if start >= machine.broker.store.marks.dispatched.offset:
                return  # it is cut off
            node = _node(machine.broker)
            self._hold(
                machine,
                # a leader decides; one that led in this term until a moment ago may finish a removal that it had begun
                end <= self.log_min or (node is not None and self.leaders.get(node.term) == node.me),
                f"removes the log below {end}; leaders have kept it from {self.log_min} on",
            )

    def _hold(self, machine: Machine, holds: bool, text: str) -> None:
        """As `demand`, but called from within the broker's own code, which must not catch the error."""
        if not holds and machine.loop is not None:
            machine.loop.failures.append(Violation(f"{machine.name} {text}"))

    # -- brokers -----------------------------------------------------------------------------------------------------------

    def turned(self, machine: Machine) -> None:
        """Called after each turn of a broker's loop."""
        broker, loop = machine.broker, machine.loop
        seen = self._seen.get(machine.name)
        if seen is None or seen.loop is not loop:
            seen = self._seen[machine.name] = Seen(loop)
        assert loop is not None
        for error in loop.failures[seen.failures :]:
            if isinstance(error, Violation):
                raise error
            if not isinstance(error, HARMLESS) and loop.alive:
                raise Violation(f"{machine.name}: nobody expects {type(error).__name__}: {error}") from error
        seen.failures = len(loop.failures)
        node = _node(broker) if broker is not None else None
        if broker is None or node is None:
            return
        group = broker.copies.group
        assert group is not None
        if group.why_stopped is not None:
            demand("invariant" not in group.why_stopped, f"{machine.name} stops taking part: {group.why_stopped}")
        machine.me = node.me
        self._keeps_promises(machine, node.me, node.ballot)
        if seen.group is not group:
            seen.group = group
            self._hear(machine, broker, seen, group)
        if group.confirmed != seen.confirmed:
            self._confirms(machine, broker, seen.confirmed, group.confirmed)
            seen.confirmed = group.confirmed
        marks = broker.store.marks
        demand(
            marks.dispatched.offset <= self.end and marks.visible.offset <= self.end,
            f"{machine.name} shows its log up to {marks.dispatched.offset}, only {self.end} is confirmed",
        )
        if node.role is Role.LEADER and node.term > seen.led:
            seen.led = node.term
            self._leads(machine, broker, node.term, node.me)
        if node.leadership is not None or seen.leads:
            # The leader has announced that; its worker removes the files a moment later, and it may be deposed in between.
            self.log_min = max(self.log_min, broker.store.log.min)
        seen.leads = node.leadership is not None

    def _hear(self, machine: Machine, broker: Broker, seen: Seen, group: Group) -> None:
        """Check from now on what this group confirms, at that moment: before the end of the turn its role may change."""
        confirm = group._confirm

        def heard(offset: int) -> None:
            self._confirms(machine, broker, seen.confirmed, offset)
            seen.confirmed = offset
            confirm(offset)

        group._confirm = heard  # type: ignore[method-assign]

    def _keeps_promises(self, machine: Machine, me: MemberId, ballot: Ballot) -> None:
        before = self.promised.get(me)
        if before == ballot:
            return
        self.promised[me] = ballot
        if before is not None:
            demand(
                ballot.term >= before.term, f"{me} is in term {ballot.term}, after it has spoken in term {before.term}"
            )
            if ballot.term == before.term and before.voted_for is not None:
                demand(
                    ballot.voted_for == before.voted_for,
                    f"{me} votes for {ballot.voted_for} in term {ballot.term}, after it voted for {before.voted_for}",
                )
        # Others may know of what was promised in this turn before the next one: it must be on disk by now.
        self._hold_vote(machine, me, ballot)

    def _hold_vote(self, machine: Machine, me: MemberId, ballot: Ballot) -> None:
        found = machine.disk.durable("/data/kappamq.vote", 0, vote_file.FILE_BYTES)
        try:
            saved = vote_file.decode(found).ballot
        except ValueError as error:
            raise Violation(f"{me} has promised {ballot}, and nothing of it is on disk: {error}") from None
        demand(saved == ballot, f"{me} has promised {ballot}, on its disk is {saved}")

    def _leads(self, machine: Machine, broker: Broker, term: int, me: MemberId) -> None:
        before = self.leaders.setdefault(term, me)
        demand(before == me, f"two leaders in term {term}: {before} and {me}")
        end = max((end for end, earlier in self._terms if earlier < term), default=0)
        store = broker.store
        if end > store.log.min:
            demand(
                store.log.end >= end and self._same(broker, store.log.min, end),
                f"{me} leads in term {term}, but its log, which ends at {store.log.end}, lacks what is confirmed up to {end}",
            )

    def _same(self, broker: Broker, start: int, end: int) -> bool:
        """Whether these bytes of a broker's log are the confirmed ones."""
        while start < end:
            piece = broker.store.log.slice(start, end - start)
            if not piece or piece != self.log[start : start + len(piece)]:
                return False
            start += len(piece)
        return True

    def _confirms(self, machine: Machine, broker: Broker, before: int, offset: int) -> None:
        me = machine.name
        demand(offset >= before, f"{me} takes back what was confirmed: {before} -> {offset}")
        store = broker.store
        if offset > self.end:
            node = _node(broker)
            assert node is not None
            demand(
                node.role is Role.LEADER,
                f"{me} follows, and has more confirmed ({offset}) than any leader ({self.end})",
            )
            demand(
                store.log.whole_until(store.kernel_module, self.end, offset) == offset,
                f"{me} confirms up to {offset}, which is within a record or a batch",
            )
            demand(
                node.log.terms.term_before(offset) == node.term,
                f"{me} confirms up to {offset} in term {node.term}, but that is of an earlier term",
            )
            start = max(before, store.log.min)
            demand(
                before > self.end or self._same(broker, start, self.end),
                f"what {me} confirms up to {offset} does not contain what was confirmed up to {self.end}",
            )
            self._is_on_disks(me, broker, offset)
            self._extend(broker, offset)
            self._terms.append((offset, node.term))
        else:
            demand(
                self._same(broker, max(before, store.log.min), offset),
                f"the log of {me} is said to be confirmed up to {offset}, but it is another one",
            )

    def _is_on_disks(self, me: str, broker: Broker, offset: int) -> None:
        node = _node(broker)
        assert node is not None
        wanted = [
            (at, bytes(piece)) for at, piece in broker.store.log.whole_pieces(broker.kernel_module, self.end, offset)
        ]
        voters = node.members.voters
        holding = [voter for voter in voters if self._has(voter, wanted)]
        demand(
            2 * len(holding) > len(voters),
            f"{me} confirms up to {offset}, but only {len(holding)} of {len(voters)} voters have that on disk",
        )

    def _has(self, voter: MemberId, wanted: list[tuple[int, bytes]]) -> bool:
        disk = self.gone.get(voter)
        if disk is None:
            machine = self.machines.get(voter.name)
            if machine is None or machine.me not in (None, voter):
                return False
            disk = machine.disk
        for at, piece in wanted:
            start = at - at % self.segment_bytes
            if disk.durable(f"{LOG}{start:020d}", at - start, at - start + len(piece)) != piece:
                return False
        return True

    def _extend(self, broker: Broker, offset: int) -> None:
        store = broker.store
        for at, piece in store.log.whole_pieces(store.kernel_module, self.end, offset):
            self._fill(broker, at)  # the rest of a file, from its end mark on
            self.log += piece
            for record in iter_records(bytes(piece)):
                self._note(record)
        self._fill(broker, offset)

    def _fill(self, broker: Broker, offset: int) -> None:
        while self.end < offset:
            piece = broker.store.log.slice(self.end, offset - self.end)
            self.log += piece
            demand(bool(piece), f"the log of {broker.config.name} cannot be read at {self.end}")

    def _note(self, record: Record) -> None:
        queue = self.queues.setdefault((record.topic, record.queue_id), {})
        known = queue.get(record.queue_offset)
        demand(
            known is None or record.topic.startswith("gone"),
            f"two messages have number {record.queue_offset} of {record.topic}/{record.queue_id}",
        )
        queue[record.queue_offset] = record
        if record.topic == METADATA_TOPIC:
            content = msgspec.json.decode(record.body)
            if content["kind"] == DELETED_KIND:
                self.deleted.add(str(content["change"]["topicName"]))
        elif (record.topic, record.body) in self._sent:
            before = self.bodies.setdefault(record.body, record.log_offset)
            demand(
                before == record.log_offset, f"{record.body[:12]!r} is there twice, at {before} and {record.log_offset}"
            )

    # -- clients -----------------------------------------------------------------------------------------------------------

    def sends(self, topic: str, bodies: list[bytes]) -> None:
        self._sent.update((topic, body) for body in bodies)

    def acknowledged(self, topic: str, queue_id: int, number: int, bodies: list[bytes], offsets: list[int]) -> None:
        """A client was told that these messages are stored."""
        for body, offset in zip(bodies, offsets, strict=True):
            demand(
                self.bodies.get(body) == offset,
                f"{body[:12]!r} was acknowledged at {offset}, but confirmed is {self.bodies.get(body)}, up to {self.end}",
            )
        self._acknowledged.append((topic, queue_id, number, bodies))

    def locked(self, queue: str, owner: str, asked_at: float, until: float, now: float) -> None:
        if asked_at <= self._unlocked.get((queue, owner), -1.0) or until <= now:
            return
        for other, relies_until in self._leases.setdefault(queue, {}).items():
            demand(
                other == owner or relies_until <= now,
                f"{owner} is given the lock of {queue} at {now:.0f}, {other} relies on it until {relies_until:.0f}",
            )
        self._leases[queue][owner] = max(until, self._leases[queue].get(owner, 0.0))

    def unlocked(self, queue: str, owner: str, now: float) -> None:
        self._leases.get(queue, {}).pop(owner, None)
        self._unlocked[queue, owner] = now

    @property
    def count(self) -> int:
        """Number of acknowledged sends."""
        return len(self._acknowledged)

    def all_is_there(self) -> None:
        """At the end: each acknowledged message has the offset that its sender was told, and every message in the queues was sent."""
        for topic, queue_id, number, bodies in self._acknowledged:
            for at, body in enumerate(bodies):
                record = self.queues.get((topic, queue_id), {}).get(number + at)
                demand(
                    record is not None and record.body == body,
                    f"{body[:12]!r} was acknowledged as number {number + at} of {topic}/{queue_id}, which is another one",
                )
        for (topic, queue_id), queue in self.queues.items():
            if topic in ("tea", "coffee", "milk"):
                for number, record in queue.items():
                    demand(
                        (topic, record.body) in self._sent,
                        f"nobody has sent what is number {number} of {topic}/{queue_id}",
                    )
                demand(
                    sorted(queue) == list(range(len(queue))),
                    f"numbers of {topic}/{queue_id} are missing: {sorted(queue)}",
                )


def _node(broker: Broker):  # type: ignore[no-untyped-def]
    copies = getattr(broker, "copies", None)
    return copies.group.node if copies is not None and copies.group is not None else None
