"""The tables that delivery needs. They are folds over the log and live as long as the process, with or without the role."""

from __future__ import annotations

from kappamq.broker.delivery.delay_levels import DelayPositions
from kappamq.broker.timers.progress import TimerMetrics, TimerProgress
from kappamq.broker.transactions.half_counts import HalfCounts
from kappamq.broker.transactions.reopened import Reopened
from kappamq.clock import Clock
from kappamq.config.broker import BrokerConfig
from kappamq.state.filters import ConsumerFilters
from kappamq.state.metadata import Metadata, Table
from kappamq.state.scopes import Scopes
from kappamq.state.staged import StagedChunks


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
            self.filters,
            self.delay_positions,
            self.half_counts,
            self.timer_progress,
            self.timer_metrics,
            self.reopened,
            self.scopes,
            self.staged,
        ]

    @property
    def saved_seldom(self) -> list[str]:
        """The files of tables that change all the time."""
        tables: tuple[Table, ...] = (self.delay_positions, self.timer_progress, self.timer_metrics, self.half_counts)
        return [table.file for table in (*tables, self.scopes, self.staged)]
