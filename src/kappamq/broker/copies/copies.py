"""The copies of this broker's log, as seen by the rest of the broker: lead, or follow, and what the log's marks wait for."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from kappamq.broker.copies.apache.adopting import Adopting
from kappamq.broker.copies.apache.master import ApacheMaster
from kappamq.broker.copies.consumers.forwarding import Forwarding
from kappamq.broker.copies.consumers.suggesting import Suggesting
from kappamq.broker.copies.following import Following
from kappamq.broker.copies.members.changing import MemberChanges
from kappamq.broker.copies.members.group import Group
from kappamq.broker.copies.members.member_files import MemberFiles
from kappamq.broker.copies.members.operations import GroupOperations
from kappamq.broker.copies.mending.giving import RangeGiver
from kappamq.broker.copies.mending.mender import Mender
from kappamq.broker.copies.question import Questions
from kappamq.broker.copies.seeding.giving import SeedGiver
from kappamq.broker.copies.serving import Followers
from kappamq.broker.copies.status import CopiesStatus
from kappamq.broker.events import MasterFound, Tick
from kappamq.broker.foundation import Foundation
from kappamq.broker.upkeep.damage import Counts, LostPages
from kappamq.broker.upkeep.upkeep import Keeper, Upkeep
from kappamq.config.copies import KAPPAMQ
from kappamq.errors import StoreError
from kappamq.replication.frames import Kind
from kappamq.replication.greeting import Hello, Refusal
from kappamq.replication.ranges import RangeQuestion
from kappamq.store.log.marks import Follower, Mode, RaftGroup, SyncCopies, mode_of
from kappamq.store.recovery import Recovered, fingerprint


class Copies:
    """Process-long. At any time this node leads, follows, or does neither."""

    def __init__(
        self,
        base: Foundation,
        upkeep: Upkeep,
        counts: Counts,
        lost_pages: LostPages,
        unfit: Callable[[StoreError], None],
    ) -> None:
        """`unfit`: called when this node cannot go on and must be restarted."""
        config, broker, store, writer = base.setup.copies, base.config, base.store, base.writer
        metadata, tables, gate, clock = base.metadata, base.tables, base.gate, base.clock
        outlet, role, seeding, events, tls = base.outlet, base.node_role, base.seeding, base.events, base.tls
        next_file, worker, write, run = base.next_file, base.workers.read, base.workers.write, base.run

        def address() -> str:
            return base.address

        self.config = config
        self._broker = broker
        self._store = store
        self._writer = writer
        self._metadata = metadata
        self._upkeep = upkeep
        self._address = address
        self._copies_port = base.copies_port
        self._tables = tables
        self._seeding = seeding
        self._unfit = unfit
        self._role = role
        self.seeds = SeedGiver(config, seeding.asking(), address, self, store, metadata, upkeep, clock, worker)
        self.mender = Mender(config, store, clock, self._who, self._places, counts, lost_pages, worker, write, run)
        self.ranges = RangeGiver(config, store, self._who, worker)
        questions = Questions({Kind.ASK: self.seeds, Kind.FETCH: self.ranges})
        self.group: Group | None = None
        if config.group is not None:
            self.group = Group(
                config, broker, store, writer, metadata, tables, upkeep, next_file, gate, clock, outlet, role, address, worker,
                seeding, self.too_far_behind, questions, self.mender,
            )  # fmt: skip
        self.followers = Followers(config, store, writer, clock, self.greeting, worker, outlet, questions)
        self._master_address: str | None = None  # from the name servers' last answer
        self._master_clients: str | None = None  # where its clients reach it, likewise
        self.following = Following(
            config, store, writer, metadata, tables, clock, self.greeting,
            lambda: config.master_address or self._master_address, upkeep.delete_with_master,
            ApacheMaster(Adopting(metadata, tables, events, worker), lambda: self._master_clients, tls),
            self.too_far_behind,
        )  # fmt: skip
        self.suggesting = Suggesting(config, store, self._reader)
        self.forwarding = Forwarding(tables.offsets, clock, self._writing_now, tls, run)
        operations = GroupOperations(self.group, store, clock) if self.group is not None else None
        self._operations = operations
        changes = MemberChanges(self.group, tables.member_places, clock) if self.group is not None else None
        self.status = CopiesStatus(
            config, broker, store, clock, role, self.followers, self.following, operations, changes
        )

    def greeting(self) -> Hello:
        """This broker's identity in greetings."""
        log_files = self._store.log
        return Hello(
            cluster=self._broker.cluster,
            name=self._broker.name,
            broker_id=self._broker.broker_id,
            address=self._address(),
            segment_bytes=self._store.config.segment_bytes,
            delay_levels=self._broker.delay_levels,
            log_min=log_files.min,
            end=log_files.end,
            crc=fingerprint(self._store, log_files.end) if log_files.end > log_files.min else 0,
            nonce="",
            copies_port=self._copies_port,
        )

    def _who(self) -> RangeQuestion:
        """This broker's identity in requests for bytes of the log, as the asking and as the answering side."""
        return RangeQuestion(
            cluster=self._broker.cluster,
            name=self._broker.name,
            group=self.config.group or "",
            group_id=self.group_id,
            who=self.config.member or str(self._broker.broker_id),
            segment_bytes=self._store.config.segment_bytes,
        )

    def _places(self) -> list[str]:
        """The addresses of other copies of our log that can be asked now."""
        if self.group is not None:
            return self.group.places()
        if self.following.place is not None and self.following.speaks == KAPPAMQ:
            return [self.following.place]
        return self.followers.places()

    def _writing_now(self) -> str | None:
        """Where clients reach the node that writes, if that is another KappaMQ broker, and we have everything it had when we connected."""
        if self._operations is not None:
            return self._operations.leader_met()
        master = self.following.master
        return master.address if master is not None and self.following.shown >= master.end else None

    def _reader(self) -> int:
        """The broker id from which consumers read old messages instead of the master: ours, or that of a copy that keeps up; 0: none."""
        end, lag = self._store.log.end, self.config.lag_bytes_max
        if self._operations is not None:
            return self._operations.reader(self._role.broker_id)
        if self.following.is_active:
            near = self.following.is_connected and self.following.master_end - end <= lag
            return self._role.broker_id if near else 0
        links = [link for link in self.followers.following if link.feed and end - link.feed.written <= lag]
        return min((link.broker_id for link in links if link.broker_id), default=0)

    # -- seeding -----------------------------------------------------------------------------------------------------------

    @property
    def group_id(self) -> str:
        return self.group.group_id if self.group is not None else ""

    def may_seed(self) -> None:
        """Raise Refusal if this node does not lead."""
        if self.group is None:
            self.followers.demand_role()
        elif not self._role.is_master:
            raise Refusal("this member does not lead its group now")

    def terms_at(self, begin: int) -> str:
        return self.group.seeding.terms_at(begin) if self.group is not None else ""

    def too_far_behind(self, leader: str, why: str) -> None:
        """The bytes that would continue our log do not exist any more: the next start is seeded."""
        if self._seeding.is_wanted:
            return
        try:
            self._seeding.want(leader)
        except OSError as error:
            why = f"{why}; and {error}"
        self._unfit(
            StoreError(
                f"{self._store.config.root} cannot be continued: {why}. Start this broker again: it asks for a copy of everything, and "
                f"keeps what is there now aside"
            )
        )

    # -- roles -------------------------------------------------------------------------------------------------------------

    async def listen(self, listener: socket.socket) -> None:
        await self.followers.listen(listener, None if self.group is None else self.group.connections.link)

    def take_part(self, found: Recovered) -> None:
        """This node is a member of a Raft group, which elects its leader. Raises StoreError."""
        assert self.group is not None
        group = self.group
        self._writer.take_mode(RaftGroup(lambda: group.confirmed))
        self._metadata.follow_from_here()
        group.start(found)

    def lead(self) -> None:
        """This node is the master: marks move by its mode, and followers are served. Raises StoreError if its log is a
        member's."""
        MemberFiles(self._store.config.root, self._store.files).demand_none()
        own = mode_of(self._store.config.flush)
        mode: Mode = (
            SyncCopies(own, self.followers.held, self.config.slave_timeout_ms / 1000)
            if self.config.copies_awaited
            else own
        )
        self._writer.take_mode(mode)
        for change in self._metadata.follow():  # messages that the former master had not shown yet
            self._tables.followed(*change)
        self.followers.begin()

    async def end_leading(self, drain_s: float) -> None:
        """Send followers the last bytes that this node has stored, within this time, and then make them look for another master."""
        await self.followers.drain(drain_s)
        self.followers.end()

    def follow(self) -> None:
        """This node copies its master's log. Raises StoreError if it is a member's."""
        MemberFiles(self._store.config.root, self._store.files).demand_none()
        self._writer.take_mode(Follower(mode_of(self._store.config.flush), self.following.marks))
        self._metadata.follow_from_here()
        self.following.begin()

    async def end_following(self) -> None:
        await self.following.end()

    async def stop(self) -> None:
        self.seeds.stop()
        self.ranges.stop()
        await asyncio.gather(self.following.end(), self.followers.stop())
        if self.group is not None:
            await self.group.stop()

    def master_found(self, event: MasterFound) -> None:
        """Note the master's address from a name server."""
        self._master_address, self._master_clients = event.ha_address, event.address

    def keepers(self) -> list[Keeper]:
        """The keepers of old log files."""
        of_role: Keeper = self.followers if self.group is None else self.group.seeding
        return [of_role, self.seeds]

    def ticked(self, event: Tick) -> None:
        self.followers.ticked(event)
        self.following.ticked()
        self.suggesting.look()
        self.forwarding.look()
        self.mender.ticked(event)
        if self._seeding.ticked(self._store):
            self._tables.filled()
