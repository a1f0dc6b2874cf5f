"""Keeps timers in the log: before it loses its beginning, those that wait there are stored again at its end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from kappamq.broker.delivery.record_copies import GROUP_MAX
from kappamq.broker.delivery.sources import Place, Sources
from kappamq.broker.sending.appending import GROUP_BYTES_MAX, Appender, Draft
from kappamq.broker.timers.acted import is_done
from kappamq.broker.timers.book import TimerBook
from kappamq.broker.timers.copies import due_of, rolled
from kappamq.broker.timers.progress import TimerMetrics, TimerProgress
from kappamq.broker.upkeep.slices import Worker
from kappamq.protocol.names import TIMER_TOPIC
from kappamq.protocol.records import properties
from kappamq.protocol.records.record import decode
from kappamq.protocol.timing import parked
from kappamq.store.message_store import MessageStore
from kappamq.store.timer.acts import acts

_SOON_MS = 5000  # what is about to be delivered is left alone: the log can wait for so long


class TimerKeeper:
    def __init__(
        self,
        store: MessageStore,
        appender: Appender,
        book: TimerBook,
        progress: TimerProgress,
        metrics: TimerMetrics,
        on_files: Callable[..., Awaitable[Any]],
        worker: Worker,
        now_ms: Callable[[], int],
    ) -> None:
        self._store = store
        self._appender = appender
        self._book = book
        self._progress = progress
        self._metrics = metrics
        self._on_files = on_files  # runs something on the thread that owns the timer files
        self._worker = worker
        self._now_ms = now_ms
        self._sources = Sources(store)
        self._needed_from = 0

    @property
    def needed_from(self) -> int:
        return self._needed_from

    async def renew_below(self, log_min: int) -> None:
        _low, end, next_offset, _stored = self._store.queue_state(TIMER_TOPIC, 0)
        log_end = self._store.log.end
        if not next_offset:
            self._needed_from = log_end
            return
        self._needed_from, offset = await self._on_files(self._book.needed_from, self._progress, log_end)
        await self._on_files(self._book.forget_below, self._store.log.min)
        while self._needed_from < log_min and offset < end:
            places = self._sources.entries(TIMER_TOPIC, 0, offset, GROUP_MAX)
            if places is None:
                places = await self._worker(self._sources.read_entries, TIMER_TOPIC, 0, offset, GROUP_MAX)
            if not places:
                return
            records = await self._worker(self._sources.read, places)
            moved = self._move(places, records, log_min)
            if not moved:
                return
            offset += moved
            await self._appender.confirmed(self._store.append_offset)  # the originals go when this returns
            if moved < len(places):
                self._needed_from = places[moved][0]
                return
            self._needed_from = places[-1][0] + 1 if offset < end else log_end

    def _move(self, places: list[Place], records: list[bytes | None], log_min: int) -> int:
        """Store those that wait again, up to the first one that need not or cannot go; how many were looked at."""
        now_ms = self._now_ms()
        drafts: list[Draft] = []
        count = total = 0
        for (log_offset, size, _code), data in zip(places, records, strict=True):
            if log_offset >= log_min or (drafts and total + size > GROUP_BYTES_MAX):
                break
            if data is not None:
                record, said, steps = decode(data), parked(data), self._store.clock_steps
                at_ms = acts(said, log_offset, steps).at_ms if said is not None else 0
                if said is not None and not is_done(said, log_offset, at_ms, steps, self._progress):
                    if at_ms <= now_ms + _SOON_MS:
                        break
                    drafts.append(rolled(record, due_of(record, steps)))
                    total += size
            count += 1
        moved = places[count - 1][0] + 1 if count else 0
        if moved > self._progress.moved_below:
            change = {"moved": moved}
            self._appender.append_group(drafts, [("timer", change)], own=True)
            for draft in drafts:
                if properties.TIMER_DELETE_UNIQUE_KEY not in draft.properties:
                    self._metrics.add(draft.properties.get(properties.REAL_TOPIC, ""), -1)
        return count
