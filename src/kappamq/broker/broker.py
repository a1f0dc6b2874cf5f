"""Builds the parts of a broker and wires them; no other logic."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import time
from collections.abc import Coroutine
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from kappamq import native
from kappamq.broker.admin.administration import Administration
from kappamq.broker.admin.queries import Queries
from kappamq.broker.admin.settings import Settings
from kappamq.broker.clients.consumer_requests import Consumers
from kappamq.broker.clients.group_notices import GroupNotices
from kappamq.broker.clients.registry import Clients
from kappamq.broker.delivery.delivery import Delivery, DeliveryTables, Surroundings
from kappamq.broker.events import LogShortened, Resubscribed
from kappamq.broker.naming.address import Address
from kappamq.broker.naming.registration import Registration
from kappamq.broker.pulling.filtering import Filtering
from kappamq.broker.pulling.kernel_rows import Subscriptions
from kappamq.broker.pulling.pull import Pulls
from kappamq.broker.pulling.read_ahead import ReadAhead
from kappamq.broker.requests.bursts import Bursts
from kappamq.broker.requests.table import REQUESTS
from kappamq.broker.roles import MasterRole
from kappamq.broker.sending.appending import Appender
from kappamq.broker.sending.gate import Gate
from kappamq.broker.sending.log_writer import LogWriter
from kappamq.broker.timers.admin import TimerAdmin
from kappamq.broker.upkeep.clock_watch import ClockTable, ClockWatch
from kappamq.broker.upkeep.damage import Counts, EntryRepair, LostPages
from kappamq.broker.upkeep.queue_ends import QueueEnds
from kappamq.broker.upkeep.scrub import Scrubber
from kappamq.broker.upkeep.upkeep import Upkeep
from kappamq.clock import Clock, WatchedClock
from kappamq.config.broker import BrokerConfig
from kappamq.config.net import NetConfig
from kappamq.config.store import StoreConfig
from kappamq.errors import NotMaster
from kappamq.events import Events
from kappamq.net.serving.exposure import warn_if_exposed
from kappamq.net.serving.limits import shares
from kappamq.net.serving.server import Server
from kappamq.net.tls import outgoing_context
from kappamq.protocol.bodies.topics import TopicConfig
from kappamq.protocol.records.ids import UniqueIds
from kappamq.state.events import GroupChanged, ResetChanged, TopicChanged, TopicDeleted, TopicForgotten
from kappamq.state.groups import Groups
from kappamq.state.locks import QueueLocks
from kappamq.state.metadata import Metadata, Table
from kappamq.state.offsets import Offsets
from kappamq.state.resets import PendingResets
from kappamq.state.topics import Topics
from kappamq.store.files import Files
from kappamq.store.message_store import MessageStore
from kappamq.store.recovery import Recovered
from kappamq.store.snapshots import Snapshots

log = logging.getLogger(__name__)

_PENDING_BYTES_MAX = 4 << 20
_EXPIRE_S = 1.0
_DELETION_SAFE_S = 30.0


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
        self._jobs: set[asyncio.Task[None]] = set()
        self._expire_at = 0.0
        self._started = AsyncExitStack()  # how to stop what was started, should the start fail
        self._running = False

    async def start(self) -> None:
        """Open the store, listen, register. Returns when clients can send and pull."""
        config, clock = self.config, self.clock
        self.kernel = kernel = self.kernel_module.Kernel(
            segment_bytes=self.store_config.segment_bytes, store_host=bytes(8), region=config.region, cluster=config.cluster,
            trace_on=config.trace_on, tail_crc=self.store_config.tail_crc, message_bytes_max=self.store_config.message_bytes_max,
            frame_bytes_max=self.net_config.frame_bytes_max, header_bytes_max=self.net_config.header_bytes_max,
            pending_bytes_max=_PENDING_BYTES_MAX, transfer_bytes_max=self.store_config.transfer_bytes_max,
            transfer_count_max=self.store_config.transfer_count_max,
        )  # fmt: skip
        kernel.delays_ms = config.delays_ms
        self.store = store = MessageStore(self.store_config, self.kernel_module, kernel, self._files)
        self.gate = Gate(kernel)
        self.metadata = Metadata(store, Snapshots(self.store_config.root / "config", store.files), clock, bytes(8))
        self.clients = Clients(config.client_expiry_ms / 1000, config.group_expiry_ms / 1000, self.events)
        commit, now_ms = self.metadata.commit, self.metadata.now_ms
        self.topics = Topics(config, kernel, now_ms, commit, self.events)
        self.groups = Groups(config, now_ms, commit, self.events)
        self.offsets = Offsets(
            now_ms,
            commit,
            self.events,
            end=lambda topic, queue_id: kernel.queue_state(topic, queue_id).end,
            first=self.topics.first_offset,
        )
        self.pending_resets = PendingResets(
            commit, lambda: store.marks.confirmed.offset, self.events, self.clients.member_count
        )
        self.locks = QueueLocks(config.name, config.queue_lock_ms / 1000, commit)
        self.settings = Settings(config, self.store_config, self.net_config, now_ms)
        self.clock_table = ClockTable(store)
        self.queue_ends = QueueEnds(store, self.metadata.commit)
        self.delivery_tables = DeliveryTables(config, self.metadata, clock)
        own: list[Table] = [
            self.topics, self.groups, self.offsets, self.pending_resets, self.locks, self.settings, self.clock_table,
            self.queue_ends,
        ]  # fmt: skip
        for table in own + self.delivery_tables.all():
            self.metadata.add(table)
        self.boot_id = _boot_id()
        began = time.perf_counter()
        self.recovered = found = store.open(self.boot_id)
        # After a crash whoever starts it wants to know; else only who asks.
        level = logging.INFO if found.clean and not found.rebuilt and not found.damage else logging.WARNING
        log.log(level, "%s", found.story(time.perf_counter() - began))
        try:
            await self._start_serving()
        except BaseException:
            await self._give_up()
            raise
        self._running = True

    async def _give_up(self) -> None:
        """Not everything could be started: nothing of it stays."""
        try:
            await self._started.aclose()
        finally:
            self.store.close()

    async def _start_serving(self) -> None:
        config, clock, store, kernel = self.config, self.clock, self.store, self.kernel
        for note in (*self.recovered.notes, *self.metadata.load(self._fit_tables)):
            log.warning("%s", note)
        self.writer = writer = LogWriter(store, self.gate, clock, self.net_config.inflight_bytes_max)
        self.bursts = bursts = Bursts(store, writer, clock, self.net_config)
        self._started.callback(bursts.reader.stop)
        self.server = Server(bursts, self.net_config, clock)
        self._started.push_async_callback(self.server.stop)
        self.port = config.port or await self._start_on_free_pair()
        self.upkeep = Upkeep(
            store, writer, self.gate, self.metadata, self.offsets, clock, self.events, self.delivery_tables.saved_seldom
        )
        self._started.push_async_callback(self.upkeep.stop)
        self.address_of = Address(config.advertise, self.port, config.listen_host)
        self.registration = Registration(
            config, self.topics, self.address_of.of, lambda: self.port + 1, self.upkeep.read, outgoing_context(self.net_config)
        )  # fmt: skip
        self._started.push_async_callback(self.registration.stop)
        self.registration.on_connected = self._address_learnt
        self._address_learnt(await self.registration.local_address())
        self.metadata.go_live(writer)
        self.own_records = Appender(store, writer, self.metadata, clock)
        self.clients.may_notify = self._may_notify
        self.clients.notify = GroupNotices(bursts.reader.turns, self.run).add
        self.subscriptions = Subscriptions(
            kernel,
            lambda group, topic: (
                not self.pending_resets.is_pending(group, topic) or self.clients.is_broadcasting(group)
            ),
        )
        self.filtering = Filtering(config, bursts.reader.beside.run)
        self.damage = Counts()
        self.lost_pages = LostPages(store, self.damage, self.upkeep.read, self.run, writer.flush_done)
        self.pulls = Pulls(
            store, config, clock, self.topics, self.groups, self.clients, self.offsets, self.pending_resets,
            self.subscriptions, self.filtering, self.run, bursts.reader.turns, self.upkeep.read,
            ReadAhead(store, clock, self.upkeep.read),
            EntryRepair(store, self.damage, self.lost_pages, self.upkeep.read, self.upkeep.write, self.run),
            self.net_config.connection_inflight_max,
        )  # fmt: skip
        self.consumers = Consumers(
            config,
            store,
            clock,
            self.topics,
            self.groups,
            self.clients,
            self.offsets,
            self.pending_resets,
            self.subscriptions,
            self.filtering,
            self.upkeep.read,
            bursts.reader.turns,
            self.delivery_tables.filters.subscribed,
        )
        self.queries = Queries(store, self.upkeep.read, self.upkeep.write_derived)
        self._wire()
        # What is served from here on counts by message time: first it must be clear what that is.
        self.clock_watch = ClockWatch(
            clock, store, self.clock_table, self.delivery_tables.timer_progress, self.own_records, self.boot_id, self.events,
            self.gate,
        )  # fmt: skip
        self.clock_watch.begin(ours=self.recovered.writer != "foreign")
        self.upkeep.on_tick.insert(0, self.clock_watch.look)
        self.role = MasterRole(self._surroundings(), bursts, self.upkeep, self.clock_watch)
        self.timer_admin = TimerAdmin(self.role.timers, self.delivery_tables.timer_metrics, clock)
        bursts.add_handlers(self.timer_admin.handlers())
        self.administration = Administration(self)
        REQUESTS.check(bursts.handlers)
        self.upkeep.start()
        self._started.push_async_callback(self.end_role)
        await self.begin_role()
        if config.port:
            # Not before: clients that know the port are back at once, and must find everything in its place.
            for port in (config.port, config.port - 2):
                await self.server.start(config.listen_host, port)
        self.scrubber = Scrubber(
            store,
            self.damage,
            clock,
            self.upkeep.write,
            self.upkeep.write_snapshot_again,
            self.role.timers,
            self.topics.first_offset,
        )
        self._started.push_async_callback(self.scrubber.stop)
        if store.log.min:  # ends that an earlier version, or a Java broker, did not record
            self.run(self.queue_ends.renew_below(store.log.min))
        self.scrubber.start()
        bursts.reader.start()
        warn_if_exposed(f"broker {config.name}", config.listen_host)
        await self.registration.start()

    def _surroundings(self) -> Surroundings:
        return Surroundings(
            self.config, self.clock, self.store, self.writer, self.gate, self.metadata, self.events, self.topics, self.groups,
            self.clients, self.offsets, self.locks, self.delivery_tables, self.bursts.reader,
            UniqueIds(self.address_of.packed[:-4], os.getpid(), id(self) & 0xFFFFFFFF), self.upkeep.read,
            self.upkeep.write_derived, self.run, self.registration.told, lambda: self.address, self.boot_id,
        )  # fmt: skip

    def _wire(self) -> None:
        bursts = self.bursts
        for served in (
            self.pulls, self.consumers, self.queries, self.filtering, self.delivery_tables.delay_positions
        ):  # fmt: skip
            bursts.add_handlers(served.handlers())
        bursts.on_pulls = self.pulls.left_by_kernel
        bursts.on_commits = self.pulls.commits_by_kernel
        bursts.on_lost += [self.pulls.lost, lambda connection: self.clients.lost(connection, self.clock.liveness())]
        self.store.on_grown = self.pulls.grown
        events = self.events
        events.on(TopicChanged, self.subscriptions.topic_changed)
        events.on(TopicChanged, self.registration.topic_has_changed)
        for part in (self.subscriptions, self.offsets, self.pending_resets, self.pulls.last, self):
            events.on(TopicDeleted, part.topic_deleted)
        events.on(TopicForgotten, self.queue_ends.topic_forgotten)
        events.on(GroupChanged, self.subscriptions.group_changed)
        events.on(GroupChanged, self.pulls.last.group_changed)
        events.on(ResetChanged, self.subscriptions.reset_changed)
        events.on(Resubscribed, self.pulls.resubscribed)
        events.on(LogShortened, self.log_shortened)
        self.queue_ends.worker, self.queue_ends.write_derived = self.upkeep.read, self.upkeep.write_derived
        self.queue_ends.confirmed = self.writer.confirmed
        self.upkeep.keepers.append(self.queue_ends)
        self.upkeep.on_tick += [
            self.pulls.expire, self.pulls.ahead.expire, self._expire_clients, self.lost_pages.tick,
        ]  # fmt: skip
        self.registration.on_order_topics = self._order_topics

    # -- small reactions that tie parts together ---------------------------------------------------------------------------

    def run(self, job: Coroutine[Any, Any, None]) -> None:
        """Go on with something in the background; errors are logged, a stop waits for it."""
        task = asyncio.create_task(job)
        self._jobs.add(task)
        task.add_done_callback(self._job_done)

    def _job_done(self, task: asyncio.Task[None]) -> None:
        self._jobs.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a background job failed", exc_info=task.exception())

    def log_shortened(self, event: LogShortened) -> None:
        self.topics.forget_deleted(event.log_min)

    def topic_deleted(self, event: TopicDeleted) -> None:
        self.forget_topic(event.name)

    def forget_topic(self, name: str) -> None:
        """Empty its queues at once, so that nothing stored from now on is taken for old, and remove their files."""
        for queue_id in self.kernel.queue_ids(name):
            end = self.kernel.queue_state(name, queue_id).next  # numbering goes on if the topic is made again
            self.kernel.set_queue(name, queue_id, end, end)
        # Entries of a topic that is made again meanwhile are written after these files are gone.
        gone = self.upkeep.hold_entries()
        self.run(self._forget_files(name, self.kernel.append_offset, gone))

    async def _forget_files(self, name: str, deleted_at: int, gone: asyncio.Future[None]) -> None:
        """Not before the log is on disk with the deletion: else a crash brings the topic back, without its messages."""
        try:
            safe = self.writer.confirmed(deleted_at)
            await asyncio.wait({safe}, timeout=_DELETION_SAFE_S)
            error = (
                safe.exception() if safe.done() else TimeoutError(f"no answer of the disk for {_DELETION_SAFE_S:g} s")
            )
            if error is not None:
                log.warning("queue files of the deleted topic %s stay until the next start: %s", name, error)
                return
            await self.upkeep.write(self.store.forget_topic, name)
            self.store.queues.forget_readers(name)
        finally:
            gone.set_result(None)

    def _address_learnt(self, local_ip: str | None) -> None:
        self.address_of.learn(local_ip)
        self.kernel.store_host = self.address_of.packed

    def _may_notify(self, group: str) -> bool:
        known = self.groups.table.get(group)
        return self.config.notify_consumer_changes and (known is None or known.notify_changed_enable)

    def _order_topics(self, names: list[str]) -> None:
        for name in names:
            topic = self.topics.get(name)
            if topic is not None and not topic.order:
                changed = TopicConfig.from_json(topic.to_json())
                changed.order = True
                with suppress(NotMaster):  # the name servers tell the master, too
                    self.topics.update(changed)

    def _expire_clients(self) -> None:
        now = self.clock.liveness()
        if now < self._expire_at:
            return
        self._expire_at = now + _EXPIRE_S
        for connection in self.clients.expire(now):
            connection.close("no heartbeat for too long")

    def _fit_tables(self) -> None:
        """Queues were built from the log, tables from what was said of it: bring the two together."""
        for name in self.topics.hide_deleted():
            self.store.forget_topic(name)
        self.topics.add_ends(self.queue_ends.restore())
        self.offsets.clamp()

    async def _start_on_free_pair(self) -> int:
        """Any port that is free together with the one two below it."""
        for _ in range(64):
            port = await self.server.start(self.config.listen_host, 0)
            try:
                await self.server.start(self.config.listen_host, port - 2)
                return port
            except Exception:
                await self.server.stop_listening()
        raise OSError("no two free ports (n and n-2) were found in 64 tries")

    # -- the role that may write -------------------------------------------------------------------------------------------

    async def begin_role(self) -> None:
        """This node is the master from now on: it stores and delivers messages."""
        await self.role.begin()

    async def end_role(self) -> None:
        """Another node is the master: this one answers pulls and queries, and refuses what would have to be stored."""
        await self.role.end(drain_s=self.store_config.sync_flush_timeout_ms / 1000)

    @property
    def delivery(self) -> Delivery:
        """Raises NotMaster while this node does not have the role."""
        return self.role.delivery

    # -- seen from outside -------------------------------------------------------------------------------------------------

    @property
    def address(self) -> str:
        return self.address_of.of(None)

    async def stop(self) -> None:
        """Sign off, let go of clients, bring everything to disk."""
        if not self._running:
            return
        self._running = False
        self.bursts.stopping = True
        self.pulls.repairs.stop()
        try:
            await self.registration.stop()
            await self.server.stop_listening()
            await self.scrubber.stop()
            self.writer.end_turn()
            if self._jobs:
                await asyncio.wait(self._jobs, timeout=self.config.stop_timeout_ms / 1000)
            await self.server.stop()
            self.bursts.reader.stop()
            await self.end_role()  # not before: until now clients could commit offsets
            await self.upkeep.stop()
        finally:
            self.store.close()


def within_descriptors(store: StoreConfig, net: NetConfig) -> tuple[StoreConfig, NetConfig]:
    """Copies whose sockets and files fit into what this process may open."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY:
        return replace(store), replace(net)
    connections, files = shares(limit, net.connections_max, store.open_files_max)
    if (connections, files) != (net.connections_max, store.open_files_max):
        log.warning(
            "this process may open %d files: %d connections (not %d) and %d queue files at once; `ulimit -n` raises it",
            *(limit, connections, net.connections_max, files),
        )
    return replace(store, open_files_max=files), replace(net, connections_max=connections)


def _boot_id() -> str:
    """Changes when the machine starts: what the page cache held before is gone. Power-cut tests set it instead of restarting."""
    given = os.environ.get("KAPPAMQ_BOOT_ID")
    if given is not None:
        return given
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
