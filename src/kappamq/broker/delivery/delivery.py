"""Everything that may happen to a message besides being pulled: it is stored, sent back, delayed, timed, recalled, committed.

Its tables (`delivery/tables.py`) live as long as the process. `Delivery` serves them and lives as long as this node may write:
`broker/roles.py` builds one when the role begins, and drops it when the role ends."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from kappamq.broker.batches.batches import Around, BatchTransactions
from kappamq.broker.clients.lock_requests import Locking
from kappamq.broker.delivery.agenda import Agenda
from kappamq.broker.delivery.delay_levels import Delays
from kappamq.broker.delivery.kernel_waits import KernelWaits
from kappamq.broker.delivery.retry import Retries
from kappamq.broker.events import ClockStepped, Tick
from kappamq.broker.foundation import Foundation
from kappamq.broker.pulling.filtering import SQL92
from kappamq.broker.requests.request import Handler, merged
from kappamq.broker.sending.appending import Appender
from kappamq.broker.sending.replies import Replies
from kappamq.broker.sending.send import Sends
from kappamq.broker.sending.send_requests import SendRequests
from kappamq.broker.timers.book import TimerBook
from kappamq.broker.timers.keeping import TimerKeeper
from kappamq.broker.timers.placing import TimerPlacer
from kappamq.broker.timers.recalls import RecallLookup, Recalls
from kappamq.broker.timers.timers import Timers
from kappamq.broker.transactions.checks import TransactionChecks
from kappamq.broker.transactions.half_fold import HalfFold
from kappamq.broker.transactions.half_log import HalfLog
from kappamq.broker.transactions.transactions import Transactions
from kappamq.broker.upkeep.upkeep import Keeper
from kappamq.protocol.records.ids import UniqueIds
from kappamq.store.timer.files import TimerFiles

_EXPIRE_S = 1.0


def new_timer_book(base: Foundation) -> TimerBook:
    store = base.store
    return TimerBook(store, TimerFiles(store.config.root, store.config.timer_file_bytes, store.files, base.boot_id))


class Delivery:
    """All parts that append, for clients or by themselves, during one role: built, loaded, started, and finally stopped for good."""

    def __init__(
        self,
        base: Foundation,
        unique_ids: UniqueIds,
        write_derived: Callable[[], Awaitable[None]],
        *,
        timers_followed: bool,
    ) -> None:
        """Builds the parts, and writes nothing. `write_derived`: writes queue entries to their files. `timers_followed`:
        see `Timers`."""
        config, clock, store, writer, metadata = base.config, base.clock, base.store, base.writer, base.metadata
        topics, groups, offsets = base.tables.topics, base.tables.groups, base.tables.offsets
        locks, tables, worker = base.tables.locks, base.delivery_tables, base.workers.read
        self._clock, self._clients, self._locks, self._tables, self._worker = clock, base.clients, locks, tables, worker
        self._expire_at = 0.0
        self.agenda = Agenda(clock)
        # Two appenders: due messages go directly to their queues; clients' messages may have to wait for their time first.
        self.copies = Appender(base.kernel, writer, metadata, clock)
        book = new_timer_book(base)
        lookup = RecallLookup(store, clock, worker, write_derived)
        self.timers = Timers(
            store,
            topics,
            self.copies,
            self.agenda,
            book,
            tables.timer_progress,
            tables.timer_metrics,
            worker,
            clock.message_ms,
            lookup.is_recalled,
            followed=timers_followed,
        )
        self.timer_keeper = TimerKeeper(
            store,
            self.copies,
            book,
            tables.timer_progress,
            tables.timer_metrics,
            self.timers.on_files,
            worker,
            clock.message_ms,
        )
        timer_placer = TimerPlacer(config, self.timers.wake)
        self.delays = Delays(store, topics, self.copies, self.agenda, tables.delay_positions, config.delays_ms, worker)
        placers = (timer_placer.place, self.delays.place)
        self.appender = appender = Appender(base.kernel, writer, metadata, clock, placers)
        self.halves = HalfLog(
            config,
            clock,
            store,
            writer,
            appender,
            topics,
            offsets,
            tables.reopened,
            base.kernel.forget_half,
            self.agenda.wake,
        )
        self.transactions = Transactions(config, clock, writer, self.halves, worker, timer_placer.check)
        self.checks = TransactionChecks(config, clock, self.halves, base.clients, worker, self.agenda.spawn)
        self.retries = Retries(
            config,
            store,
            topics,
            groups,
            appender,
            worker,
            lambda group: locks.any_held(group, clock.liveness()),
            base.events,
        )
        self.sends = Sends(
            store,
            config,
            clock,
            topics,
            appender,
            unique_ids,
            base.gate,
            base.registration.announced,
            self.retries,
            self.transactions,
        )
        self.replies = Replies(config, clock, topics, base.clients, self.sends, appender, lambda: base.address)
        self.recalls = Recalls(store, config, clock, topics, appender)
        self._waits = KernelWaits(
            base.kernel, config, self.halves, self.timers, self.delays, base.events, clock.message_ms
        )
        self._send_requests = SendRequests(self.sends, config, writer, base.reader.beside, base.run)
        self._locking = Locking(config, clock, topics, groups, base.clients, locks, writer, base.reader)
        self.batches = BatchTransactions(
            Around(
                config,
                store,
                topics,
                metadata.commit,
                appender,
                self.agenda,
                clock,
                self.sends,
                base.reader.beside,
                worker,
                base.run,
                base.tls,
                timer_placer.check,
            ),
            tables.scopes,
            tables.staged,
        )
        for part in (self.timers, self.delays, self.checks, self.batches.coordinator, self.batches.publishing):
            self.agenda.add(part)

    def handlers(self) -> dict[int, Handler]:
        """The requests that only a node with the right to write can serve."""
        parts = (
            self._send_requests,
            self.retries,
            self.replies,
            self.transactions,
            self.recalls,
            self._locking,
            self.batches.requests,
        )
        return merged(part.handlers() for part in parts)

    @property
    def keepers(self) -> Sequence[Keeper]:
        return self.timer_keeper, self.delays, self.checks, self.batches.renewing

    # -- its life ----------------------------------------------------------------------------------------------------------

    async def load(self, fold: HalfFold) -> None:
        """Find the open transactions. Nothing is appended meanwhile, and all stored messages are in the queues. `fold`: what was
        read of them before."""
        await self._worker(self.halves.rebuild, fold)

    def start(self) -> None:
        """This node may write from now on."""
        self._locks.begin(self._clock.liveness())
        self._note_filters()
        self.delays.begin()
        self.agenda.start()
        self._waits.begin()

    def _note_filters(self) -> None:
        """Conditions that consumers have sent while this node could not record them."""
        for group in list(self._clients.consumers):
            for subscription in self._clients.live_subscriptions(group).values():
                if subscription.expression_type == SQL92:
                    self._tables.filters.subscribed(group, subscription)

    def close(self) -> None:
        """Start and write nothing more. Requests that still run for this role are refused."""
        self._waits.end()
        self.agenda.close()
        for appender in (self.copies, self.appender):
            appender.close()
        self.halves.stop()
        self.batches.stop()

    async def stop(self) -> None:
        """Wait for running work, and leave the timer files so that any broker can go on from them."""
        await self.agenda.stop()
        await self.timers.stop()

    # -- events ------------------------------------------------------------------------------------------------------------

    def tick(self, _event: Tick) -> None:
        now = self._clock.liveness()
        if now >= self._expire_at:
            self._expire_at = now + _EXPIRE_S
            self._locks.expire(now)
        self._tables.filters.tick(self._clients.live_subscriptions, now)
        self._tables.half_counts.tick(self.halves.halves.counts)
        self.halves.keep_positions()
        self.batches.participant.tick()

    def clock_stepped(self, event: ClockStepped) -> None:
        """The wall clock was set."""
        for part in (self.delays, self.timers, self.checks):
            part.clock_stepped(event.step)
