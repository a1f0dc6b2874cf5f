"""When and how fast the store is scrubbed: on a separate thread, at a bounded rate, and not while the broker is busy."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from kappamq.broker.upkeep.damage import Counts
from kappamq.clock import Clock
from kappamq.store.log.log_reader import LogReader
from kappamq.store.message_store import MessageStore
from kappamq.store.verify.queues import DeletedBelow
from kappamq.store.verify.repair import MARKS, StoreRepair
from kappamq.store.verify.report import CopyFix, EntryFix, Kind, Problem, Report, WriteAgain
from kappamq.store.verify.scrub import Scrub, ScrubPosition
from kappamq.store.verify.timers import TIMERS, is_still_wrong

log = logging.getLogger(__name__)

Worker = Callable[..., Awaitable[Any]]

_FIRST_S = 60.0  # after the start: then there is other work to do
_LOOK_S = 1.0
_SLICE_S = 0.001
_SLICE_BYTES = 256 << 10
_SHARE = 10  # of the time a core has, one part at most is ours
_BUSY = 0.5  # share of its time that the loop may be working without being called busy
_SAVE_S = 5.0
_REPORTED_MAX = 100  # problems that a pass puts into the log one by one


class Timers(Protocol):
    def on_files(self, work: Callable[..., Any], *arguments: Any) -> Awaitable[Any]: ...

    def files_are_damaged(self, why: str) -> None: ...


class Load:
    """Whether the loop's thread has had much to do since this was asked last."""

    def __init__(self) -> None:
        self._wall, self._used = time.monotonic(), time.thread_time()

    def is_high(self) -> bool:
        wall, used = time.monotonic(), time.thread_time()
        share = (used - self._used) / max(wall - self._wall, 1e-6)
        self._wall, self._used = wall, used
        return share > _BUSY


class Scrubber:
    def __init__(
        self,
        store: MessageStore,
        counts: Counts,
        clock: Clock,
        write: Worker,
        write_again: Worker,
        timers: Callable[[], Timers | None],
        deleted_below: DeletedBelow,
        from_copy: Callable[[int, int], Awaitable[bool]],
    ) -> None:
        """`from_copy`: have these bytes of the log brought from another copy; whether they are good then."""
        self._from_copy = from_copy
        self._store = store
        self._counts = counts
        self._clock = clock
        self._write = write
        self._write_again = write_again  # a snapshot and its .bak, from memory: whether that was possible
        self._timers = timers  # None while this node is not the master: then their files are not in use
        self._deleted_below = deleted_below
        self._repair = StoreRepair(store, deleted_below)
        self._thread = ThreadPoolExecutor(1, "kappamq-scrub")
        self._path = store.config.root / "kappamq.scrub"
        self._position = ScrubPosition()
        self._scrub: Scrub | None = None
        self._task: asyncio.Task[None] | None = None
        # a pass since the start: a machine that went down may have come back with damaged files
        self._is_first_done = False
        self._are_timers_built_again = False  # in this pass
        self._mended: list[tuple[int, int]] = []  # in this pass, with the bytes of another copy
        self._last = "none yet"
        self._load = Load()
        self.is_busy: Callable[[], bool] = lambda: self._load.is_high() or store.failed is not None

    def start(self) -> None:
        self._position = ScrubPosition.load(self._path, self._store.files)
        self._task = asyncio.create_task(self._repeat())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._thread.shutdown(wait=True)

    # -- when ----------------------------------------------------------------------------------------------------------------

    async def _repeat(self) -> None:
        await asyncio.sleep(_FIRST_S)
        while True:
            if not self._store.config.scrub_enabled or not self._is_due():
                await asyncio.sleep(_LOOK_S)
                continue
            try:
                await self.run_pass()
            except Exception:
                log.exception("the scrub stopped in the middle; it begins again in %g s", _FIRST_S)
                await asyncio.sleep(_FIRST_S)

    def _is_due(self) -> bool:
        if self._position.running or not self._is_first_done:
            return True
        since_ms = self._clock.message_ms() - self._position.finished_ms
        # A clock that was ahead once must not put it off.
        return not 0 <= since_ms < self._store.config.scrub_interval_hours * 3_600_000

    async def _rest(self, looked_at: int, used_s: float) -> None:
        """Keep to the rate and to a small part of a core; wait while others need both."""
        await asyncio.sleep(max(looked_at / self._store.config.scrub_bytes_per_second, (_SHARE - 1) * used_s))
        while self.is_busy():  # noqa: ASYNC110 - nobody tells when a load is over
            await asyncio.sleep(_LOOK_S)

    # -- a pass --------------------------------------------------------------------------------------------------------------

    async def run_pass(self) -> list[Problem]:
        """From where the last one stopped to the end: what was found, all of it confirmed."""
        position = self._position
        if not position.running:
            position.log_offset, position.running = 0, True
        self._scrub = scrub = Scrub(self._store, position, self._deleted_below)
        found: list[Problem] = []
        repaired_before = self._counts.repaired
        self._are_timers_built_again = False
        self._mended.clear()
        began, is_late_told = self._clock.liveness(), False
        try:
            steps, saved_at = scrub.steps(), time.monotonic()
            more = True
            while more:
                more, looked_at, used_s = await self._on_thread(_slice, steps, scrub.report)
                if scrub.report.problem_count:
                    found += await self._settle(scrub.report, _REPORTED_MAX - len(found))
                if time.monotonic() - saved_at > _SAVE_S:
                    saved_at = time.monotonic()
                    await self._on_thread(self._save)
                if more:
                    await self._rest(looked_at, used_s)
                    is_late_told = is_late_told or self._tell_if_late(began, scrub)
            position.running, position.log_offset = False, 0
            position.passes += 1
            # A step that found more than can be kept: the next pass finds the rest, as long as anything gets better.
            self._is_first_done = not (scrub.report.left_out and self._counts.repaired > repaired_before)
            position.finished_ms = self._clock.message_ms()
        finally:
            self._scrub = None
            # Shielded: a broker that stops just now still saves that the pass is done.
            await asyncio.shield(self._on_thread(self._end_pass, scrub))
        self._last = f"{scrub.report.records} records, {len(found)} {'problem' if len(found) == 1 else 'problems'}"
        log.log(logging.WARNING if found else logging.INFO, "scrub: a pass over the store is done: %s", self._last)
        return found

    def _tell_if_late(self, began: float, scrub: Scrub) -> bool:
        """Whether the pass takes longer than there should be between two; said once a pass, and not only at its end."""
        config = self._store.config
        if not 0 < config.scrub_interval_hours * 3600 < self._clock.liveness() - began:
            return False
        log.warning(
            "scrub: this pass takes longer than store.scrub_interval_hours=%d and has done %.0f%% of the log, so damage is found later "
            "than that. It reads at most %d bytes/s (store.scrub_bytes_per_second), uses at most 1/%d of a core and waits while the "
            "broker is busy; `kappamq store verify` on a copy of the store has no such bounds",
            *(config.scrub_interval_hours, 100 * scrub.progress, config.scrub_bytes_per_second, _SHARE),
        )
        return True

    def _on_thread(self, work: Callable[..., Any], *arguments: Any) -> asyncio.Future[Any]:
        return asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)

    def _end_pass(self, scrub: Scrub) -> None:
        scrub.close()
        self._save()

    def _save(self) -> None:
        try:
            self._position.save(self._path, self._store.files)
        except OSError as error:
            log.warning("%s cannot be written (%s): after a restart the scrub starts over", self._path, error)

    # -- what it finds -------------------------------------------------------------------------------------------------------

    async def _settle(self, report: Report, tell_max: int) -> list[Problem]:
        """Confirm and repair the findings of a slice; log those that remain."""
        problems, count = report.problems, report.problem_count
        report.problems, report.problem_count = [], 0
        if count > len(problems):
            log.error(
                "scrub: %d more problems in one place are not listed; what can be repaired is in the next pass",
                count - len(problems),
            )
        confirmed: list[Problem] = []
        for problem in problems:
            repaired = await self._mend(problem)
            if repaired is None:
                continue
            confirmed.append(problem)
            self._counts.found += 1
            self._counts.repaired += repaired
            if len(confirmed) <= tell_max:
                outcome = "repaired" if repaired else "cannot be repaired: restore the file from a copy"
                log.log(logging.WARNING if repaired else logging.ERROR, "scrub: %s; %s", problem, outcome)
        return confirmed

    async def _mend(self, problem: Problem) -> bool | None:
        """Whether it could be repaired; None if it is not there any more."""
        if problem.fix == TIMERS:
            return await self._mend_timers(problem)
        if problem.kind is Kind.LOG and problem.offset < self._store.log.min:
            return None
        if problem.kind is Kind.INDEX and any(start <= problem.offset < stop for start, stop in self._mended):
            return None  # the key is right: its record was damaged when it was looked at
        try:
            if not await self._write(self._repair.repair, problem):
                return None
        except OSError as error:
            log.error("scrub: %s could not be repaired: %s", problem, error)
            return False
        if isinstance(problem.fix, WriteAgain) and problem.fix.name not in MARKS:
            return bool(await self._write_again(problem.fix.name))
        if isinstance(problem.fix, CopyFix):
            start, stop = problem.fix.start, problem.fix.stop
            if not await self._from_copy(start, stop):
                return False
            self._mended.append((start, stop))
            return True
        if isinstance(problem.fix, EntryFix):
            self._store.entries_were_replaced(problem.fix.topic, problem.fix.queue_id)
        return problem.fix is not None

    async def _mend_timers(self, problem: Problem) -> bool | None:
        timers = self._timers()
        if timers is None or self._are_timers_built_again or not await timers.on_files(self._is_wrong_timer, problem):
            return None  # it was being written, or one problem was enough
        self._are_timers_built_again = True
        timers.files_are_damaged(str(problem))
        return True

    def _is_wrong_timer(self, problem: Problem) -> bool:
        """On the thread that writes the timer files."""
        store = self._store
        reader = LogReader(store.log.folder, store.files, store.config.segment_bytes)
        try:
            return is_still_wrong(store.config.root, reader, store.files, lambda: store.clock_steps, problem)
        finally:
            reader.close()

    # -- told ----------------------------------------------------------------------------------------------------------------

    def table(self) -> dict[str, str]:
        """For the runtime info."""
        state = "waiting" if self._store.config.scrub_enabled else "off"
        if self._scrub is not None:
            state = f"running, {self._scrub.progress:.0%} of the log"
        return {
            "kappamqScrub": state,
            "kappamqScrubPasses": str(self._position.passes),
            "kappamqScrubFinishedMs": str(self._position.finished_ms),
            "kappamqScrubLastPass": self._last,
        }


def _slice(steps: Iterator[int], report: Report) -> tuple[bool, int, float]:
    """Worker: go on for a moment, and no further than problems can be kept: (whether there is more, bytes looked at, seconds of
    computing)."""
    began, looked_at = time.thread_time(), 0
    for count in steps:
        looked_at += count
        used_s = time.thread_time() - began
        if looked_at >= _SLICE_BYTES or used_s >= _SLICE_S or report.is_half_full:
            return True, looked_at, used_s
    return False, looked_at, time.thread_time() - began
