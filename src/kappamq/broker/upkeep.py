"""What has to be done from time to time, and where: decisions on the loop, files on one worker thread."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from kappamq.broker.burst import Bursts
from kappamq.broker.gate import Gate
from kappamq.broker.metadata import Metadata
from kappamq.broker.offsets import Offsets
from kappamq.clock import Clock
from kappamq.errors import NotAvailable
from kappamq.store import retention
from kappamq.store.message_store import DerivedWork, MessageStore

log = logging.getLogger(__name__)

_SYNC_DERIVED_S = 30.0
_LOOK_S = 1.0  # a changed interval takes effect within this
_PREPARE_BELOW = 0.5  # make the next log file when the current one is half full
_HOT_BYTES = min(1 << 30, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 8)
"""So much of the log's end is taken to be in memory; what lies before it is read by a worker first."""
_NO_ROOM = "no room"
_DISK_FULL = "disk full"


class Upkeep:
    def __init__(
        self, store: MessageStore, bursts: Bursts, gate: Gate, metadata: Metadata, offsets: Offsets, clock: Clock
    ) -> None:
        self._store = store
        self._bursts = bursts
        self._gate = gate
        self._metadata = metadata
        self._offsets = offsets
        self._clock = clock
        # One thread for everything that writes derived files, so that these writes keep their order.
        self._writer = ThreadPoolExecutor(1, "kappamq-files")
        self._readers = ThreadPoolExecutor(4, "kappamq-cold")
        self._tasks: list[asyncio.Task[None]] = []
        self._derived = asyncio.Lock()
        self._synced_at = clock.liveness()
        self._last_work: DerivedWork | None = None
        self._preparing = False
        self._guard = retention.DiskGuard(store.config)
        self.on_tick: list[Callable[[], None]] = []  # ten times a second: waiting pulls, late flushes
        self.on_entered: Callable[[DerivedWork], Awaitable[None]] | None = None  # entries have got to their files
        self.record_s: Callable[[], float] = lambda: 1.0  # between two records of consumer offsets

    def start(self) -> None:
        config = self._store.config
        loop = asyncio.get_running_loop()
        loop.add_reader(self._store.flush_fd, self._bursts.flush_done)
        self._every(lambda: 0.1, self._tick)
        self._every(lambda: config.flush_interval_ms / 1000, self._flush)
        self._every(lambda: config.queue_flush_interval_ms / 1000, self.write_derived)
        self._every(self.record_s, self._record_and_save)
        self._every(lambda: config.clean_interval_ms / 1000, self._clean)
        self._tasks.append(asyncio.create_task(self._catch_up()))

    def _every(self, seconds: Callable[[], float], work: Callable[[], Awaitable[None]]) -> None:
        """Do `work` again and again, with a pause that may be changed (even shortened) while it lasts."""

        async def repeat() -> None:
            loop = asyncio.get_running_loop()
            last = loop.time()
            while True:
                pause = last + seconds() - loop.time()
                if pause > 0:
                    await asyncio.sleep(min(pause, _LOOK_S))
                    continue
                try:
                    await work()
                except Exception:
                    log.exception("upkeep failed, trying again in %g s", seconds())
                last = loop.time()

        self._tasks.append(asyncio.create_task(repeat()))

    async def stop(self) -> None:
        asyncio.get_running_loop().remove_reader(self._store.flush_fd)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        async with self._derived:
            self._offsets.record_commits()
            self._bursts.end_turn()
            await self.write(self._metadata.save, self._metadata.collect())
        self._readers.shutdown(wait=True)
        self._writer.shutdown(wait=True)

    # -- threads -----------------------------------------------------------------------------------------------------------

    def write(self, work: Callable[..., Any], *arguments: Any) -> asyncio.Future[Any]:
        """Its turn comes after everything handed in before, awaited or not."""
        return asyncio.get_running_loop().run_in_executor(self._writer, work, *arguments)

    def read(self, work: Callable[..., Any], *arguments: Any) -> asyncio.Future[Any]:
        return asyncio.get_running_loop().run_in_executor(self._readers, work, *arguments)

    # -- tasks -------------------------------------------------------------------------------------------------------------

    async def _tick(self) -> None:
        self._bursts.check_waiting(self._store.config.sync_flush_timeout_ms / 1000)
        for callback in self.on_tick:
            callback()
        current = self._store.log
        self._store.kernel.hot_from = max(self._store.kernel.hot_from, current.end - _HOT_BYTES)
        if (
            not current.next_is_ready
            and not self._preparing
            and current.end % current.segment_bytes > _PREPARE_BELOW * current.segment_bytes
        ):
            await self._prepare()

    async def _prepare(self) -> None:
        """Make the next log file before it is needed. A disk without room for it is full, while there is still time to say so."""
        self._preparing = True
        try:
            log_files = self._store.log
            start = log_files.segment_end
            segment = await self.read(log_files.prepare)
            if log_files.segment_end == start and not log_files.next_is_ready:
                log_files.prepared(segment)
            else:
                log_files.discard(segment)
            self._gate.open(_NO_ROOM)
        except OSError as error:
            self._gate.close(
                _NO_ROOM,
                NotAvailable(
                    f"there is no room for the next log file ({error.strerror}): free some space, writing resumes by itself"
                ),
            )
        finally:
            self._preparing = False

    async def _flush(self) -> None:
        self._store.request_flush()

    async def write_derived(self) -> None:
        """Bring queue entries and keys into their files."""
        async with self._derived:
            if self._store.failed is not None:
                return
            work = self._store.collect()
            if work.entries or work.index or self._last_work is None or self._last_work.dispatched != work.dispatched:
                await self.write(self._store.write_derived, work)
                self._last_work = work
                if self.on_entered is not None:
                    await self.on_entered(work)
            now = self._clock.liveness()
            if work.complete and now - self._synced_at > _SYNC_DERIVED_S and self._last_work is not None:
                self._synced_at = now
                await self.write(self._store.sync_derived, self._last_work)

    async def _record_and_save(self) -> None:
        if self._store.failed is None:
            self._offsets.record_commits()
            work = self._metadata.collect()
            if work:
                await self.write(self._metadata.save, work)

    async def _catch_up(self) -> None:
        """Keys of old records, after a crash or a lost index: a little at a time, so that nobody notices."""
        while self._store.catching_up():
            self._store.catch_up()
            await self.write_derived()

    async def _clean(self) -> None:
        """Delete what has expired; refuse writes while the disk is too full."""
        usage = retention.Usage(*await self.read(self._store.files.usage, self._store.config.root))
        await self._guard_disk(usage)
        await self.delete_expired(usage)

    async def delete_expired(self, usage: retention.Usage | None = None, asked: bool = False) -> int:
        """Delete log files whose time is over, and what was derived from them; how many went."""
        if usage is None:
            usage = retention.Usage(*await self.read(self._store.files.usage, self._store.config.root))
        files = [retention.LogFile(s.start, self._store.files.mtime_ms(s.path)) for s in self._store.log.segments()]
        needed_from = min(self._metadata.needed_from, self._store.flushed.offset, self._store.dispatched.offset)
        plan = retention.plan(files, self._clock.message_ms(), self._store.config, usage, needed_from, asked=asked)
        for deletion in plan.delete:
            log.info("deleting log file %020d: %s", deletion.start, deletion.why)
            await self.read(self._store.log.discard, self._store.log.detach(deletion.start))
        if plan.delete:
            await self.raise_minimums()
        return len(plan.delete)

    async def raise_minimums(self) -> None:
        """The log has lost its beginning: queues and index lose theirs."""
        log_min = self._store.log.min
        for topic, queue_id in await self.write(lambda: list(self._store.queues.queues())):
            low, end, _next, _stored = self._store.kernel.queue_state(topic, queue_id)
            new_low = await self.read(self._store.first_at_or_behind, topic, queue_id, log_min)
            if new_low > low:
                self._store.kernel.set_queue_min(topic, queue_id, min(new_low, end))
                if await self.write(self._store.queues.delete_below, topic, queue_id, new_low):
                    self._store.queues.forget_readers(topic, queue_id)
        await self.write(self._store.index.expire, log_min)

    async def _guard_disk(self, usage: retention.Usage) -> None:
        if self._guard.check(usage):
            if self._guard.refusing:
                log.error("refusing messages: %s", self._guard.why)
            else:
                log.info("taking messages again: %s", usage)
                self._gate.open(_DISK_FULL)
        if self._guard.refusing:
            self._gate.close(_DISK_FULL, NotAvailable(self._guard.why))
        if self._gate.has(_NO_ROOM) and not self._preparing:
            if self._store.log.next_is_ready:
                self._gate.open(_NO_ROOM)
            else:
                await self._prepare()
