"""Builds the delivery features of a broker and wires them; no other logic."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kappamq.broker.delivery.delay_levels import DelayPositions, Delays
from kappamq.broker.delivery.retry import Retries
from kappamq.broker.events import ClockStepped, Tick
from kappamq.broker.requests.request import Handler, merged
from kappamq.broker.sending.replies import Replies
from kappamq.broker.timers.admin import TimerAdmin
from kappamq.broker.timers.book import TimerBook
from kappamq.broker.timers.keeping import TimerKeeper
from kappamq.broker.timers.placing import TimerPlacer
from kappamq.broker.timers.progress import TimerMetrics, TimerProgress
from kappamq.broker.timers.recalls import Recalls
from kappamq.broker.timers.timers import Timers
from kappamq.broker.transactions.checks import TransactionChecks
from kappamq.broker.transactions.half_counts import HalfCounts
from kappamq.broker.transactions.half_log import HalfLog
from kappamq.broker.transactions.reopened import Reopened
from kappamq.broker.transactions.transactions import Transactions
from kappamq.state.filters import ConsumerFilters
from kappamq.state.metadata import Table
from kappamq.store.timer.files import TimerFiles

if TYPE_CHECKING:
    from kappamq.broker.broker import Broker


class Delivery:
    """What may happen to a message besides being stored and pulled.

    Tables are folds over the log and are there before the store is opened; what serves them is built by `serve`."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.delay_positions = DelayPositions(broker.metadata.now_ms)
        self.filters = ConsumerFilters(broker.config, broker.metadata.now_ms, broker.metadata.commit)
        self.half_counts = HalfCounts(broker.clock.message_ms)
        self.timer_progress = TimerProgress()
        self.timer_metrics = TimerMetrics(broker.clock.message_ms)
        self.reopened = Reopened()
        self.tables: list[Table] = [
            self.filters, self.delay_positions, self.half_counts, self.timer_progress, self.timer_metrics, self.reopened
        ]  # fmt: skip

    def serve(self) -> None:
        """All other parts are there: build the features, hand placers to the appender and parts to the agenda."""
        broker = self._broker
        self.retries = Retries(
            broker.config, broker.store, broker.topics, broker.groups, broker.appender, broker.upkeep.read,
            lambda group: broker.locks.any_held(group, broker.clock.liveness()), broker.events,
        )  # fmt: skip
        broker.sends.retry_topic = self.retries.topic_for_send
        broker.sends.place_retried = self.retries.place
        self.replies = Replies(
            broker.config, broker.clock, broker.topics, broker.clients, broker.sends, broker.appender, lambda: broker.address
        )  # fmt: skip
        self.delays = Delays(
            broker.store, broker.topics, broker.appender, broker.agenda, self.delay_positions, broker.config.delays_ms,
            broker.upkeep.read,
        )  # fmt: skip
        self._serve_timers()
        broker.appender.placers += [self.timer_placer.place, self.delays.place]
        for part in (self.timers, self.delays):
            broker.agenda.add(part)
        broker.upkeep.keepers += [self.timer_keeper, self.delays]
        broker.upkeep.saved_seldom |= {self.delay_positions.file, self.timer_progress.file, self.timer_metrics.file}
        broker.consumers.on_condition = self.filters.subscribed
        broker.events.on(Tick, lambda _: self.filters.tick(broker.clients.live_subscriptions, broker.clock.liveness()))
        self._serve_transactions()

    def _serve_transactions(self) -> None:
        broker = self._broker
        self.halves = HalfLog(
            broker.config, broker.clock, broker.store, broker.writer, broker.appender, broker.topics, broker.offsets,
            self.reopened, broker.agenda.wake,
        )  # fmt: skip
        self.halves.rebuild()
        broker.events.on(Tick, lambda _: self.half_counts.tick(self.halves.halves.counts))
        broker.upkeep.saved_seldom.add(self.half_counts.file)
        self.transactions = Transactions(
            broker.config, broker.clock, broker.writer, self.halves, broker.upkeep.read, self.timer_placer.check
        )
        self.checks: TransactionChecks = TransactionChecks(
            broker.config,
            broker.clock,
            self.halves,
            broker.clients,
            broker.upkeep.read,
            lambda job: broker.agenda.spawn(self.checks, job),
        )
        broker.agenda.add(self.checks)
        broker.upkeep.keepers.append(self.checks)
        broker.events.on(Tick, lambda _: self.halves.keep_positions())
        broker.sends.prepare = self.transactions.prepare

    def _serve_timers(self) -> None:
        broker, progress, metrics = self._broker, self.timer_progress, self.timer_metrics
        store, clock, read = broker.store, broker.clock, broker.upkeep.read
        files = TimerFiles(store.config.root, store.config.timer_file_bytes, store.files, broker.boot_id)
        book = TimerBook(store, files)
        self.recalls = Recalls(
            store, broker.config, clock, broker.topics, broker.appender, read, broker.upkeep.write_derived
        )
        self.timers = Timers(
            store, broker.topics, broker.appender, broker.agenda, book, progress, metrics, read, clock.message_ms,
            self.recalls.is_recalled,
        )  # fmt: skip
        self.timer_keeper = TimerKeeper(
            store, broker.appender, book, progress, metrics, self.timers.on_files, read, clock.message_ms
        )
        self.timer_admin = TimerAdmin(self.timers, book, metrics, clock)
        self.timer_placer = TimerPlacer(broker.config, self.timers.wake)

    def clock_stepped(self, event: ClockStepped) -> None:
        """The wall clock was set."""
        for part in (self.delays, self.timers, self.checks):
            part.clock_stepped(event.step)

    async def stop(self) -> None:
        """The agenda has stopped, and nobody can send any more."""
        await self.timers.stop()

    def handlers(self) -> dict[int, Handler]:
        delivering = (self._broker.filtering, self.retries, self.replies, self.delays, self.transactions)
        return merged(part.handlers() for part in (*delivering, self.timer_admin, self.recalls))
