"""The whole machine: builds the parts of a broker from each other; no other logic."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace

from kappamq import native
from kappamq.broker.admin.administration import Administration
from kappamq.broker.admin.runtime_info import Others
from kappamq.broker.clients.consumer_requests import Consumers
from kappamq.broker.clients.expiry import ClientExpiry
from kappamq.broker.clients.group_notices import GroupNotices
from kappamq.broker.clients.registry import Clients
from kappamq.broker.copies.copies import Copies
from kappamq.broker.copies.node_role import NodeRole
from kappamq.broker.copies.outlet import Outlet
from kappamq.broker.copies.seeding.asking import Seeding
from kappamq.broker.delivery.delivery import Delivery, DeliveryTables, Surroundings
from kappamq.broker.events import (
    ConnectionLost,
    LogFilePrepared,
    MasterFound,
    MembersChanged,
    SentBack,
    Subscribed,
    Tick,
)
from kappamq.broker.machine import KernelCopies, Machine, new_kernel, within_descriptors
from kappamq.broker.naming.address import Address
from kappamq.broker.naming.ports import bind_free_ports, close_all
from kappamq.broker.naming.registration import Registration
from kappamq.broker.pulling.parked import ParkedPulls
from kappamq.broker.pulling.pulling import Pulling
from kappamq.broker.requests.bursts import Bursts
from kappamq.broker.requests.table import REQUEST_SIZES, REQUESTS
from kappamq.broker.roles import MasterRole
from kappamq.broker.sending.appending import Appender
from kappamq.broker.sending.gate import NOT_MASTER, Gate, not_master
from kappamq.broker.sending.log_writer import LogWriter
from kappamq.broker.tables import Tables
from kappamq.broker.telemetry.stats import Stats
from kappamq.broker.timers.admin import TimerAdmin
from kappamq.broker.upkeep.clock_watch import ClockWatch
from kappamq.broker.upkeep.damage import Counts, EntryRepair, LostPages
from kappamq.broker.upkeep.jobs import Jobs
from kappamq.broker.upkeep.next_file import NextLogFile
from kappamq.broker.upkeep.queue_ends import QueueEndsKeeper
from kappamq.broker.upkeep.scrub import Scrubber
from kappamq.broker.upkeep.topic_files import TopicFiles
from kappamq.broker.upkeep.upkeep import Upkeep
from kappamq.broker.upkeep.workers import Workers
from kappamq.clock import Clock, WatchedClock
from kappamq.config.apache import BrokerSettings
from kappamq.config.broker import BrokerConfig
from kappamq.config.copies import CopiesConfig
from kappamq.config.net import NetConfig
from kappamq.config.shapes import Caution, cautions
from kappamq.config.store import StoreConfig
from kappamq.errors import StoreError
from kappamq.events import Events
from kappamq.net.requests.reader import RequestReader
from kappamq.net.serving.exposure import warn_if_exposed
from kappamq.net.serving.server import Server
from kappamq.net.tls import outgoing_context
from kappamq.protocol.records.ids import UniqueIds
from kappamq.state.events import CommitsRecorded, SettingsChanged, TopicChanged, TopicDeleted
from kappamq.state.metadata import Metadata
from kappamq.store.files import Files
from kappamq.store.message_store import MessageStore
from kappamq.store.recovery import Recovered
from kappamq.store.snapshots import Snapshots

log = logging.getLogger(__name__)


class Broker:
    def __init__(
        self,
        config: BrokerConfig,
        store: StoreConfig,
        net: NetConfig,
        clock: Clock,
        kernel: str = "auto",
        files: Files | None = None,
        copies: CopiesConfig | None = None,
        machine: Machine | None = None,
    ) -> None:
        # Copies: settings changed at run time are written into them.
        self.config, self.store_config, self.net_config = replace(config), *within_descriptors(store, net)
        self.copies_config = copies or CopiesConfig()
        self.clock = WatchedClock(clock)
        self._files = files or Files()
        self._machine = machine or Machine()
        self.kernel_module = native.load(os.environ.get("KAPPAMQ_KERNEL", kernel))
        self.port = config.port
        self.recovered = Recovered()
        self.events = Events()
        self._jobs = Jobs()
        self.run = self._jobs.run
        self._started = AsyncExitStack()  # how to stop what was started, should the start fail
        self._running = False
        self._roles: asyncio.Task[None] | None = None
        self._unfit: asyncio.Future[StoreError] | None = None

    async def start(self) -> None:
        """Open the store, listen, register. Returns when clients can send and pull."""
        self.reader = RequestReader(REQUEST_SIZES, self.net_config)
        self._started.callback(self.reader.stop)
        try:
            self._unfit = asyncio.get_running_loop().create_future()
            self.seeding = Seeding(self.copies_config, self.config, self.store_config, self._files, self.kernel_module)
            self._open_store(await self.seeding.before_open())
            await self._load_tables()
            self._build()
            self._listen()
            await self._serve()
        except BaseException:
            await self._started.aclose()
            raise
        self._running = True

    def _open_store(self, begin_at: int) -> None:
        config, net = self.config, self.net_config
        self.kernel = new_kernel(self.kernel_module, config, self.store_config, net)
        self.kernel_copies = KernelCopies(self.kernel, self.store_config)
        self.parked = ParkedPulls(
            self.kernel, self.reader.turns, self.run, config.parked_pulls_max, net.connection_inflight_max
        )
        self.outlet = Outlet()
        self.store = MessageStore(
            self.store_config,
            self.kernel_module,
            self.kernel,
            self._files,
            self.parked.grown,
            self.outlet.written,
            self.outlet.flushed,
        )
        self.boot_id = self._machine.boot_id()
        began = time.perf_counter()
        # What a Raft group has not confirmed is shown to nobody, also after a restart.
        known = None if self.copies_config.group is None else 0
        self.recovered = found = self.store.open(self.boot_id, enter_up_to=known, begin_at=begin_at)
        self._started.callback(self.store.close)
        # After a crash whoever starts it wants to know; else only who asks.
        level = logging.INFO if found.clean and not found.rebuilt and not found.damage else logging.WARNING
        log.log(level, "%s", found.story(time.perf_counter() - began))

    async def _load_tables(self) -> None:
        """The one way into the log, and the tables that are made of it."""
        config, net, clock, store, events = self.config, self.net_config, self.clock, self.store, self.events
        self.workers = Workers()
        self._started.callback(self.workers.stop)
        self.gate = Gate(self.kernel)
        copies = self.copies_config
        self.node_role = NodeRole(
            config.broker_id or copies.member_id if copies.group is not None else config.broker_id
        )
        if not self.node_role.is_master:
            self.gate.close(
                NOT_MASTER, not_master(), for_all=True
            )  # from the first moment: loading changes nothing either
        self.next_file = NextLogFile(store.log, self.gate, clock, events, self._machine.new_thread("kappamq-next"))
        self.writer = LogWriter(store, self.gate, clock, net.inflight_bytes_max, self.next_file.finish)
        snapshots = Snapshots(self.store_config.root / "config", store.files)
        self.metadata = Metadata(store, snapshots, clock, bytes(8), self.writer)
        self.clients = Clients(config, events)
        settings = BrokerSettings(broker=config, store=self.store_config, net=net, copies=self.copies_config)
        self.tables = tables = Tables(settings, store, self.metadata, self.clients, events)
        self.topics, self.groups, self.offsets, self.locks = tables.topics, tables.groups, tables.offsets, tables.locks
        self.pending_resets, self.settings, self.queue_ends = tables.pending_resets, tables.settings, tables.queue_ends
        self.delivery_tables = DeliveryTables(config, self.metadata, clock)
        for table in self.delivery_tables.all():
            self.metadata.add(table)
        # Records say where they were stored, also those that loading brings about: first it must be known where we are.
        # A port that is given is not bound before everything is in its place: clients that know it are back at once.
        self._listeners = (
            []
            if config.port
            else bind_free_ports(config.listen_host, net.listen_backlog, self.copies_config.port_given)
        )
        self._started.callback(close_all, self._listeners)
        self.port = config.port or int(self._listeners[0].getsockname()[1])
        self.address_of = Address(config.advertise, self.port, config.listen_host, self.kernel_copies.set_host)
        self.registration = Registration(
            config, self.topics, self.address_of, self.copies_config.port_beside(self.port), self.workers.compute,
            outgoing_context(net), self.node_role, events,
        )  # fmt: skip
        self._started.push_async_callback(self.registration.stop)
        await self.registration.learn_address()
        for note in (*self.recovered.notes, *self._load()):
            log.warning("%s", note)

    def _load(self) -> list[str]:
        filling = self.seeding.is_pending
        fit = self.tables.fit if self.copies_config.group is None else self.tables.fit_member
        return self.metadata.load(self.tables.fit_filling if filling else fit, filling=filling)

    def _build(self) -> None:
        """Everything that lives as long as the process; what needs the right to write is built by the role."""
        config, clock, store, events, reader = self.config, self.clock, self.store, self.events, self.reader
        net = self.net_config
        clients, tables, writer, read, write = (
            self.clients, self.tables, self.writer, self.workers.read, self.workers.write
        )  # fmt: skip
        self.damage = Counts()
        self.lost_pages = LostPages(store, self.damage, read, self.run, writer.flush_done, self._suspect)
        repairs = EntryRepair(
            store,
            self.damage,
            self.lost_pages,
            read,
            write,
            self.run,
            self._from_copy,
        )
        self.pulling = pulling = Pulling(
            config, store, clock, tables, clients, self.parked, repairs, reader, read, self.run, events,
            lambda: self.gate.has(NOT_MASTER),
        )  # fmt: skip
        self.pulls, self.subscriptions, self.filtering = pulling.pulls, pulling.subscriptions, pulling.filtering
        self.stats = Stats(self.kernel, clock, config.cluster, store.log.end, read, lambda: self.pulls.missed)
        self.upkeep = Upkeep(
            config, store, writer, self.next_file, self.workers, self.gate, self.metadata, self.offsets, clock, events,
            self.stats.entered, self.delivery_tables.saved_seldom,
        )  # fmt: skip
        self._started.push_async_callback(self.upkeep.stop)
        self.copies = Copies(
            self.copies_config, config, store, writer, self.metadata, tables, self.upkeep, self.next_file, self.gate, clock,
            self.outlet, self.node_role, lambda: self.address, read, events, outgoing_context(net),
            self.seeding, self._end_with, self.damage, self.lost_pages, write, self.run,
            self.copies_config.port_beside(self.port),
        )  # fmt: skip
        self._started.push_async_callback(self.copies.stop)
        self.upkeep.keepers.extend(self.copies.keepers())
        self.topic_files = TopicFiles(store, writer, self.upkeep, self.workers, self.run)
        self.queue_ends_keeper = QueueEndsKeeper(
            self.queue_ends, store, read, self.upkeep.write_derived, writer.confirmed
        )
        self.upkeep.keepers.append(self.queue_ends_keeper)
        self.notices = GroupNotices(config, self.groups, reader.turns, self.run)
        self.client_expiry = ClientExpiry(clients, clock)
        self.consumers = Consumers(
            config, store, clock, self.topics, self.groups, clients, self.offsets, self.pending_resets, self.subscriptions,
            self.filtering, read, reader.turns, self.stats.asked, self.delivery_tables.filters.subscribed,
        )  # fmt: skip
        self.own_records = Appender(store, writer, self.metadata, clock)
        self.clock_watch = ClockWatch(
            clock, store, tables.clock, self.delivery_tables.timer_progress, self.own_records, self.boot_id, events, self.gate
        )  # fmt: skip
        self.bursts = Bursts(store, writer, clock, self.net_config, reader, self.pulls, events)
        self.server = Server(self.bursts, self.net_config, clock)
        self._started.push_async_callback(self.server.stop)
        self.role = MasterRole(self._surroundings(), self.bursts, self.upkeep, self.clock_watch)
        self.timer_admin = TimerAdmin(self.role.timers, self.delivery_tables.timer_metrics, clock)
        self.scrubber = Scrubber(
            store, self.damage, clock, write, self.upkeep.write_snapshot_again, self.role.timers, self.topics.first_offset,
            self.copies.mender.mend,
        )  # fmt: skip
        self._started.push_async_callback(self.scrubber.stop)
        self.administration = Administration(
            config, store, clock, tables, clients, pulling, self.delivery_tables.filters, writer, self.own_records, self.gate,
            self.workers, self.upkeep, self.topic_files, reader, self.stats, self.address_of, self.registration.announced, self._others(),
        )  # fmt: skip
        for part in (
            self.pulls, self.consumers, self.filtering, self.delivery_tables.delay_positions, self.timer_admin, self.administration,
            self.copies.status,
        ):  # fmt: skip
            self.bursts.add_handlers(part.handlers())
        REQUESTS.check(self.bursts.handlers)

    def _surroundings(self) -> Surroundings:
        return Surroundings(
            self.config, self.clock, self.store, self.writer, self.gate, self.metadata, self.events, self.topics, self.groups,
            self.clients, self.offsets, self.locks, self.delivery_tables, self.reader,
            UniqueIds(self.address_of.packed[:-4], os.getpid(), id(self) & 0xFFFFFFFF), self.workers.read,
            self.upkeep.write_derived, self.run, self.registration.announced, lambda: self.address,
            outgoing_context(self.net_config), self.boot_id,
        )  # fmt: skip

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

    def cautions(self) -> list[Caution]:
        """What an operator should know about how copies are configured."""
        return cautions(replace(self.config, port=self.port), self.copies_config)

    def _listen(self) -> None:
        """Who hears what, besides what tables and pulls listen to; listeners are called in this order."""
        events = self.events
        events.on(TopicChanged, self.registration.topic_has_changed)
        events.on(TopicDeleted, self.topic_files.topic_deleted)
        events.on(TopicDeleted, self.stats.topic_deleted)
        events.on(CommitsRecorded, self.stats.commits_recorded)
        events.on(SettingsChanged, self.registration.settings_changed)
        events.on(SettingsChanged, self.kernel_copies.settings_changed)
        events.on(Subscribed, self.consumers.subscribed)
        events.on(MembersChanged, self.notices.members_changed)
        events.on(SentBack, self.stats.sent_back)
        events.on(ConnectionLost, self.client_expiry.connection_lost)
        events.on(MasterFound, self.copies.master_found)
        events.on(MasterFound, self.role.master_found)
        events.on(LogFilePrepared, self.writer.log_file_prepared)
        for part in (self.copies, self.clock_watch, self.pulls, self.client_expiry, self.lost_pages, self.stats):
            events.on(Tick, part.ticked)

    async def _serve(self) -> None:
        # What is served from here on counts by message time: first it must be clear what that is.
        self.clock_watch.begin(ours=self.recovered.writer != "foreign")
        self.settings.restore()
        self.upkeep.start()
        self._started.push_async_callback(self.end_role)
        if self.copies_config.group is not None:
            self.copies.take_part(self.recovered)
            self._roles = asyncio.create_task(
                self.node_role.run(self._begin_leading, self._end_leading, self.registration.role_changed)
            )
            self._started.push_async_callback(self._stop_roles)
        elif self.copies_config.is_slave:
            self.copies.follow()
        else:
            await self.begin_role()
        host, backlog = self.config.listen_host, self.net_config.listen_backlog
        *listeners, for_copies = self._listeners or self._machine.bind_ports(
            host, self.port, backlog, self.copies_config.port_given
        )
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

    # -- the role that may write -------------------------------------------------------------------------------------------

    async def begin_role(self) -> None:
        """This node is the master from now on: it stores and delivers messages. Raises StoreError if its store is not whole."""
        self.seeding.demand_whole()
        await self.copies.end_following()
        self.copies.lead()
        await self.role.begin()

    async def end_role(self) -> None:
        """Another node is the master: this one answers pulls and queries, and refuses what would have to be stored."""
        drain_s = self.store_config.sync_flush_timeout_ms / 1000
        had_it = self.role.is_held
        await self.role.end(drain_s)
        await self.copies.end_leading(drain_s if had_it else 0)

    async def _begin_leading(self, still: Callable[[], bool]) -> None:
        """The Raft group has decided that this node leads, and everything before its term is confirmed."""
        await self.role.begin(still)

    async def _end_leading(self) -> None:
        """Another member leads, or none. What our tables have that nobody has confirmed is not true any more."""
        await self.role.end(0)
        async with self.upkeep.files_at_rest():  # a topic may be forgotten, and snapshots are read
            answered = self.offsets.answered()
            self.metadata.reset()
            for note in self._load():
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
        return self.address_of.of(None)

    def _end_with(self, error: StoreError) -> None:
        log.error("%s", error)
        if self._unfit is not None and not self._unfit.done():
            self._unfit.set_result(error)

    async def unfit(self) -> StoreError:
        """Returns, with the reason, when this broker cannot go on and is to be stopped and started again. Mostly it never does."""
        assert self._unfit is not None, "it was not started"
        return await asyncio.shield(self._unfit)

    async def stop(self) -> None:
        """Sign off, let go of clients, bring everything to disk."""
        if not self._running:
            return
        self._running = False
        self.bursts.stop()
        self.pulls.repairs.stop()
        try:
            await self.registration.stop()
            await self.server.stop_listening()
            await self.scrubber.stop()
            self.writer.end_turn()
            await self._jobs.finish(self.config.stop_timeout_ms / 1000)
            await self.server.stop()
            self.reader.stop()
            await self.copies.end_following()
            await self._stop_roles()
            await self.end_role()  # not before: until now clients could commit offsets
            await self.copies.stop()
            await self.upkeep.stop()
        finally:
            self.store.close()
