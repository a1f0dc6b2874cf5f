"""A member of a Raft group: carries out the decisions of `raft.Node` with the store, the disk and the connections of this broker.

Each event (a message, a tick, a flush, a write) goes into the node, and the resulting effects are carried out here, in order, before the
next event; `raft/__init__.py` specifies each of them. The leader's work is the role of `broker.roles`: it begins when
the term record is confirmed, and ends when the node steps down; writes are refused from that moment.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from kappamq.broker.copies.members.checking import checked
from kappamq.broker.copies.members.connections import Connections
from kappamq.broker.copies.members.fitness import Fitness
from kappamq.broker.copies.members.founding import demand_no_log, first_vote, introduction, node_at_start, vote_alone
from kappamq.broker.copies.members.member_files import MemberFiles, demand_own_log
from kappamq.broker.copies.members.reading import pieces, require_good, whole_end
from kappamq.broker.copies.members.room import Room
from kappamq.broker.copies.members.roster import Roster
from kappamq.broker.copies.members.term_records import append_term, term_change
from kappamq.broker.copies.mending.mender import Mender
from kappamq.broker.copies.node_role import NodeRole
from kappamq.broker.copies.outlet import Outlet
from kappamq.broker.copies.question import Questions
from kappamq.broker.copies.seeding.asking import Seeding
from kappamq.broker.copies.seeding.member import MemberSeeding
from kappamq.broker.sending.gate import NOT_MASTER, TRANSFERRING, Gate, not_master
from kappamq.broker.sending.log_writer import LogWriter
from kappamq.broker.tables import Tables
from kappamq.broker.upkeep.next_file import NextLogFile
from kappamq.broker.upkeep.slices import Worker
from kappamq.broker.upkeep.upkeep import Upkeep
from kappamq.clock import Clock
from kappamq.config.broker import BrokerConfig
from kappamq.config.copies import CopiesConfig
from kappamq.errors import Busy, KappaError, StoreError
from kappamq.raft import (
    Append,
    AppendRecord,
    Confirmed,
    Cut,
    Effect,
    HoldAppends,
    LeaderReady,
    MemberId,
    Node,
    Persist,
    Replicate,
    Role,
    RoleChanged,
    Seed,
    Send,
    TermRecord,
    Terms,
    Write,
)  # fmt: skip
from kappamq.raft.messages import Beat, Message
from kappamq.replication import raft_messages
from kappamq.replication.greeting import MemberHello
from kappamq.replication.raft_messages import check_speaker
from kappamq.replication.vote_file import Vote
from kappamq.state.metadata import Metadata
from kappamq.store.message_store import MessageStore
from kappamq.store.recovery import Recovered

log = logging.getLogger(__name__)

_TICK_S: Final = 0.05


class Group:
    def __init__(
        self,
        config: CopiesConfig,
        broker: BrokerConfig,
        store: MessageStore,
        writer: LogWriter,
        metadata: Metadata,
        tables: Tables,
        upkeep: Upkeep,
        next_file: NextLogFile,
        gate: Gate,
        clock: Clock,
        outlet: Outlet,
        role: NodeRole,
        address: Callable[[], str],
        worker: Worker,
        seeding: Seeding,
        too_far_behind: Callable[[str, str], None],
        questions: Questions,
        mender: Mender,
    ) -> None:
        self.questions = questions
        self._mender = mender
        self.config = config
        self._broker = broker
        self._store = store
        self._writer = writer
        self._metadata = metadata
        self._tables = tables
        self._upkeep = upkeep
        self._next_file = next_file
        self._gate = gate
        self._clock = clock
        self._outlet = outlet
        self._role = role
        self._address = address
        self._worker = worker
        self._checksum = store.kernel_module.crc32
        self._files = MemberFiles(store.config.root, store.files)
        self._vote: Vote | None = None
        self.node: Node | None = None
        self.confirmed = store.marks.confirmed.offset
        self.roster = Roster(config, tables.member_places, lambda: self.node)
        self.connections = Connections(self, self.roster.meets, self._checksum, self.roster.elsewhere)
        self._room = Room(store.log, next_file)
        self._fitness = Fitness(clock, gate, mender)
        self._todo: deque[Effect] = deque()
        self._doing = False
        self._ordering = False  # an append of our own that the node has ordered
        self._incoming: memoryview = memoryview(b"")
        self._ticking: asyncio.TimerHandle | None = None
        self._cutting: asyncio.Task[None] | None = None
        self.why_stopped: str | None = None
        self.seeding = MemberSeeding(
            store, config, seeding, too_far_behind, self.roster.place_of, lambda: self.node,
            lambda: self.group_id, lambda name: name in self.connections.connected_to(),
        )  # fmt: skip

    # -- its life ----------------------------------------------------------------------------------------------------------

    @property
    def me(self) -> str:
        assert self.config.member is not None
        return self.config.member

    def start(self, found: Recovered) -> None:
        """`found`: our log at this start. Raises StoreError if the data directory does not belong to a member that may take part."""
        self._vote = self._files.load_vote()
        if self._vote is not None:
            demand_own_log(self._store.config.root, found)
            self._begin(self._vote)
        elif self.config.is_first_voter:
            self._found_alone(found)
        else:
            demand_no_log(self.config, self._store, self._files)
        self._outlet.followers.append(self)
        self._outlet.groups.append(self)
        self._tick()

    def _begin(self, vote: Vote) -> None:
        """A member that belongs to the group, for the first time or again."""
        self.node = node_at_start(self.config, self._store, self._files, vote, self.now())
        self.confirmed = self.node.log.confirmed
        term, end = vote.ballot.term, self._store.log.end
        log.info("raft: member %s of group %s, term %d, log to %d", vote.member, self.config.group, term, end)

    async def stop(self) -> None:
        if self._ticking is not None:
            self._ticking.cancel()
        for group in (self._outlet.followers, self._outlet.groups):
            if self in group:
                group.remove(self)
        await self.seeding.stop()
        await self.connections.stop()
        if self._cutting is not None:
            await asyncio.gather(self._cutting, return_exceptions=True)

    # -- called by connections ---------------------------------------------------------------------------------------------

    def ours(self) -> MemberHello:
        return introduction(
            self.config, self._broker, self._store, self._vote, self._address(), self._clock.message_ms()
        )

    def connected(self, hello: MemberHello) -> None:
        self.connections.greeted(hello)
        self._fitness.clock_of(hello.member, hello.now_ms)
        if self._vote is None:
            self._found_or_join()
        node = self.node
        if node is not None and node.leader is not None and node.leader.name == hello.member:
            self._name_leader(node.leader)

    def disconnected(self, member: str) -> None:
        node = self.node
        self.roster.has_left(member)
        if node is not None and (known := node.members.named(member)) is not None:
            self.event(lambda: node.connection_lost(known, self.now()))

    def received(self, hello: MemberHello, content: bytes) -> MemberHello:
        node = self.node
        if node is None or self.why_stopped is not None:
            return hello  # we do not belong to the group yet, and say so when we do; or take no part in it
        said = raft_messages.decode(content)
        message = said.message
        check_speaker(message, hello, node.term, time.time_ns() // 1_000_000)
        self._fitness.clock_of(hello.member, said.now_ms)
        hello = hello.of_incarnation(message.source.incarnation)
        taken = None if self.seeding.ignores(message) else self._room.taken(message)
        if taken is None:
            return hello
        self._incoming = checked(self._store, node, taken, said.data)
        self.event(lambda: node.step(taken, self.now()))
        if said.log_min and node.leader == message.source:
            self.seeding.leader_begins_at(said.log_min, message.source.name, self._upkeep.delete_with_master)
        return hello

    def _found_or_join(self) -> None:
        """Start a member without state. If all are new, the group is founded; else it replaces a lost member, and is admitted."""
        vote = first_vote(
            self.config, [self.connections.hello(name) for name in self.config.members if name != self.me]
        )
        if vote is None:
            return
        self._promise(vote)

    def _found_alone(self, found: Recovered) -> None:
        """Found a group of one with the existing log. Its first record says so, and is on disk before the vote."""
        vote, change = vote_alone(self.config, self._store, self._files, found)
        self.seeding.demand_whole()
        end = append_term(self._store, self._writer, self._metadata, change, self._clock.message_ms())
        self._writer.when_flushed(end, lambda: self._found_flushed(end, vote))

    def _found_flushed(self, end: int, vote: Vote) -> None:
        if self._store.marks.flushed.offset >= end:  # else the store has failed, and logs it
            try:
                self._promise(vote)
            except (KappaError, OSError) as error:
                self._stop_taking_part(str(error))

    def _promise(self, vote: Vote) -> None:
        self._files.save_vote(vote)
        self._begin(vote)
        self._vote = vote  # if one of the two fails, the next connection tries again

    # -- events ------------------------------------------------------------------------------------------------------------

    def now(self) -> float:
        return self._clock.liveness() * 1000

    def _tick(self) -> None:
        self._ticking = asyncio.get_running_loop().call_later(_TICK_S, self._tick)
        node = self.node
        if self.why_stopped is None:
            self.connections.meet(self.roster.others())
        if node is not None and not self.seeding.is_pending:  # a follower's tick could only make it stand
            node.may_lead(self._fitness.may_lead(node, self.now()))
            self.event(lambda: node.tick(self.now()))

    def written(self, start: int, data: bytes) -> None:
        """A turn of the leader has written."""
        node = self.node
        if node is not None and node.leadership is not None and not self._ordering:
            self._trim(node)
            self._ask(lambda: node.appended(self._store.log.end))

    def flushed(self, offset: int) -> None:
        node = self.node
        if node is not None and not node.log.cutting:
            self._ask(lambda: node.flushed(min(offset, node.log.end), node.log.generation))

    def event(self, call: Callable[[], list[Effect]]) -> None:
        if self.why_stopped is None and self.node is not None and self.node.leadership is not None:
            self._writer.end_turn()  # the node must know the end of its log before any other event
        self._ask(call)

    def _ask(self, call: Callable[[], list[Effect]]) -> None:
        """Pass an event to the node, and carry out its effects. Not after an impossible event, or a failure of the disk."""
        if self.why_stopped is None and self._store.failed is not None:
            self._stop_taking_part(self._store.failed)
        if self.why_stopped is not None:
            return
        if self.node is not None:
            self._trim(self.node)
        try:
            effects = call()
        except AssertionError as error:
            self._stop_taking_part(f"an invariant is broken: {error}")
        else:
            self._do(effects)

    def _trim(self, node: Node) -> None:
        """The node must know where its log begins before it sends anything."""
        log_min = self._store.log.min
        if log_min > node.log.terms.base.start:
            self._do(node.trimmed(log_min))
            try:
                self._save_terms()
            except OSError as error:  # a start finds in the log what the file does not say
                log.warning("raft: the terms of the log could not be saved: %s", error)

    # -- effects -----------------------------------------------------------------------------------------------------------

    def _do(self, effects: Sequence[Effect]) -> None:
        self._todo.extend(effects)
        if self._doing:
            return
        self._doing = True
        try:
            while self._todo:
                self._one(self._todo.popleft())
        except Exception as error:  # whatever it is, the node's decision was not carried out
            self._stop_taking_part(_reason(error))
        finally:
            self._doing = False

    def _stop_taking_part(self, why: str) -> None:
        """The node's state may not match our disk, or the group: it must not vote, report or lead."""
        if self.why_stopped is not None:
            return
        self.why_stopped = why
        self._todo.clear()
        log.error("raft: this member does not take part until it is restarted: %s", why)
        self.connections.end()  # so that the others need not wait for a timeout
        self._step_down(None)

    def _one(self, effect: Effect) -> None:
        match effect:
            case Persist():
                assert self._vote is not None
                self._vote = self._vote.with_ballot(effect.ballot)
                self._files.save_vote(self._vote)
            case Send():
                self._say(effect.message)
            case Replicate():
                self._replicate(*effect)
            case Write():
                self._write(effect)
            case AppendRecord():
                self._append_record(effect)
            case Cut():
                self._cutting = asyncio.create_task(self._cut(effect))
            case Confirmed():
                self._confirm(effect.offset)
            case RoleChanged():
                self._role_changed(effect)
            case LeaderReady():
                log.info("raft: this broker leads group %s in term %d", self.config.group, effect.term)
                self._follow_tables()  # changes of earlier leaders that were not known to be confirmed until now
                self._role.lead(effect.term)
            case HoldAppends():
                self._hold(effect.holding)
            case Seed():
                self._seed(effect.member)

    def _say(self, message: Message) -> None:
        name, begins = message.target.name, self._store.log.min if isinstance(message, Beat) else 0
        if (peer := self.connections.peer(name)) is not None:
            now_ms = self._fitness.told_to(self.connections.hello(name))
            peer.say(raft_messages.encode(message, log_min=begins, now_ms=now_ms))

    def _replicate(self, append: Append, wanted: int) -> None:
        peer, store, node = self.connections.peer(append.target.name), self._store, self.node
        assert node is not None
        if peer is None:
            return
        if append.start >= store.hot_from:
            end = whole_end(store, append, wanted)
            data = b"".join(pieces(store, append.start, end))
            peer.say(raft_messages.encode(append.ending(end), data))
            self._do(node.sent(append.target, append.stream, end))
        else:
            peer.say_later(self._read(append, wanted))

    async def _read(self, append: Append, wanted: int) -> bytes | None:
        """Read bytes that may have to come from the disk: in a worker."""
        store, node = self._store, self.node
        try:
            end = await self._worker(whole_end, store, append, wanted)
            data = b"".join(await self._worker(pieces, store, append.start, end))
            await self._worker(require_good, store, append.start, data)
        except KappaError:
            self._mender.suspect(append.start)  # the next bytes may be good
            raise
        if node is None or node.leadership is None or node.term != append.term:
            return None  # the bytes read may be another leader's already, which has cut off ours
        self._ask(lambda: node.sent(append.target, append.stream, end))
        return raft_messages.encode(append.ending(end), data)

    def _write(self, effect: Write) -> None:
        # Terms come first, so that all bytes have a known term. But several terms and no log mean that a log was lost.
        begins = self._store.log.end == self._store.log.min
        if effect.records and not begins:
            self._save_terms()
        if self._store.log.is_cramped_behind(effect.end):
            self._next_file.finish()
        at, data = effect.start, self._incoming
        while at < effect.end:
            part = data[at - effect.start :]
            end = self._writer.store_copy(at, part)
            if end == at:
                raise StoreError(f"what the leader has sent from {at} on ends within a record")
            at = end
        if at != effect.end:
            raise StoreError(f"what the leader has sent was to end at {effect.end} and ends at {at}")
        if effect.records and begins:
            self._save_terms()

    def _append_record(self, effect: AppendRecord) -> None:
        """The first record of our term, or a change of members."""
        node = self.node
        assert node is not None
        change = term_change(effect.term, node.me, effect.members, self.group_id, begin := node.log.end)
        self._save_terms(TermRecord(begin, effect.term, effect.members))
        self._ordering = True
        try:
            end = append_term(self._store, self._writer, self._metadata, change, self._clock.message_ms())
        finally:
            self._ordering = False
        self._do(node.record_appended(begin, end, effect.members, self.now()))

    def _save_terms(self, *coming: TermRecord) -> None:
        assert self.node is not None
        terms = self.node.log.terms
        self._files.save_terms(Terms(terms.base, (*terms.records, *coming)), self.group_id)

    async def _cut(self, effect: Cut) -> None:
        """Cut our log to the part that the leader's contains, too. Nothing above was visible or entered anywhere."""
        node = self.node
        assert node is not None
        try:
            async with self._upkeep.files_at_rest():
                self._next_file.finish()
                end = self._store.log.end
                log.warning("raft: the log is cut from %d to %d, to what the leader has, too", end, effect.offset)
                self._writer.cut(effect.offset)
                self._save_terms()
        except Exception as error:
            self._stop_taking_part(_reason(error))
            return
        self.event(lambda: node.cut_done(effect.generation, self.now()))

    def _confirm(self, offset: int) -> None:
        self.confirmed = offset
        self._writer.follow_marks()
        if self.node is not None and self.node.leadership is None:
            self._follow_tables()

    def _follow_tables(self) -> None:
        """Apply changes that others have recorded."""
        for change in self._metadata.follow():
            self._tables.followed(*change)

    def _role_changed(self, effect: RoleChanged) -> None:
        log.info("raft: term %d, %s, leader %s", effect.term, effect.role, effect.leader or "unknown")
        if effect.role is not Role.LEADER:
            self._step_down(effect.leader)
        else:
            # The leader applies changes when it appends them; all earlier changes must be in the tables by then.
            self._gate.open(TRANSFERRING)

    def _step_down(self, leader: MemberId | None) -> None:
        if self._role.is_held:
            self._metadata.distrust()
        self._name_leader(leader)
        self._gate.open(TRANSFERRING)
        if self._role.is_master:
            self._writer.give_up("this broker is not the leader of its group any more")
        self._role.follow(self.node.term if self.node is not None else 0)

    def _name_leader(self, leader: MemberId | None) -> None:
        """Refuse a write with the address of the leader, if it is known."""
        self._gate.close(NOT_MASTER, not_master(self.client_address(leader)), for_all=True)

    @property
    def group_id(self) -> str:
        """The id of the group's founding; "" before this member belongs to one."""
        return self._vote.group_id if self._vote is not None else ""

    def places(self) -> list[str]:
        """The addresses of the other members, connected ones first."""
        others, connected = self.roster.others(), self.connections.connected_to()
        return [others[name] for name in sorted(others, key=lambda name: name not in connected)]

    def client_address(self, leader: MemberId | None) -> str | None:
        hello = self.connections.hello(leader.name) if leader is not None else None
        return hello.address if hello is not None else None

    def _hold(self, holding: bool) -> None:
        if holding:
            self._gate.close(
                TRANSFERRING, Busy("the leadership of this broker's group is being transferred: try again")
            )
        else:
            self._gate.open(TRANSFERRING)

    def _seed(self, member: MemberId) -> None:
        peer = self.connections.peer(member.name)
        if peer is not None:
            peer.tell_to_seed()


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, (KappaError, OSError)) else f"{type(error).__name__}: {error}"
