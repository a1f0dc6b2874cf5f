"""Delivery at any millisecond: a message with a delivery time waits in the timer topic, on disk, and is copied when it is due.

Three activities run side by side, each in small steps: messages of the timer topic are *entered* into the timer files in
their order; the seconds that come next are *loaded* from the files, a little ahead; and what is due is *delivered*, strictly in
the order of (time, log offset). The files are worked on by a thread of their own, one step after the other (`book.py`).

Delivery must not run ahead of the other two. It stops before the first second that is not loaded; and as every message is
due after it was stored, it stops at the store time of the last one entered as long as some are not.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from kappamq.broker.delivery.agenda import Agenda
from kappamq.broker.sending.appending import Appender
from kappamq.broker.timers.book import ENTER_MAX, Entered, Loaded, Opened, TimerBook
from kappamq.broker.timers.due import DueTimers, IsRecalled
from kappamq.broker.timers.progress import Late, TimerMetrics, TimerProgress
from kappamq.broker.timers.upcoming import Timer
from kappamq.broker.timers.window import TimerWindow
from kappamq.broker.upkeep.slices import Worker
from kappamq.clock import TOLERANCE_MS
from kappamq.errors import KappaError, StoreDamaged
from kappamq.protocol.names import TIMER_TOPIC
from kappamq.protocol.records.tags import java_hash
from kappamq.state.topics import Topics
from kappamq.store.log.clock_steps import ClockStep
from kappamq.store.message_store import MessageStore
from kappamq.store.timer.acts import OVERDUE_MS
from kappamq.store.timer.entries import TimerCheckpoint, slot_ms

log = logging.getLogger(__name__)

_LOAD_MAX = 50_000
_LOAD_BELOW = 20_000  # more is loaded when fewer are left
_NEAR_MAX = 200_000  # then what can be delivered goes before what could be entered
_SAVE_MS = 1000
_REST = 3.0  # between two steps of what is in no hurry, times what a step takes
_AFTER_FAILURE_MS = 5000
_LOOK_AGAIN_S = 0.05
_STOP_WAIT_S = 10.0
_PASSING = {errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT}  # no reason to doubt what is in the files


class Timers:
    def __init__(
        self,
        store: MessageStore,
        topics: Topics,
        appender: Appender,
        agenda: Agenda,
        book: TimerBook,
        progress: TimerProgress,
        metrics: TimerMetrics,
        worker: Worker,
        now_ms: Callable[[], int],
        is_recalled: IsRecalled,
        *,
        followed: bool = False,
    ) -> None:
        """`followed`: timers were entered into the files while this node did not have the role."""
        self._store = store
        self._topics = topics
        self._agenda = agenda
        self._appender = appender
        self._book = book
        self._progress = progress
        self._metrics = metrics
        self._worker = worker
        self._now_ms = now_ms
        self._pool = ThreadPoolExecutor(1, "kappamq-timers")
        self._due = self._new_due()
        self._window = TimerWindow(0)
        # What lies behind is ours, and due later: it is stored by today's clock, from now on.
        self._began = ClockStep(store.append_offset, 0, now_ms())
        self._opened = False
        self._generation = 0  # raised when the files are let go of: what was under way for the ones before is void
        self._broken: str | None = None  # why the files are to be built again
        self._queue_offset = 0  # messages of the timer topic below are entered
        self._entered_ms = 0  # the last one's store time
        self._working: set[str] = set()  # what is under way
        self._rest_ms = 0  # nothing at all is done before
        self._saved_ms = 0
        self._delivered_before = 0  # by openings before this one
        self.entered = 0  # since the start
        self._is_recalled = is_recalled
        self._to_count = followed  # the files have timers that nobody here has counted

    def _new_due(self) -> DueTimers:
        return DueTimers(self._store, self._topics, self._appender, self._progress, self._metrics, self._worker)

    def wake(self) -> None:
        """Something was parked."""
        if "enter" not in self._working:
            self._agenda.wake()

    @property
    def behind(self) -> int:
        """How many messages of the timer topic are not entered yet."""
        return self._store.queue_state(TIMER_TOPIC, 0).next - self._queue_offset

    @property
    def delivered(self) -> int:
        """Since the start."""
        return self._delivered_before + self._due.delivered

    @property
    def checkpoint(self) -> TimerCheckpoint:
        """What the timer files say of themselves."""
        return self._book.files.checkpoint

    # -- the agenda ----------------------------------------------------------------------------------------------------------

    def due_ms(self) -> int | None:
        times = [at_ms for at_ms, _begin in self._work()]
        return max(min(times), self._rest_ms) if times else None

    def run(self, now_ms: int) -> None:
        for at_ms, begin in self._work():
            if at_ms <= now_ms:
                begin(now_ms)

    def _work(self) -> list[tuple[int, Callable[[int], None]]]:
        """What there is to do, of each kind, and when."""
        behind = self.behind
        if not self._opened:
            return [(0, self._do_open)] if (behind or self._generation) and "open" not in self._working else []
        work: list[tuple[int, Callable[[int], None]]] = []
        limit_ms = self._limit_ms(behind)
        next_ms = self._due.next_ms(limit_ms)
        if behind and "enter" not in self._working and (next_ms is None or len(self._due) < _NEAR_MAX):
            work.append((0, lambda now_ms: self._do("enter", self._enter(now_ms))))
        load_ms = self._window.load_ms
        # As long as some are not entered, nothing is delivered that is due after the last one entered was stored.
        may_load = load_ms is not None and (not behind or load_ms <= self._entered_ms)
        # However many are in memory: if none of them can be delivered, it is for those that are not.
        has_room = len(self._due) < _LOAD_BELOW or next_ms is None
        if load_ms is not None and may_load and has_room and "load" not in self._working:
            work.append((load_ms, lambda now_ms: self._do("load", self._load(now_ms))))
        if "deliver" not in self._working:
            late = self._progress.late
            if late is not None and not behind:
                work.append((self._due.pause_ms, lambda now_ms: self._do("deliver", self._deliver_late(late, now_ms))))
            elif next_ms is not None:
                work.append((next_ms, lambda now_ms: self._deliver(now_ms, min(now_ms, limit_ms))))
        return work

    def _limit_ms(self, behind: int) -> int:
        """What is due later is not all in memory yet."""
        complete_ms = self._window.complete_ms
        return min(complete_ms, self._entered_ms) if behind else complete_ms

    def _do(self, name: str, job: Coroutine[Any, Any, None]) -> None:
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
                log.info("timer delivery is delayed: %s", error)
                self._rest_ms = self._now_ms() + _AFTER_FAILURE_MS
            finally:
                self._working.discard(name)

        self._working.add(name)
        self._agenda.spawn(self, work())

    def on_files(self, work: Callable[..., Any], *arguments: Any) -> asyncio.Future[Any]:
        """Its turn comes after everything handed in before."""
        return asyncio.get_running_loop().run_in_executor(self._pool, work, *arguments)

    # -- opening ---------------------------------------------------------------------------------------------------------------

    def _do_open(self, _now_ms: int) -> None:
        self._do("open", self._open())

    async def _open(self) -> None:
        generation, why = self._generation, self._broken
        if why is None:
            await self._appender.visible(self._store.append_offset)  # the first one is in the queue then
            opened = await self.on_files(self._book.open, self._progress)
        else:
            opened = await self.on_files(self._book.rebuild, self._progress, why)
        if generation == self._generation:
            self._begin(opened)

    def _begin(self, opened: Opened) -> None:
        change = dict(opened.change or {})
        if self._progress.built_behind < self._book.last_step:
            change["built"] = self._book.last_step
        if change:
            self._appender.append_group([], [("timer", change)], own=True)
        if self._progress.due_ms > self._now_ms() + TOLERANCE_MS:
            # Another broker's clock was ahead of ours: what it has delivered is delivered, but what is stored from now on is not.
            step = self._began
            if any(below >= step.log_offset for below, _due, _last in self._progress.passed):  # the clock was set since
                step = ClockStep(self._store.append_offset, 0, self._now_ms())
            ahead = {"step": list(step)}
            self._appender.append_group([], [("timer", ahead)], own=True)
            self._build_again("they were delivered by a clock that was ahead of ours")
            return
        read_ms = opened.read_ms
        if opened.rebuilt:
            self._metrics.clear()
            # nothing is entered for a slot before, so none is looked at
            read_ms = max(read_ms, self._now_ms() - OVERDUE_MS)
        self._delivered_before += self._due.delivered
        self._due = self._new_due()
        self._window = TimerWindow(read_ms)
        self._queue_offset = opened.queue_offset
        self._entered_ms = 0
        self._broken = None
        self._opened = True
        if self._to_count and not opened.rebuilt:
            self._do("count", self._count())
        self._to_count = False

    async def _count(self) -> None:
        """How many wait for each topic, a little at a time. Deliveries go on meanwhile, so the numbers are about right."""
        generation, at = self._generation, 0
        loop = asyncio.get_running_loop()
        names = {java_hash(name): name for name in self._topics.table}
        end = self.checkpoint.log_position  # what is entered from now on is counted then
        self._metrics.clear()
        while generation == self._generation and not self._agenda.is_closed:
            began = loop.time()
            counts, next_at = await self.on_files(self._book.count, at, end, names, self._progress)
            for topic, number in counts.items():
                self._metrics.add(topic, number)
            if next_at is None:
                return
            at = next_at
            await asyncio.sleep(_REST * (loop.time() - began))

    def clock_stepped(self, _step: ClockStep) -> None:
        """The wall clock was set: messages with a delay are due at another time now, so the files are built again."""
        self._rest_ms = self._saved_ms = 0
        if self._opened or self._working:
            self._build_again("the wall clock was set")
        self._agenda.wake()

    def _build_again(self, why: str) -> None:
        self._opened = False
        self._generation += 1
        self._broken = why

    def _let_go(self, error: Exception) -> None:
        """The files are invalid, or cannot be used for now: rebuild them from the queue, or open them again."""
        self._opened = False
        self._generation += 1
        if isinstance(error, OSError):
            log.error("the timer files cannot be used: %s", error)
            self._rest_ms = self._now_ms() + _AFTER_FAILURE_MS
            if error.errno in _PASSING:
                return
        self._broken = str(error)

    def files_are_damaged(self, why: str) -> None:
        """The files were found to be invalid: rebuild them from the queue."""
        self._let_go(StoreDamaged(why))
        self._agenda.wake()

    # -- entering, loading, delivering -----------------------------------------------------------------------------------------

    async def _enter(self, now_ms: int) -> None:
        store, generation = self._store, self._generation
        if store.queue_state(TIMER_TOPIC, 0).end <= self._queue_offset:
            await self._appender.visible(store.append_offset)  # it was appended, and is not in the queue yet
            if generation != self._generation:
                return
        low, end, _next, _stored = store.queue_state(TIMER_TOPIC, 0)
        first = max(self._queue_offset, low)
        count = min(ENTER_MAX, end - first)
        if count <= 0:
            await asyncio.sleep(_LOOK_AGAIN_S)
            return
        self._window.grow(self._reach_ms(now_ms))
        entries, records = self._book.at_hand(first, count)
        entered: Entered = await self.on_files(
            self._book.enter,
            first,
            count,
            entries,
            self._window.upto_ms,
            self._progress,
            now_ms,
            self._pending_ms(),
            records,
        )
        if generation != self._generation:
            return
        self._due.add(entered.upcoming, entered.cancels)
        self._window.note(entered.slots)
        for topic, number in entered.counts.items():
            self._metrics.add(topic.decode("utf-8", "replace"), number)
        self._queue_offset = entered.queue_offset
        self._entered_ms = max(self._entered_ms, entered.stored_ms)  # of what comes, nothing was stored before
        self._saved_ms = now_ms
        self.entered += count

    async def _load(self, now_ms: int) -> None:
        """The seconds that come next."""
        from_ms, to_ms = self._window.begin_load(self._reach_ms(now_ms))
        horizon_ms = max(now_ms, to_ms) + self._book.reach_ms(self._progress)
        generation, window = self._generation, self._window
        try:
            loaded: Loaded = await self.on_files(self._book.load, from_ms, to_ms, horizon_ms, _LOAD_MAX, self._progress)
        except BaseException:
            window.give_up_load()
            raise
        if generation != self._generation:
            return
        self._due.load(loaded.buckets, loaded.cancels)
        self._window.end_load(min(loaded.upto_ms, to_ms), loaded.next_slot)
        if self._window.is_all and not self._due and not self.behind:
            self._metrics.clear()

    def _reach_ms(self, now_ms: int) -> int:
        """The time that memory is filled for: what cannot be delivered yet need not be there, and may be very much."""
        return min(now_ms, self._entered_ms) if self.behind > ENTER_MAX else now_ms

    def _deliver(self, now_ms: int, limit_ms: int) -> None:
        job = self._due.deliver(now_ms, limit_ms, self._is_recalled)
        if job is not None:
            self._do("deliver", job)
        if now_ms - self._saved_ms >= _SAVE_MS and "save" not in self._working:
            self._saved_ms = now_ms
            self._do("save", self._save(now_ms))

    async def _deliver_late(self, late: Late, now_ms: int) -> None:
        def find(late: Late, count_max: int) -> asyncio.Future[tuple[int, list[Timer]]]:
            return self.on_files(self._book.late, late, count_max)

        await self._due.deliver_late(late, find, now_ms)

    # -- how far we are --------------------------------------------------------------------------------------------------------

    def _pending_ms(self) -> int:
        """Of what is entered, everything that is due before is delivered."""
        first_ms, complete_ms = self._due.first_ms, self._window.complete_ms
        return complete_ms if first_ms is None else min(complete_ms, first_ms)

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
        await self._appender.answerable(self._store.append_offset)  # the files do not run ahead of the written log
        if generation == self._generation:
            await self.on_files(self._book.save, now_ms, read_ms)

    async def _is_log_safe(self) -> bool:
        """Return whether everything that counts as delivered is on disk."""
        try:
            await asyncio.wait_for(self._appender.confirmed(self._store.append_offset), _STOP_WAIT_S)
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
        left = self._due.of_slot(start) if start < self._window.upto_ms else None
        await self.on_files(self._book.close, now_ms, read_ms, self._queue_offset, left)
