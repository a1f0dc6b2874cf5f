"""Delivery at any millisecond: a message that names a time waits in the timer topic, on disk, and is copied when it has come.

Three things go on beside each other, each in small steps: messages of the timer topic are *entered* into the timer files in
their order; the seconds that come next are *loaded* from the files, a little ahead; and what is due is *delivered*, strictly in
the order of (time, log offset). The files are worked on by a thread of their own, one step after the other (`timer_book.py`).

Delivery must not run ahead of the other two. It stops before the first second that is not loaded; and as every message is
due after it was stored, it stops at the store time of the last one entered as long as some are not.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from kappamq.broker.agenda import Agenda
from kappamq.broker.appending import GROUP_BYTES_MAX, Appender
from kappamq.broker.copying import Copying
from kappamq.broker.slices import Worker
from kappamq.broker.sources import Sources
from kappamq.broker.timer_book import Entered, Loaded, TimerBook
from kappamq.broker.timer_copies import TimerCopies, delete_key_of, due_of
from kappamq.broker.timer_near import Near, Timer
from kappamq.broker.timer_progress import TimerMetrics, TimerProgress
from kappamq.broker.topics import Topics
from kappamq.errors import KappaError, StoreDamaged
from kappamq.protocol.names import TIMER_TOPIC
from kappamq.protocol.record import Record, decode
from kappamq.store.message_store import MessageStore
from kappamq.store.timer_entries import CANCEL, PRECISION_MS, ROLL, slot_ms

log = logging.getLogger(__name__)

_ENTER_MAX = 1024
_LOAD_AHEAD_MS = 3000
_LOAD_MAX = 50_000
_LOAD_BELOW = 20_000  # more is loaded when fewer are left
_SAVE_MS = 1000
_AFTER_FAILURE_MS = 5000
_STOP_WAIT_S = 10.0
_PASSING = {errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT}  # no reason to doubt what is in the files
_NEVER = 1 << 62
# A group costs a record of the log: many small ones in a row are gathered, at the price of a few milliseconds.
_GROUPS_PER_MS = 0.2
_GROUPS_MAX = 100.0
_GATHER_MS = 5
_LARGE = 32


class Timers:
    def __init__(
        self, store: MessageStore, topics: Topics, appender: Appender, agenda: Agenda, book: TimerBook, progress: TimerProgress,
        metrics: TimerMetrics, worker: Worker, now_ms: Callable[[], int],
    ) -> None:  # fmt: skip
        self._store = store
        self._copies = TimerCopies(topics)
        self._agenda = agenda
        self._appender = appender
        self._book = book
        self._progress = progress
        self._metrics = metrics
        self._worker = worker
        self._now_ms = now_ms
        self._sources = Sources(store)
        self._copying = Copying("timers", appender)
        self._pool = ThreadPoolExecutor(1, "kappamq-timers")
        self._near = Near()
        self._opened = False
        self._generation = 0  # raised when the files are let go of: what was under way for the ones before is void
        self._broken: str | None = None  # why the files are to be built again
        self._queue_offset = 0  # messages of the timer topic below are entered
        self._entered_ms = 0  # the last one's store time
        self._loaded_ms = 0  # the slots before are in memory, or on their way
        self._next_slot: int | None = None  # the first one behind that has something in it
        self._held: tuple[list[Timer], list[bytes | None]] | None = None  # due, and read by a worker
        self._working: set[str] = set()  # what is under way
        self._complete_ms = 0  # while loading: the slots before are in memory
        self._pause_ms = 0  # nothing is delivered before
        self._rest_ms = 0  # nothing at all is done before
        self._groups = _GROUPS_MAX
        self._group_ms = 0
        self._saved_ms = 0
        self.entered = self.delivered = 0  # since the start
        self.is_recalled: Callable[[Record, str], Awaitable[bool]]

    # -- coming in -----------------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Something was parked."""
        if "enter" not in self._working:
            self._agenda.wake()

    @property
    def behind(self) -> int:
        """How many messages of the timer topic are not entered yet."""
        return int(self._store.kernel.queue_state(TIMER_TOPIC, 0)[2]) - self._queue_offset

    # -- the agenda ----------------------------------------------------------------------------------------------------------

    def due_ms(self) -> int | None:
        times = self._times()
        return max(min(times), self._rest_ms) if times else None

    def _times(self) -> list[int]:
        """When there is something to do, of each kind."""
        behind = self.behind
        if not self._opened:
            return [0] if (behind or self._generation) and "open" not in self._working else []
        times = []
        if behind and "enter" not in self._working:
            times.append(0)
        if self._next_slot is not None and "load" not in self._working and len(self._near) < _LOAD_BELOW:
            times.append(self._next_slot - _LOAD_AHEAD_MS)
        if "deliver" not in self._working:
            first = self._near.first
            if self._held is not None or (self._progress.late is not None and not behind):
                times.append(self._pause_ms)
            elif first is not None and first.due_ms <= self._limit_ms(behind):
                times.append(max(first.due_ms, self._pause_ms))
        return times

    def run(self, now_ms: int) -> None:
        if not self._opened:
            if "open" not in self._working:
                self._do("open", self._open())
            return
        behind = self.behind
        if behind and "enter" not in self._working:
            self._do("enter", self._enter(now_ms))
        if (
            self._next_slot is not None
            and self._next_slot - _LOAD_AHEAD_MS <= now_ms
            and "load" not in self._working
            and len(self._near) < _LOAD_BELOW
        ):
            self._do("load", self._load(now_ms))
        if "deliver" not in self._working and self._pause_ms <= now_ms:
            if self._progress.late is not None and not behind:
                self._do("deliver", self._deliver_late(now_ms))
            else:
                self._deliver(now_ms, min(now_ms, self._limit_ms(behind)))

    def _limit_ms(self, behind: int) -> int:
        """What is due later is not all in memory yet."""
        if "load" in self._working:
            complete = self._complete_ms
        else:
            complete = _NEVER if self._next_slot is None else self._next_slot
        return min(complete, self._entered_ms) if behind else complete

    def _do(self, name: str, job: Any) -> None:
        generation = self._generation

        async def work() -> None:
            try:
                if generation == self._generation:
                    await job
                else:
                    job.close()
            except (StoreDamaged, OSError) as error:
                if generation == self._generation:
                    self._let_go(error)
            except KappaError as error:
                log.info("timers wait: %s", error)
                self._rest_ms = self._now_ms() + _AFTER_FAILURE_MS
            finally:
                self._working.discard(name)

        self._working.add(name)
        self._agenda.spawn(self, work())

    def on_files(self, work: Callable[..., Any], *arguments: Any) -> asyncio.Future[Any]:
        """Its turn comes after everything handed in before."""
        return asyncio.get_running_loop().run_in_executor(self._pool, work, *arguments)

    # -- opening, entering, loading --------------------------------------------------------------------------------------------

    async def _open(self) -> None:
        generation, why = self._generation, self._broken
        if why is None:
            await self._appender.stored(self._store.kernel.append_offset)  # the first one may not yet be to be seen
            opened = await self.on_files(self._book.open, self._progress)
        else:
            opened = await self.on_files(self._book.rebuild, self._progress, why)
        if generation == self._generation:
            self._begin(opened)

    def _begin(self, opened: Any) -> None:
        if opened.change is not None:
            self._appender.append_group([], [("timer", opened.change)])
            self._progress.set(opened.change)
        if opened.rebuilt:
            self._metrics.clear()
        self._near.clear()
        self._held = None
        self._queue_offset = opened.queue_offset
        self._entered_ms = 0
        self._loaded_ms = self._complete_ms = self._next_slot = slot_ms(max(opened.read_ms, 1))
        self._broken = None
        self._opened = True

    def _let_go(self, error: Exception) -> None:
        """The files make no sense, or cannot be used for now: they are built again from the queue, or opened again."""
        self._opened = False
        self._generation += 1
        if isinstance(error, OSError):
            log.error("the timer files cannot be used: %s", error)
            self._rest_ms = self._now_ms() + _AFTER_FAILURE_MS
            if error.errno in _PASSING:
                return
        self._broken = str(error)

    async def _enter(self, now_ms: int) -> None:
        kernel, generation = self._store.kernel, self._generation
        if kernel.queue_state(TIMER_TOPIC, 0)[1] <= self._queue_offset:
            await self._appender.stored(kernel.append_offset)  # appended, but not yet to be seen
            if generation != self._generation:
                return
        first = self._queue_offset
        low, end, _next, _stored = kernel.queue_state(TIMER_TOPIC, 0)
        first = max(first, low)
        count = min(_ENTER_MAX, end - first)
        if count <= 0:
            return
        if "load" not in self._working:
            ahead = now_ms // PRECISION_MS * PRECISION_MS + _LOAD_AHEAD_MS
            ahead = ahead if self._next_slot is None else min(ahead, self._next_slot)
            self._loaded_ms = max(self._loaded_ms, ahead)  # there is nothing in between
        entries = kernel.tail_entries(TIMER_TOPIC, 0, first, count)
        entered: Entered = await self.on_files(
            self._book.enter, first, count, entries, self._loaded_ms, self._progress, now_ms, self._pending_ms()
        )
        if generation != self._generation:
            return
        for timer in entered.near:
            self._near.add(timer)
        self._copies.cancel(entered.cancels)
        for slot in entered.slots:
            if slot >= self._loaded_ms:
                self._next_slot = slot if self._next_slot is None else min(self._next_slot, slot)
                break
        for topic, number in entered.counts.items():
            self._metrics.add(topic.decode("utf-8", "replace"), number)
        self._queue_offset = entered.queue_offset
        self._entered_ms = max(self._entered_ms, entered.stored_ms)
        self._saved_ms = now_ms
        self.entered += count

    async def _load(self, now_ms: int) -> None:
        """The seconds that come next. What is entered from now on for one of them does not take the way over the files."""
        # Not from the next slot that we know of: something is perhaps just being entered before it.
        from_ms = self._loaded_ms
        to_ms = max(from_ms + PRECISION_MS, now_ms // PRECISION_MS * PRECISION_MS + _LOAD_AHEAD_MS)
        self._complete_ms, self._next_slot = from_ms, None
        self._loaded_ms = max(self._loaded_ms, to_ms)
        horizon_ms = max(now_ms, to_ms) + self._book.reach_ms(self._progress)
        generation = self._generation
        loaded: Loaded = await self.on_files(self._book.load, from_ms, to_ms, horizon_ms, _LOAD_MAX, self._progress)
        if generation != self._generation:
            return
        self._near.load(loaded.buckets)
        self._copies.cancel(loaded.cancels)
        if loaded.upto_ms < to_ms:
            self._loaded_ms = loaded.upto_ms
        noted = [slot for slot in (self._next_slot, loaded.next_slot) if slot is not None]
        self._next_slot = min(noted, default=None)
        if self._next_slot is None and not self._near and not self.behind:
            self._metrics.clear()

    # -- delivering ------------------------------------------------------------------------------------------------------------

    def _deliver(self, now_ms: int, limit_ms: int) -> None:
        if self._held is None:
            first = self._near.first
            if first is None or first.due_ms > limit_ms or not self._may_go(now_ms):
                return
            timers = self._take(limit_ms)
            if not timers:
                return
            if len(timers) >= _LARGE:
                self._groups += 1  # only small ones are to be fewer
            places = [(timer.log_offset, timer.size, 0) for timer in timers]
            if not self._sources.are_warm(places) or any(timer.kind & ROLL for timer in timers):
                self._do("deliver", self._read(timers, now_ms))
                return
            self._held = timers, self._sources.read(places)
        self._store_copies(now_ms)

    def _take(self, limit_ms: int) -> list[Timer]:
        """What is due, as much as is read in one go."""
        timers: list[Timer] = []
        total = 0
        while (first := self._near.first) is not None and first.due_ms <= limit_ms:
            if timers and (len(timers) >= self._copying.group_max or total + first.size > GROUP_BYTES_MAX):
                break
            self._near.pop()
            # After a crash files may name one twice; a millisecond's are in the order of the log.
            key = first.due_ms, first.log_offset
            if not self._progress.is_done(*key) and (not timers or key > (timers[-1].due_ms, timers[-1].log_offset)):
                timers.append(first)
                total += first.size
        return timers

    async def _read(self, timers: list[Timer], now_ms: int) -> None:
        generation = self._generation
        try:
            records = await self._read_records(timers, now_ms)
        except BaseException:
            if generation == self._generation:
                for timer in timers:
                    self._near.add(timer)
            raise
        if generation == self._generation:
            self._held = timers, records

    async def _read_records(self, timers: list[Timer], now_ms: int) -> list[bytes | None]:
        records: list[bytes | None] = await self._worker(
            self._sources.read, [(timer.log_offset, timer.size, 0) for timer in timers]
        )
        for timer, data in zip(timers, records, strict=True):
            if timer.kind & (ROLL | CANCEL) != ROLL or data is None:
                continue
            record = decode(data)
            if due_of(record) <= now_ms:
                # The broker was away when it should have been stored again, and its time has come meanwhile: the wish to
                # drop it, if there is one, would have met it in the slot that it does not get to.
                key = delete_key_of(record)
                if await self.is_recalled(record, key):
                    self._copies.cancel([(key.encode(), due_of(record))])
        return records

    def _may_go(self, now_ms: int) -> bool:
        self._groups = min(_GROUPS_MAX, self._groups + (now_ms - self._group_ms) * _GROUPS_PER_MS)
        self._group_ms = now_ms
        if self._groups >= 1:
            self._groups -= 1
            return True
        self._pause_ms = now_ms + _GATHER_MS
        return False

    def _store_copies(self, now_ms: int) -> None:
        assert self._held is not None
        timers, records = self._held
        count = min(len(timers), self._copying.group_max)
        last = timers[count - 1]
        change = {"due": [last.due_ms, last.log_offset]}
        copies, gone = self._copies.make(timers[:count], records, now_ms)
        again = self._copying.store(copies, ("timer", change), now_ms)
        if again is not None:
            self._pause_ms = again
            return
        self._progress.set(change)
        self._held = (timers[count:], records[count:]) if count < len(timers) else None
        for topic, number in gone.items():
            self._metrics.add(topic, -number)
        self.delivered += len(copies)
        self._copies.passed(last.due_ms)
        if now_ms - self._saved_ms >= _SAVE_MS and "save" not in self._working:
            self._saved_ms = now_ms
            self._do("save", self._save(now_ms))

    async def _deliver_late(self, now_ms: int) -> None:
        """What another broker found too late for its slot, and may not have got to."""
        late = self._progress.late
        assert late is not None
        next_first, timers = await self.on_files(self._book.late, late, self._copying.group_max)
        records = await self._worker(self._sources.read, [(t.log_offset, t.size, 0) for t in timers])
        copies, _gone = self._copies.make(timers, records, now_ms)
        change = {"late": None if next_first >= late.stop else [next_first, late.stop, late.due_ms]}
        again = self._copying.store(copies, ("timer", change), now_ms)
        if again is None:
            self._progress.set(change)
            self.delivered += len(copies)
        else:
            self._pause_ms = again

    # -- how far we are --------------------------------------------------------------------------------------------------------

    def _pending_ms(self) -> int:
        """Of what is entered, everything that is due before is delivered."""
        first = self._held[0][0] if self._held is not None else self._near.first
        complete = self._limit_ms(0)
        return complete if first is None else min(complete, first.due_ms)

    def _read_ms(self, now_ms: int) -> int:
        """Everything that is due before is delivered."""
        limit = min(now_ms, self._entered_ms) if self.behind else now_ms
        return max(self._progress.due_ms, min(limit, self._pending_ms()))

    def behind_ms(self) -> int:
        """How long ago the first one was due that is not delivered."""
        now_ms = self._now_ms()
        return max(0, now_ms - self._read_ms(now_ms)) if self._opened else 0

    async def _save(self, now_ms: int) -> None:
        generation, read_ms = self._generation, self._read_ms(now_ms)
        await self._appender.stored(self._store.kernel.append_offset)  # the files do not run ahead of the log
        if generation == self._generation:
            await self.on_files(self._book.save, now_ms, read_ms)

    async def _is_log_safe(self) -> bool:
        """Whether everything that counts as delivered is on disk."""
        try:
            await asyncio.wait_for(self._appender.on_disk(self._store.kernel.append_offset), _STOP_WAIT_S)
        except (KappaError, TimeoutError) as error:
            log.warning("the timer files are left as after a crash, the log may end before them: %s", error)
            return False
        return self._store.failed is None

    async def stop(self) -> None:
        """The agenda has stopped: leave the files so that any broker can go on from them."""
        try:
            if self._opened and await self._is_log_safe():
                await self._close()
            elif self._opened or self._generation:
                await self.on_files(self._book.leave)
        except OSError as error:
            log.error("the timer files are left as after a crash: %s", error)
        self._pool.shutdown(wait=True)

    async def _close(self) -> None:
        now_ms = self._now_ms()
        read_ms = self._read_ms(now_ms)
        start = slot_ms(read_ms)
        left: list[Timer] | None = None
        if start < self._loaded_ms:
            pending = set(self._near.of_slot(start)) | {
                t for t in (self._held or ([],))[0] if slot_ms(t.due_ms) == start
            }
            left = sorted(t for t in pending if not self._progress.is_done(t.due_ms, t.log_offset))
        await self.on_files(self._book.close, now_ms, read_ms, self._queue_offset, left)
