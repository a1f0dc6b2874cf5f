"""What may happen to a message besides being pulled: stored, sent back, delayed, timed, recalled, committed.

`DeliveryTables` are folds over the log and live as long as the process. `Delivery` serves them and lives as long as this node may
write: `broker/roles.py` builds one when the role begins, and drops it when the role ends."""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from kappamq.broker.batches.batches import Around, BatchTransactions
from kappamq.broker.clients.lock_requests import Locking
from kappamq.broker.clients.registry import Clients
from kappamq.broker.delivery.agenda import Agenda
from kappamq.broker.delivery.delay_levels import DelayPositions, Delays
from kappamq.broker.delivery.kernel_waits import KernelWaits
from kappamq.broker.delivery.retry import Retries
from kappamq.broker.events import ClockStepped, Tick
from kappamq.broker.pulling.filtering import SQL92
from kappamq.broker.requests.request import Handler, merged
from kappamq.broker.sending.appending import Appender
from kappamq.broker.sending.gate import Gate
from kappamq.broker.sending.log_writer import LogWriter
from kappamq.broker.sending.replies import Replies
from kappamq.broker.sending.send import Sends
from kappamq.broker.sending.send_requests import Run, SendRequests
from kappamq.broker.timers.book import TimerBook
from kappamq.broker.timers.keeping import TimerKeeper
from kappamq.broker.timers.placing import TimerPlacer
from kappamq.broker.timers.progress import TimerMetrics, TimerProgress
from kappamq.broker.timers.recalls import RecallLookup, Recalls
from kappamq.broker.timers.timers import Timers
from kappamq.broker.transactions.checks import TransactionChecks
from kappamq.broker.transactions.half_counts import HalfCounts
from kappamq.broker.transactions.half_log import HalfLog
from kappamq.broker.transactions.reopened import Reopened
from kappamq.broker.transactions.transactions import Transactions
from kappamq.broker.upkeep.slices import Worker
from kappamq.broker.upkeep.upkeep import Keeper
from kappamq.clock import Clock
from kappamq.config.broker import BrokerConfig
from kappamq.events import Events
from kappamq.net.requests.reader import RequestReader
from kappamq.protocol.records.ids import UniqueIds
from kappamq.state.filters import ConsumerFilters
from kappamq.state.groups import Groups
from kappamq.state.locks import QueueLocks
from kappamq.state.metadata import Metadata, Table
from kappamq.state.offsets import Offsets
from kappamq.state.scopes import Scopes
from kappamq.state.staged import StagedChunks
from kappamq.state.topics import Topics
from kappamq.store.message_store import MessageStore
from kappamq.store.timer.files import TimerFiles

_EXPIRE_S = 1.0


class DeliveryTables:
    def __init__(self, config: BrokerConfig, metadata: Metadata, clock: Clock) -> None:
        self.delay_positions = DelayPositions(metadata.now_ms)
        self.filters = ConsumerFilters(config, metadata.now_ms, metadata.commit)
        self.half_counts = HalfCounts(clock.message_ms)
        self.timer_progress = TimerProgress()
        self.timer_metrics = TimerMetrics(clock.message_ms)
        self.reopened = Reopened()
        self.scopes = Scopes(metadata.now_ms)
        self.staged = StagedChunks(metadata.now_ms)

    def all(self) -> list[Table]:
        return [
            self.filters, self.delay_positions, self.half_counts, self.timer_progress, self.timer_metrics, self.reopened,
            self.scopes, self.staged,
        ]  # fmt: skip

    @property
    def saved_seldom(self) -> list[str]:
        """Files of those that change all the time."""
        tables: tuple[Table, ...] = (self.delay_positions, self.timer_progress, self.timer_metrics, self.half_counts)
        return [table.file for table in (*tables, self.scopes, self.staged)]


@dataclass(frozen=True)
class Surroundings:
    """What lives as long as the process, as far as delivery is built upon it."""

    config: BrokerConfig
    clock: Clock
    store: MessageStore
    writer: LogWriter
    gate: Gate
    metadata: Metadata
    events: Events
    topics: Topics
    groups: Groups
    clients: Clients
    offsets: Offsets
    locks: QueueLocks
    tables: DeliveryTables
    reader: RequestReader
    unique_ids: UniqueIds
    worker: Worker  # runs what reads from the disk
    write_derived: Callable[[], Awaitable[None]]
    run: Run
    announced: Callable[[], Awaitable[None]]  # waits until the name servers know of every topic
    address: Callable[[], str]
    tls: ssl.SSLContext | None  # for connections to other brokers
    boot_id: str


class Delivery:
    """Everything that appends, for a client or by itself, in one role: built, loaded, started, and in the end stopped for good."""

    def __init__(self, around: Surroundings) -> None:
        """Builds upon what is there, and writes nothing."""
        config, clock, store, topics = around.config, around.clock, around.store, around.topics
        tables, worker, writer = around.tables, around.worker, around.writer
        self._around = around
        self._expire_at = 0.0
        self.agenda = Agenda(clock)
        # Two ways into the log: what is due goes where it belongs; what clients send may have to wait for its time first.
        self.copies = Appender(store, writer, around.metadata, clock)
        book = TimerBook(
            store, TimerFiles(store.config.root, store.config.timer_file_bytes, store.files, around.boot_id)
        )
        lookup = RecallLookup(store, clock, worker, around.write_derived)
        self.timers = Timers(
            store, topics, self.copies, self.agenda, book, tables.timer_progress, tables.timer_metrics, worker,
            clock.message_ms, lookup.is_recalled,
        )  # fmt: skip
        self.timer_keeper = TimerKeeper(
            store, self.copies, book, tables.timer_progress, tables.timer_metrics, self.timers.on_files, worker,
            clock.message_ms,
        )  # fmt: skip
        timer_placer = TimerPlacer(config, self.timers.wake)
        self.delays = Delays(store, topics, self.copies, self.agenda, tables.delay_positions, config.delays_ms, worker)
        placers = (timer_placer.place, self.delays.place)
        self.appender = appender = Appender(store, writer, around.metadata, clock, placers)
        self.halves = HalfLog(
            config, clock, store, writer, appender, topics, around.offsets, tables.reopened, self.agenda.wake
        )
        self.transactions = Transactions(config, clock, writer, self.halves, worker, timer_placer.check)
        self.checks = TransactionChecks(config, clock, self.halves, around.clients, worker, self.agenda.spawn)
        self.retries = Retries(
            config, store, topics, around.groups, appender, worker,
            lambda group: around.locks.any_held(group, clock.liveness()), around.events,
        )  # fmt: skip
        self.sends = Sends(
            store, config, clock, topics, appender, around.unique_ids, around.gate, around.announced, self.retries,
            self.transactions,
        )  # fmt: skip
        self.replies = Replies(config, clock, topics, around.clients, self.sends, appender, around.address)
        self.recalls = Recalls(store, config, clock, topics, appender)
        self._waits = KernelWaits(
            store.kernel, config, self.halves, self.timers, self.delays, around.events, clock.message_ms
        )
        self._send_requests = SendRequests(self.sends, config, writer, around.reader.beside, around.run)
        self._locking = Locking(
            config, clock, topics, around.groups, around.clients, around.locks, writer, around.reader
        )
        self.batches = BatchTransactions(
            Around(
                config, store, topics, around.metadata.commit, appender, self.agenda, clock, self.sends, around.reader.beside,
                worker, around.run, around.tls, timer_placer.check,
            ),
            tables.scopes, tables.staged,
        )  # fmt: skip
        for part in (self.timers, self.delays, self.checks, self.batches.coordinator, self.batches.publishing):
            self.agenda.add(part)

    def handlers(self) -> dict[int, Handler]:
        """Requests that only a node which may write can serve."""
        parts = (
            self._send_requests, self.retries, self.replies, self.transactions, self.recalls, self._locking,
            self.batches.requests,
        )  # fmt: skip
        return merged(part.handlers() for part in parts)

    @property
    def keepers(self) -> Sequence[Keeper]:
        return self.timer_keeper, self.delays, self.checks, self.batches.participant

    # -- its life ----------------------------------------------------------------------------------------------------------

    async def load(self) -> None:
        """Find out which transactions are open. Nothing is appended meanwhile, and all that is stored is in the queues."""
        await self._around.worker(self.halves.rebuild)

    def start(self) -> None:
        """This node may write from now on."""
        around = self._around
        around.locks.begin(around.clock.liveness())
        self._note_filters()
        self.delays.begin()
        self.agenda.start()
        self._waits.begin()

    def _note_filters(self) -> None:
        """Conditions that consumers have brought while nobody here could note them."""
        for group in list(self._around.clients.consumers):
            for subscription in self._around.clients.live_subscriptions(group).values():
                if subscription.expression_type == SQL92:
                    self._around.tables.filters.subscribed(group, subscription)

    def close(self) -> None:
        """Nothing is begun or written any more. Who is still at work for this role hears so."""
        self._waits.end()
        self.agenda.close()
        for appender in (self.copies, self.appender):
            appender.close()
        self.halves.stop()
        self.batches.stop()

    async def stop(self) -> None:
        """Wait for what is under way, and leave the timer files so that any broker can go on from them."""
        await self.agenda.stop()
        await self.timers.stop()

    # -- what it hears -----------------------------------------------------------------------------------------------------

    def tick(self, _event: Tick) -> None:
        around = self._around
        now = around.clock.liveness()
        if now >= self._expire_at:
            self._expire_at = now + _EXPIRE_S
            around.locks.expire(now)
        around.tables.filters.tick(around.clients.live_subscriptions, now)
        around.tables.half_counts.tick(self.halves.halves.counts)
        self.halves.keep_positions()
        self.batches.participant.tick()

    def clock_stepped(self, event: ClockStepped) -> None:
        """The wall clock was set."""
        for part in (self.delays, self.timers, self.checks):
            part.clock_stepped(event.step)
