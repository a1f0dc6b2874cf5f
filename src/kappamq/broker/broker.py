"""The whole machine: builds the parts of a broker from each other; no other logic."""

from __future__ import annotations

import logging
import os
import time
from contextlib import AsyncExitStack
from dataclasses import replace

from kappamq import native
from kappamq.broker.admin.administration import Administration
from kappamq.broker.admin.runtime_info import Others
from kappamq.broker.clients.consumer_requests import Consumers
from kappamq.broker.clients.expiry import ClientExpiry
from kappamq.broker.clients.group_notices import GroupNotices
from kappamq.broker.clients.lock_requests import Locking
from kappamq.broker.clients.registry import Clients
from kappamq.broker.delivery.agenda import Agenda
from kappamq.broker.delivery.delivery import Delivery
from kappamq.broker.events import (
    ClockStepped,
    ConnectionLost,
    LogFilePrepared,
    MembersChanged,
    SentBack,
    Subscribed,
    Tick,
)
from kappamq.broker.machine import KernelCopies, boot_id, new_kernel, within_descriptors
from kappamq.broker.naming.address import Address
from kappamq.broker.naming.ports import bind_free_pair, bind_pair, close_all
from kappamq.broker.naming.registration import Registration
from kappamq.broker.pulling.parked import ParkedPulls
from kappamq.broker.pulling.pulling import Pulling
from kappamq.broker.requests.bursts import Bursts
from kappamq.broker.requests.table import REQUEST_SIZES, REQUESTS
from kappamq.broker.sending.appending import Appender
from kappamq.broker.sending.gate import Gate
from kappamq.broker.sending.log_writer import LogWriter
from kappamq.broker.sending.send import Sends
from kappamq.broker.sending.send_requests import SendRequests
from kappamq.broker.tables import Tables
from kappamq.broker.telemetry.stats import Stats
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
from kappamq.config.net import NetConfig
from kappamq.config.store import StoreConfig
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
    ) -> None:
        # Copies: settings changed at run time are written into them.
        self.config, self.store_config, self.net_config = replace(config), *within_descriptors(store, net)
        self.clock = WatchedClock(clock)
        self._files = files or Files()
        self.kernel_module = native.load(os.environ.get("KAPPAMQ_KERNEL", kernel))
        self.port = config.port
        self.recovered = Recovered()
        self.events = Events()
        self._jobs = Jobs()
        self.run = self._jobs.run
        self._started = AsyncExitStack()  # how to stop what was started, should the start fail
        self._running = False

    async def start(self) -> None:
        """Open the store, listen, register. Returns when clients can send and pull."""
        self.reader = RequestReader(REQUEST_SIZES, self.net_config)
        self._started.callback(self.reader.stop)
        try:
            self._open_store()
            await self._start_serving()
        except BaseException:
            await self._started.aclose()
            raise
        self._running = True

    def _open_store(self) -> None:
        config, net = self.config, self.net_config
        self.kernel = new_kernel(self.kernel_module, config, self.store_config, net)
        self.kernel_copies = KernelCopies(self.kernel, self.store_config)
        self.parked = ParkedPulls(
            self.kernel, self.reader.turns, self.run, config.parked_pulls_max, net.connection_inflight_max
        )
        self.store = MessageStore(self.store_config, self.kernel_module, self.kernel, self._files, self.parked.grown)
        self.boot_id = boot_id()
        began = time.perf_counter()
        self.recovered = found = self.store.open(self.boot_id)
        self._started.callback(self.store.close)
        # After a crash whoever starts it wants to know; else only who asks.
        level = logging.INFO if found.clean and not found.rebuilt and not found.damage else logging.WARNING
        log.log(level, "%s", found.story(time.perf_counter() - began))

    async def _start_serving(self) -> None:
        config, net, clock, store, events, reader = (
            self.config, self.net_config, self.clock, self.store, self.events, self.reader
        )  # fmt: skip
        # The log, and the tables that are made of it.
        self.gate = gate = Gate(self.kernel)
        self.next_file = NextLogFile(store.log, gate, clock, events)
        self.writer = writer = LogWriter(store, gate, clock, net.inflight_bytes_max, self.next_file.finish)
        events.on(LogFilePrepared, writer.log_file_prepared)
        self.metadata = Metadata(
            store, Snapshots(self.store_config.root / "config", store.files), clock, bytes(8), writer
        )
        self.clients = clients = Clients(config, events)
        self.tables = tables = Tables(
            BrokerSettings(broker=config, store=self.store_config, net=net), store, self.metadata, clients, events
        )
        self.topics, self.groups, self.offsets, self.locks = tables.topics, tables.groups, tables.offsets, tables.locks
        self.pending_resets, self.settings, self.queue_ends = tables.pending_resets, tables.settings, tables.queue_ends
        self.delivery = Delivery(self)
        for table in self.delivery.tables:
            self.metadata.add(table)
        # Who we are: records that loading the tables brings about say so.
        self.workers = workers = Workers()
        self._started.callback(workers.stop)
        # A port that is given is not bound before everything is in its place: clients that know it are back at once.
        listeners = [] if config.port else bind_free_pair(config.listen_host, net.listen_backlog)
        self._started.callback(close_all, listeners)
        self.port = config.port or int(listeners[0].getsockname()[1])
        self.address_of = Address(config.advertise, self.port, config.listen_host, self.kernel_copies.set_host)
        self.registration = Registration(
            config, self.topics, self.address_of, self.port + 1, workers.read, outgoing_context(net)
        )
        self._started.push_async_callback(self.registration.stop)
        await self.registration.learn_address()
        for note in (*self.recovered.notes, *self.metadata.load(tables.fit)):
            log.warning("%s", note)
        self.locks.begin(clock.liveness())
        # What serves requests.
        self.damage = Counts()
        self.lost_pages = LostPages(store, self.damage, workers.read, self.run, writer.flush_done)
        repairs = EntryRepair(store, self.damage, self.lost_pages, workers.read, workers.write, self.run)
        self.pulling = pulling = Pulling(
            config, store, clock, tables, clients, self.parked, repairs, reader, workers.read, self.run, events
        )
        self.pulls, self.subscriptions, self.filtering = pulling.pulls, pulling.subscriptions, pulling.filtering
        self.stats = Stats(store.kernel, clock, config.cluster, store.log.end, workers.read, lambda: self.pulls.missed)
        self.upkeep = Upkeep(
            config, store, writer, self.next_file, workers, gate, self.metadata, self.offsets, clock, events,
            self.stats.entered,
        )  # fmt: skip
        self._started.push_async_callback(self.upkeep.stop)
        self.topic_files = TopicFiles(store, writer, self.upkeep, workers, self.run)
        self.queue_ends_keeper = QueueEndsKeeper(
            self.queue_ends, store, workers.read, self.upkeep.write_derived, writer.confirmed
        )
        self.upkeep.keepers.append(self.queue_ends_keeper)
        self.appender = Appender(store, writer, self.metadata, clock)
        self.agenda = Agenda(clock)
        unique_ids = UniqueIds(self.address_of.packed[:-4], os.getpid(), id(self) & 0xFFFFFFFF)
        self.sends = Sends(store, config, clock, self.topics, self.appender, unique_ids, gate, self.registration.told)
        self.notices = GroupNotices(config, self.groups, reader.turns, self.run)
        self.client_expiry = ClientExpiry(clients, self.locks, clock)
        self.consumers = Consumers(
            config, store, clock, self.topics, self.groups, clients, self.offsets, self.pending_resets, self.subscriptions,
            self.filtering, workers.read, reader.turns, self.stats.asked,
        )  # fmt: skip
        self.locking = Locking(config, clock, self.topics, self.groups, clients, self.locks, writer, reader)
        # What is served from here on counts by message time: first it must be clear what that is.
        self.clock_watch = ClockWatch(
            clock, store, tables.clock, self.delivery.timer_progress, self.appender, self.boot_id, events
        )
        self._listen()
        self.clock_watch.begin(ours=self.recovered.writer != "foreign")
        self.delivery.serve()
        events.on(ClockStepped, self.delivery.clock_stepped)
        self.scrubber = Scrubber(
            store, self.damage, clock, workers.write, self.upkeep.write_snapshot_again, self.delivery.timers,
            self.topics.first_offset,
        )  # fmt: skip
        self._started.push_async_callback(self.scrubber.stop)
        self.bursts = bursts = Bursts(store, writer, clock, net, reader, self.pulls, events)
        self.server = Server(bursts, net, clock)
        self._started.push_async_callback(self.server.stop)
        self.administration = Administration(
            config, store, clock, tables, clients, pulling, self.delivery.filters, writer, self.appender, gate, workers, self.upkeep,
            self.topic_files, reader, self.stats, self.address_of, self.registration.told, self._others(),
        )  # fmt: skip
        sends = SendRequests(self.sends, config, writer, reader.beside, self.run)
        for part in (sends, self.pulls, self.consumers, self.locking, self.delivery, self.administration):
            bursts.add_handlers(part.handlers())
        REQUESTS.check(bursts.handlers)
        self.settings.restore()
        for listener in listeners or bind_pair(config.listen_host, config.port, net.listen_backlog):
            self.server.serve(listener)
        self.upkeep.start()
        if store.log.min:  # ends that an earlier version, or a Java broker, did not record
            self.run(self.queue_ends_keeper.renew_below(store.log.min))
        self.scrubber.start()
        self.agenda.start()
        reader.start()
        warn_if_exposed(f"broker {config.name}", config.listen_host)
        await self.registration.start()

    def _others(self) -> Others:
        return Others(
            connections=lambda: len(self.server.connections),
            timers=self.delivery.timer_admin.runtime,
            delay_position=self.delivery.delays.position,
            parked_pulls=lambda: self.parked.count,
            conflicts=self.clients.conflicts,
            wall_clock=self.clock_watch.runtime,
            damage=lambda: {**self.damage.table(), **self.scrubber.table()},
        )

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
        for part in (self.clock_watch, self.pulls, self.client_expiry, self.lost_pages, self.stats):
            events.on(Tick, part.ticked)

    # -- seen from outside -------------------------------------------------------------------------------------------------

    @property
    def address(self) -> str:
        return self.address_of.of(None)

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
            await self.agenda.stop()
            await self.delivery.stop()
            self.writer.end_turn()
            await self._jobs.finish(self.config.stop_timeout_ms / 1000)
            await self.server.stop()
            self.reader.stop()
            await self.upkeep.stop()
        finally:
            self.store.close()
