"""The whole broker: builds its parts from each other, starts and stops them; no other logic."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Self

from kappamq import native
from kappamq.broker.admin.administration import Administration
from kappamq.broker.admin.runtime_info import Others
from kappamq.broker.clients.consumer_requests import Consumers
from kappamq.broker.clients.expiry import ClientExpiry
from kappamq.broker.clients.group_notices import GroupNotices
from kappamq.broker.copies.copies import Copies
from kappamq.broker.delivery.delivery import Delivery, new_timer_book
from kappamq.broker.events import (
    ConnectionLost,
    LogFilePrepared,
    MasterFound,
    MembersChanged,
    SentBack,
    Subscribed,
    Tick,
)
from kappamq.broker.foundation import Foundation, Setup
from kappamq.broker.machine import Machine, within_descriptors
from kappamq.broker.pulling.pulling import Pulling
from kappamq.broker.requests.bursts import Bursts
from kappamq.broker.requests.table import REQUESTS
from kappamq.broker.roles import MasterRole
from kappamq.broker.sending.appending import Appender
from kappamq.broker.telemetry.stats import Stats
from kappamq.broker.timers.admin import TimerAdmin
from kappamq.broker.timers.follower import TimerFollower
from kappamq.broker.transactions.half_fold import HalfFold
from kappamq.broker.transactions.half_follower import HalfFollower
from kappamq.broker.upkeep.clock_watch import ClockWatch
from kappamq.broker.upkeep.damage import Counts, EntryRepair, LostPages
from kappamq.broker.upkeep.queue_ends import QueueEndsKeeper
from kappamq.broker.upkeep.scrub import Scrubber
from kappamq.broker.upkeep.topic_files import TopicFiles
from kappamq.broker.upkeep.upkeep import Upkeep
from kappamq.clock import Clock, WatchedClock
from kappamq.config.broker import BrokerConfig
from kappamq.config.copies import CopiesConfig
from kappamq.config.net import NetConfig
from kappamq.config.shapes import Caution, cautions
from kappamq.config.store import StoreConfig
from kappamq.errors import StoreError
from kappamq.net.serving.exposure import warn_if_exposed
from kappamq.net.serving.server import Server
from kappamq.protocol.records.ids import UniqueIds
from kappamq.state.events import CommitsRecorded, SettingsChanged, TopicChanged, TopicDeleted
from kappamq.store.files import Files

log = logging.getLogger(__name__)


class Broker:
    """`open` returns a broker with an open store and loaded tables; `start` begins to serve; `stop` ends either."""

    @classmethod
    async def open(
        cls,
        config: BrokerConfig,
        store: StoreConfig,
        net: NetConfig,
        clock: Clock,
        kernel: str = "auto",
        files: Files | None = None,
        copies: CopiesConfig | None = None,
        machine: Machine | None = None,
    ) -> Self:
        """Raises StoreError, and leaves nothing open then."""
        store, net = within_descriptors(store, net)
        setup = Setup(
            config=replace(config),
            store=store,
            net=net,
            copies=copies or CopiesConfig(),
            clock=WatchedClock(clock),
            files=files or Files(),
            machine=machine or Machine(),
            kernel_module=native.load(os.environ.get("KAPPAMQ_KERNEL", kernel)),
        )
        stops = AsyncExitStack()
        try:
            return cls(await Foundation.build(setup, stops))
        except BaseException:
            await stops.aclose()
            raise

    def __init__(self, base: Foundation) -> None:
        """Build everything that lives as long as the process; the role builds the parts that need the right to write, each time it
        begins."""
        self._base, self._stops = base, base.stops
        setup = base.setup
        self.config, self.store_config, self.net_config = setup.config, setup.store, setup.net
        self.copies_config, self.clock, self.kernel_module = setup.copies, setup.clock, setup.kernel_module
        self.port, self.events, self.reader, self.run = base.port, base.events, base.reader, base.run
        self.kernel, self.store, self.recovered, self.parked = base.kernel, base.store, base.recovered, base.parked
        self.seeding, self.outlet, self.node_role = base.seeding, base.outlet, base.node_role
        self.workers, self.gate, self.next_file, self.writer = base.workers, base.gate, base.next_file, base.writer
        self.metadata, self.clients, self.delivery_tables = base.metadata, base.clients, base.delivery_tables
        self.tables = tables = base.tables
        self.topics, self.groups, self.offsets, self.locks = tables.topics, tables.groups, tables.offsets, tables.locks
        self.pending_resets, self.settings, self.queue_ends = tables.pending_resets, tables.settings, tables.queue_ends
        self.address_of, self.registration = base.address_of, base.registration

        # Parts that read: pulls, and repairs of unreadable data.
        store, writer, events, clock = self.store, self.writer, self.events, self.clock
        read, write = self.workers.read, self.workers.write
        self.damage = Counts()
        self.lost_pages = LostPages(store, self.damage, read, self.run, writer.flush_done, self._suspect)
        repairs = EntryRepair(
            store, self.damage, self.lost_pages, read, write, self.run, self.kernel.delays_ms, self._from_copy
        )
        self.pulling = Pulling(base, repairs)
        self.pulls, self.subscriptions, self.filtering = (
            self.pulling.pulls,
            self.pulling.subscriptions,
            self.pulling.filtering,
        )
        self.stats = Stats(self.kernel, clock, self.config.cluster, store.log.end, read, lambda: self.pulls.missed)

        # Upkeep of the store, and its copies.
        self.upkeep = Upkeep(base, self.stats.entered)
        self._stops.push_async_callback(self.upkeep.stop)
        self.copies = Copies(base, self.upkeep, self.damage, self.lost_pages, self._end_with)
        self._stops.push_async_callback(self.copies.stop)
        self.topic_files = TopicFiles(store, writer, self.upkeep, self.workers, self.run)
        self.queue_ends_keeper = QueueEndsKeeper(
            self.queue_ends, store, read, self.upkeep.write_derived, writer.confirmed
        )
        self.upkeep.keep_for(*self.copies.keepers(), self.queue_ends_keeper)
        self.own_records = Appender(self.kernel, writer, self.metadata, clock)
        self.clock_watch = ClockWatch(
            clock,
            store,
            tables.clock,
            self.delivery_tables.timer_progress,
            self.own_records,
            base.boot_id,
            events,
            self.gate,
        )

        # Connected clients, and requests.
        self.notices = GroupNotices(self.config, self.groups, self.reader.turns, self.run)
        self.client_expiry = ClientExpiry(self.clients, clock)
        self.consumers = Consumers(base, self.pulling, self.stats.begin_queried)
        self.bursts = Bursts(self.kernel, writer, clock, self.net_config, self.reader, self.pulls, events)
        self.server = Server(self.bursts, self.net_config, clock)
        self._stops.push_async_callback(self.server.stop)
        unique_ids = UniqueIds(self.address_of.packed[:-4], os.getpid(), id(self) & 0xFFFFFFFF)
        self.half_follower = HalfFollower(
            lambda: HalfFold(self.config, clock, store, self.offsets),
            read,
            self.run,
            may_lead=self.copies_config.group is not None,
        )
        self.timer_follower = TimerFollower(
            store,
            lambda: new_timer_book(base),
            self.delivery_tables.timer_progress,
            clock.message_ms,
            self.run,
            self.metadata.is_trusted,
            may_lead=self.copies_config.group is not None,
        )
        self._stops.push_async_callback(self.timer_follower.stop)
        followers = self.half_follower, self.timer_follower
        self.role = MasterRole(base, unique_ids, self.bursts, self.upkeep, self.clock_watch, *followers)
        self.timer_admin = TimerAdmin(self.role.timers, self.delivery_tables.timer_metrics, clock)
        self.scrubber = Scrubber(
            store,
            self.damage,
            clock,
            write,
            self.upkeep.write_snapshot_again,
            self.role.timers,
            self.topics.first_offset,
            self.copies.mender.mend,
        )
        self._stops.push_async_callback(self.scrubber.stop)
        self.administration = Administration(
            base, self.pulling, self.own_records, self.upkeep, self.topic_files, self.stats, self._others()
        )
        for part in (
            self.pulls,
            self.consumers,
            self.filtering,
            self.delivery_tables.delay_positions,
            self.timer_admin,
            self.administration,
            self.copies.status,
        ):
            self.bursts.add_handlers(part.handlers())
        REQUESTS.check(self.bursts.handlers)
        self._subscribe()
        self._is_serving = False
        self._roles: asyncio.Task[None] | None = None
        self._unfit: asyncio.Future[StoreError] = asyncio.get_running_loop().create_future()

    def _subscribe(self) -> None:
        """Subscribe parts to events, besides those of tables and pulls; listeners are called in this order."""
        events = self.events
        events.on(TopicChanged, self.registration.topic_has_changed)
        events.on(TopicDeleted, self.topic_files.topic_deleted)
        events.on(TopicDeleted, self.stats.topic_deleted)
        events.on(CommitsRecorded, self.stats.commits_recorded)
        events.on(SettingsChanged, self.registration.settings_changed)
        events.on(SettingsChanged, self._base.kernel_copies.settings_changed)
        events.on(Subscribed, self.consumers.subscribed)
        events.on(MembersChanged, self.notices.members_changed)
        events.on(SentBack, self.stats.sent_back)
        events.on(ConnectionLost, self.client_expiry.connection_lost)
        events.on(MasterFound, self.copies.master_found)
        events.on(MasterFound, self.role.master_found)
        events.on(LogFilePrepared, self.writer.log_file_prepared)
        for part in (self.copies, self.clock_watch, self.pulls, self.client_expiry, self.lost_pages, self.stats):
            events.on(Tick, part.ticked)
        events.on(Tick, self.half_follower.ticked)
        events.on(Tick, self.timer_follower.ticked)

    def _suspect(self, log_offset: int) -> None:
        self.copies.mender.suspect(log_offset)

    async def _from_copy(self, log_offset: int) -> bool:
        return await self.copies.mender.mend_at(log_offset)

    def _others(self) -> Others:
        return Others(
            connections=lambda: len(self.server.connections),
            timers=self.timer_admin.runtime,
            delay_position=self.delivery_tables.delay_positions.position,
            parked_pulls=lambda: self.parked.count,
            conflicts=self.clients.conflicts,
            wall_clock=self.clock_watch.runtime,
            damage=lambda: {**self.damage.table(), **self.copies.mender.table(), **self.scrubber.table()},
            staged=self.delivery_tables.staged.runtime,
            copies=self.copies.status.runtime,
            cautions=self.cautions,
        )

    # -- its life ----------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Listen and register. Returns when clients can send and pull."""
        try:
            await self._serve()
        except BaseException:
            await self._stops.aclose()
            raise
        self._is_serving = True

    async def _serve(self) -> None:
        # Requests served from here on use message time, so it must be known first.
        self.clock_watch.begin(ours=self.recovered.writer != "foreign")
        self.settings.restore()
        self.upkeep.start()
        self._stops.push_async_callback(self.end_role)
        if self.copies_config.group is not None:
            self.copies.take_part(self.recovered)
            self._roles = asyncio.create_task(
                self.node_role.run(self._begin_leading, self._end_leading, self.registration.role_changed)
            )
            self._stops.push_async_callback(self._stop_roles)
        elif self.copies_config.is_slave:
            self.copies.follow()
        else:
            await self.begin_role()
        host = self.config.listen_host
        *listeners, for_copies = self._base.listeners or self._base.bind_ports()
        for listener in listeners:
            self.server.serve(listener)
        await self.copies.listen(for_copies)
        if self.store.log.min:  # ends that an earlier version, or a Java broker, did not record
            self.run(self.queue_ends_keeper.renew_below(self.store.log.min))
        self.scrubber.start()
        self.reader.start()
        warn_if_exposed(f"broker {self.config.name}", host)
        for caution in self.cautions():
            log.warning("broker %s: %s", self.config.name, caution)
        await self.registration.start()

    async def stop(self) -> None:
        """Unregister, disconnect clients, write everything to disk."""
        if not self._is_serving:
            await self._stops.aclose()
            return
        self._is_serving = False
        self._stops.pop_all()  # here the parts end in another order than at a failed start, since clients are served meanwhile
        self.bursts.stop()
        self.pulls.repairs.stop()
        self.half_follower.stop()
        try:
            await self.timer_follower.stop()
            await self.registration.stop()
            await self.server.stop_listening()
            await self.scrubber.stop()
            self.writer.end_turn()
            await self._base.jobs.finish(self.config.stop_timeout_ms / 1000)
            await self.server.stop()
            self.reader.stop()
            await self.copies.end_following()
            await self._stop_roles()
            await self.end_role()  # not before: until now clients could commit offsets
            await self.copies.stop()
            await self.upkeep.stop()
        finally:
            self.store.close()

    # -- the role that may write -------------------------------------------------------------------------------------------

    async def begin_role(self) -> None:
        """Become the master: this node stores and delivers messages from now on. Raises StoreError if its store is incomplete."""
        self.seeding.demand_whole()
        await self.copies.end_following()
        self.copies.lead()
        await self.role.begin()

    async def end_role(self) -> None:
        """Become a slave: this node answers pulls and queries, and refuses requests that would store something."""
        drain_s = self.store_config.sync_flush_timeout_ms / 1000
        had_it = self.role.is_held
        await self.role.end(drain_s)
        await self.copies.end_leading(drain_s if had_it else 0)

    async def _begin_leading(self, still: Callable[[], bool]) -> None:
        """The Raft group has decided that this node leads, and everything before its term is confirmed."""
        await self.role.begin(still)

    async def _end_leading(self) -> None:
        """Another member leads, or none. Unconfirmed changes of our tables are void."""
        await self.role.end(0)
        if self.metadata.trust_again():
            for change in self.metadata.follow():  # what the other leader has recorded meanwhile
                self.tables.followed(*change)
            return
        async with self.upkeep.files_at_rest():  # a topic may be forgotten, and snapshots are read
            answered = self.offsets.answered()
            self.metadata.reset()
            for note in self._base.load_tables():
                log.warning("%s", note)
            self.offsets.keep(answered)

    async def _stop_roles(self) -> None:
        """The group's decisions change nothing any more."""
        if self._roles is not None:
            self._roles.cancel()
            await asyncio.gather(self._roles, return_exceptions=True)

    @property
    def delivery(self) -> Delivery:
        """Raises NotMaster while this node does not have the role."""
        return self.role.delivery

    # -- seen from outside -------------------------------------------------------------------------------------------------

    @property
    def address(self) -> str:
        return self._base.address

    def cautions(self) -> list[Caution]:
        """Return warnings for the operator about the configuration of copies."""
        return cautions(replace(self.config, port=self.port), self.copies_config)

    def _end_with(self, error: StoreError) -> None:
        log.error("%s", error)
        if not self._unfit.done():
            self._unfit.set_result(error)

    async def unfit(self) -> StoreError:
        """Return, with the reason, when this broker cannot go on and must be stopped and started again. Usually this never returns."""
        return await asyncio.shield(self._unfit)
