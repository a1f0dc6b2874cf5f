"""Due timers: delivered strictly in the order of (time, log offset), many at once, each group with its progress."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any

from kappamq.broker.delivery.record_copies import Copying
from kappamq.broker.delivery.sources import Sources
from kappamq.broker.sending.appending import GROUP_BYTES_MAX, Appender
from kappamq.broker.timers.copies import TimerCopies, delete_key_of, due_of
from kappamq.broker.timers.progress import Late, TimerMetrics, TimerProgress
from kappamq.broker.timers.upcoming import Bucket, Timer, Upcoming
from kappamq.broker.upkeep.slices import Worker
from kappamq.protocol.records.record import Record, decode
from kappamq.state.topics import Topics
from kappamq.store.message_store import MessageStore
from kappamq.store.timer.entries import CANCEL, ROLL, slot_ms

_LARGE = 32

IsRecalled = Callable[[Record, str], Awaitable[bool]]
FindLate = Callable[[Late, int], Awaitable[tuple[int, list[Timer]]]]


class _Pace:
    """A group costs a record of the log: many small ones in a row are gathered, at the price of a few milliseconds."""

    _PER_MS = 0.2
    _MAX = 100.0
    _GATHER_MS = 5

    def __init__(self) -> None:
        self._groups = self._MAX
        self._at_ms = 0

    def wait_ms(self, now_ms: int) -> int:
        """How long the next group is to wait."""
        passed_ms = max(0, now_ms - self._at_ms)  # the clock may have been set back
        self._groups = min(self._MAX, self._groups + passed_ms * self._PER_MS)
        self._at_ms = now_ms
        return 0 if self._groups >= 1 else self._GATHER_MS

    def gone(self, count: int) -> None:
        if count < _LARGE:  # only small ones are to be fewer
            self._groups -= 1


class DueTimers:
    """Belongs to one opening of the timer files: what is still under way when they are let go of comes to nothing."""

    def __init__(
        self,
        store: MessageStore,
        topics: Topics,
        appender: Appender,
        progress: TimerProgress,
        metrics: TimerMetrics,
        worker: Worker,
    ) -> None:
        self._progress = progress
        self._metrics = metrics
        self._worker = worker
        self._sources = Sources(store)
        self._copying = Copying("timers", appender)
        self._pace = _Pace()
        self._reading: list[Timer] = []  # due, and being read
        self._held: tuple[list[Timer], list[bytes | None]] | None = None  # due, and read
        self._upcoming = Upcoming()
        self._copies = TimerCopies(topics, store)
        self._message_store = store
        self.pause_ms = 0  # nothing is delivered before
        self.delivered = 0
        self._copies.cancel(progress.recalls.items())

    def __len__(self) -> int:
        """How many are in memory and wait."""
        return len(self._upcoming)

    def add(self, timers: Iterable[Timer], cancels: Iterable[tuple[str, int]] = ()) -> None:
        """Some that were entered just now, and recalls (key, due) to drop one."""
        for timer in timers:
            self._upcoming.add(timer)
        self._copies.cancel(cancels)

    def load(self, buckets: list[Bucket], cancels: Iterable[tuple[str, int]]) -> None:
        """What the files hold for the next seconds, later than everything loaded before."""
        self._upcoming.load(buckets)
        self._copies.cancel(cancels)

    def next_ms(self, limit_ms: int) -> int | None:
        """When there is something to deliver; what is due after `limit_ms` is not all in memory yet."""
        if self._held is not None:
            return self.pause_ms
        first = self._upcoming.first
        return None if first is None or first.due_ms > limit_ms else max(first.due_ms, self.pause_ms)

    @property
    def first_ms(self) -> int | None:
        """When the first one is due that is not delivered."""
        taken = self._reading or (self._held[0] if self._held is not None else [])
        first = taken[0] if taken else self._upcoming.first
        return None if first is None else first.due_ms

    def of_slot(self, start_ms: int) -> list[Timer]:
        """What is left to do of the second that begins at `start_ms`."""
        held = [] if self._held is None else [timer for timer in self._held[0] if slot_ms(timer.due_ms) == start_ms]
        pending = {*held, *self._upcoming.of_slot(start_ms)}
        return sorted(timer for timer in pending if not self._progress.is_done(timer.due_ms, timer.log_offset))

    def deliver(self, now_ms: int, limit_ms: int, is_recalled: IsRecalled) -> Coroutine[Any, Any, None] | None:
        """The next group, if it can be stored at once; else what is to be done before."""
        if self._held is None:
            first = self._upcoming.first
            if first is None or first.due_ms > limit_ms:
                return None
            wait_ms = self._pace.wait_ms(now_ms)
            if wait_ms:
                self.pause_ms = now_ms + wait_ms
                return None
            timers = self._take(limit_ms)
            if not timers:
                return None
            self._pace.gone(len(timers))
            places = [(timer.log_offset, timer.size, 0) for timer in timers]
            if not self._sources.are_warm(places) or any(timer.kind & ROLL for timer in timers):
                self._reading = timers
                return self._read(timers, now_ms, is_recalled)
            self._held = timers, self._sources.read(places)
        self._store(now_ms)
        return None

    def _take(self, limit_ms: int) -> list[Timer]:
        """What is due, as much as is read in one go."""
        timers: list[Timer] = []
        total = 0
        while (first := self._upcoming.first) is not None and first.due_ms <= limit_ms:
            if timers and (len(timers) >= self._copying.group_max or total + first.size > GROUP_BYTES_MAX):
                break
            self._upcoming.pop()
            # After a crash files may name one twice; a millisecond's are in the order of the log.
            key = first.due_ms, first.log_offset
            if not self._progress.is_done(*key) and (not timers or key > (timers[-1].due_ms, timers[-1].log_offset)):
                timers.append(first)
                total += first.size
        return timers

    async def _read(self, timers: list[Timer], now_ms: int, is_recalled: IsRecalled) -> None:
        try:
            records = await self._read_records(timers)
            for timer, data in zip(timers, records, strict=True):
                if timer.kind & (ROLL | CANCEL) == ROLL and data is not None:
                    await self._look_for_recall(decode(data), now_ms, is_recalled)
        except BaseException:
            for timer in timers:
                self._upcoming.add(timer)
            raise
        finally:
            self._reading = []
        self._held = timers, records

    async def _read_records(self, timers: list[Timer]) -> list[bytes | None]:
        places = [(timer.log_offset, timer.size, 0) for timer in timers]
        records: list[bytes | None] = await self._worker(self._sources.read, places)
        return records

    async def _look_for_recall(self, record: Record, now_ms: int, is_recalled: IsRecalled) -> None:
        """If the broker was away when a timer should have been stored again, and its time has come meanwhile: its recall,
        if there is one, would have met it in the slot that it does not get to."""
        due = due_of(record, self._message_store.clock_steps)
        if due <= now_ms:
            key = delete_key_of(record)
            if await is_recalled(record, key):
                self._copies.cancel([(key, due)])

    def _store(self, now_ms: int) -> None:
        assert self._held is not None
        timers, records = self._held
        count = min(len(timers), self._copying.group_max)
        last = timers[count - 1]
        made = self._copies.make(timers[:count], records, now_ms)
        change = self._progress.after(last.due_ms, last.log_offset, made.recalls)
        again = self._copying.store(made.copies, ("timer", change), now_ms)
        if again is not None:
            self.pause_ms = again
            return
        self._held = (timers[count:], records[count:]) if count < len(timers) else None
        for topic, number in made.gone.items():
            self._metrics.add(topic, -number)
        self.delivered += len(made.copies)
        self._copies.passed(last.due_ms)

    async def deliver_late(self, late: Late, find: FindLate, now_ms: int) -> None:
        """What another broker found too late for its slot, and may not have got to."""
        next_first, timers = await find(late, self._copying.group_max)
        made = self._copies.make(timers, await self._read_records(timers), now_ms)
        change = {"late": None if next_first >= late.stop else [next_first, late.stop, late.due_ms]}
        again = self._copying.store(made.copies, ("timer", change), now_ms)
        if again is None:
            self.delivered += len(made.copies)
        else:
            self.pause_ms = again
