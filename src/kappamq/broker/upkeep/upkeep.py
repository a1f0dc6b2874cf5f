"""Periodic work: decisions on the loop, files on one worker thread."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Protocol

from kappamq.broker.events import LogShortened, Tick
from kappamq.broker.foundation import Foundation
from kappamq.broker.sending.gate import DISK_FULL, FILES, not_master
from kappamq.errors import KappaError, NotAvailable
from kappamq.state.metadata import Collected
from kappamq.store import retention
from kappamq.store.derived import DerivedWork

log = logging.getLogger(__name__)

_SAVE_OFFSETS_S = 30.0
_LOOK_S = 1.0  # a changed interval takes effect within this
HOT_BYTES = min(1 << 30, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 8)
"""This much of the log's end is assumed to be in memory; a worker reads earlier parts first."""
_DERIVED_AT_ONCE = 50_000  # messages whose entries are written before the time for it has come, to free their memory
_NO_DESCRIPTOR_S = 30.0


class Keeper(Protocol):
    """A part whose state lies in the log itself: open transactions, pending timers."""

    @property
    def needed_from(self) -> int:
        """Return the log offset from which on the log is still needed."""
        ...

    async def renew_below(self, log_min: int) -> None:
        """Retention is about to delete the log below `log_min`: copy what is still needed of it to the log's end, durably."""
        ...


class Upkeep:
    def __init__(self, base: Foundation, entered: Callable[[DerivedWork], Awaitable[None]]) -> None:
        """`entered`: called when queue entries have been written to their files."""
        self._config, self._events, self._clock, self._gate = base.config, base.events, base.clock, base.gate
        self._store = store = base.store
        self._log_writer, self._next_file, self._workers = base.writer, base.next_file, base.workers
        self._read, self._write = base.workers.read, base.workers.write
        self._metadata, self._offsets = base.metadata, base.tables.offsets
        self._entered = entered
        self._tasks: list[asyncio.Task[None]] = []
        self._derived = asyncio.Lock()
        self._held: set[asyncio.Future[None]] = set()
        self._cleaning = asyncio.Lock()
        self._shortening: asyncio.Task[None] | None = None
        self._synced_at = base.clock.liveness()
        self._save_offsets_at = 0.0  # at the first opportunity: what was found at the start may be news
        self._last_work: DerivedWork | None = None
        self._derived_count = store.arrived_count  # messages whose entries were taken to be written
        self._relief: asyncio.Task[None] | None = None
        self._snapshots_fail = False
        self._unwritable_since: float | None = None
        self._guard = retention.DiskGuard(store.config)
        self._keepers: list[Keeper] = []
        self._role_keepers: Sequence[Keeper] | None = None  # of the role that may write, while this node has it
        # What changes all the time: written now and then, and at the end.
        self._saved_seldom = frozenset({base.tables.offsets.file, *base.delivery_tables.saved_seldom})

    def start(self) -> None:
        config = self._store.config
        loop = asyncio.get_running_loop()
        loop.add_reader(self._store.flush_fd, self._log_writer.flush_done)
        self._every(lambda: 0.1, self._tick)
        self._every(lambda: config.flush_interval_ms / 1000, self._flush)
        self._every(lambda: config.queue_flush_interval_ms / 1000, self.write_derived)
        self._every(lambda: self._config.offsets_flush_ms / 1000, self._record_and_save)
        self._every(lambda: config.clean_interval_ms / 1000, self.clean)
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
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, *filter(None, [self._relief, self._shortening]), return_exceptions=True)
        self._next_file.stop()
        async with self._derived:
            await self._record_and_save(last=True)
            self._log_writer.end_turn()
        asyncio.get_running_loop().remove_reader(self._store.flush_fd)
        self._workers.stop()

    # -- the role that may write -------------------------------------------------------------------------------------------

    def keep_for(self, *keepers: Keeper) -> None:
        """Old log files are deleted once these no longer need them, whatever the role."""
        self._keepers += keepers

    def begin_role(self, keepers: Sequence[Keeper]) -> None:
        """This node may write: offsets are recorded, and old log files deleted once these keepers no longer need them."""
        self._role_keepers = keepers

    async def end_role(self) -> None:
        """It is not known any more what the log must keep, so nothing is deleted. A deletion that is under way ends first."""
        self._role_keepers = None
        async with self._cleaning:
            pass

    # -- tasks -------------------------------------------------------------------------------------------------------------

    async def _tick(self) -> None:
        self._log_writer.check_waiting(self._store.config.sync_flush_timeout_ms / 1000)
        self._events.publish(Tick())
        if self._store.arrived_count - self._derived_count >= _DERIVED_AT_ONCE and not self._derived.locked():
            self._relief = asyncio.create_task(self.write_derived())
        self._store.keep_hot(HOT_BYTES)
        self._next_file.prepare_in_time()

    async def _flush(self) -> None:
        self._store.request_flush()

    def hold_entries(self) -> asyncio.Future[None]:
        """Queue entries stay in memory until the caller has set the result. Nothing else waits for it."""
        held: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._held.add(held)
        held.add_done_callback(self._held.discard)
        return held

    @asynccontextmanager
    async def files_at_rest(self) -> AsyncIterator[None]:
        """While this context is held no thread works on files that are derived from the log."""
        async with self._cleaning, self._derived:
            await self._write(lambda: None)  # its turn comes when what was handed in before is done
            yield

    async def write_derived(self) -> None:
        """Bring queue entries and keys into their files. What cannot be written now waits for the next time."""
        async with self._derived:
            while self._held:
                await asyncio.wait(self._held)
            if self._store.failed is not None:
                return
            work = self._store.collect()
            self._derived_count = self._store.arrived_count
            now = self._clock.liveness()
            try:
                await self._sync_derived(now)
                if (
                    work.entries
                    or work.index
                    or self._last_work is None
                    or self._last_work.dispatched != work.dispatched
                ):
                    await self._write(self._store.write_derived, work)
                    self._last_work = work
                    await self._entered(work)
            except OSError as error:
                self._cannot_write(error, now)
            else:
                self._unwritable_since = None
                if self._gate.open(FILES):
                    log.info("accepting messages again: queue and index files can be written")

    async def _sync_derived(self, now: float) -> None:
        """Make durable what the last round has written, once its log is: after a power cut, files that are ahead of the log would pass
        for those of another one. A leader enters what its followers have on disk, before its own has it."""
        work = self._last_work
        due = self._synced_at + self._store.config.queue_sync_interval_ms / 1000
        if work is None or not work.complete or now < due:
            return
        if work.dispatched <= self._store.marks.flushed.offset:
            self._synced_at = now
            await self._write(self._store.sync_derived, work)

    def _cannot_write(self, error: OSError, now: float) -> None:
        """Entries without a file stay in memory, so their number must be limited."""
        if self._unwritable_since is None:
            self._unwritable_since = now
        # A full disk stays full, but descriptors come back when a connection is closed.
        patience_s = _NO_DESCRIPTOR_S if error.errno in (errno.EMFILE, errno.ENFILE) else 0.0
        if now - self._unwritable_since >= patience_s:
            why = error.strerror or str(error)
            text = f"queue and index files cannot be written ({why}): see to the disk, writing resumes by itself"
            if self._gate.close(FILES, NotAvailable(text)):
                log.error("refusing messages: %s", text)

    async def _record_and_save(self, last: bool = False) -> None:
        """Offsets into the log, changed tables into their snapshots. With a log that takes nothing the snapshots must do;
        else that of the offsets, which change all the time, is written now and then, and at the end."""
        now = self._clock.liveness()
        due = last or now >= self._save_offsets_at
        if self._role_keepers is not None and not self.record_commits():
            due = True
        if due:
            self._save_offsets_at = now + _SAVE_OFFSETS_S
        work = self._metadata.collect(leave=() if due else self._saved_seldom)
        if work:
            await self._save(work)

    def record_commits(self) -> bool:
        """Consumer offsets into the log; False if it does not take them."""
        try:
            self._offsets.record_commits()
        except KappaError as error:
            log.info("could not record consumer offsets: %s", error)
            return False
        return True

    async def _save(self, work: list[Collected]) -> set[str]:
        """Write snapshots, but none that is ahead of the log on disk: after a power cut it would be trusted. Returns those written."""
        try:
            async with asyncio.timeout(self._store.config.sync_flush_timeout_ms / 1000):
                await self._log_writer.confirmed(max((item[2] for item in work), default=0))
        except (NotAvailable, TimeoutError):
            kept = [item for item in work if item[2] <= self._store.marks.confirmed.offset]
            self._metadata.due_again({item[0] for item in work} - {item[0] for item in kept})
            work = kept
        try:
            await self._write(self._metadata.save, work)
            self._snapshots_fail = False
        except OSError as error:
            if not self._snapshots_fail:
                log.error("settings and offsets are in the log only, their files cannot be written: %s", error)
            self._snapshots_fail = True
            return set()
        return {item[0] for item in work}

    async def renew_snapshots(self) -> int:
        """Have every snapshot reflect the log's beginning at least; returns where that is. Files may still be deleted afterwards."""
        async with self._cleaning:
            metadata, log_min = self._metadata, self._store.log.min
            # Also a table that has never changed: a broker that gets these files must not have to guess.
            metadata.due_again({name for name in metadata.files() if metadata.stamp(name) < log_min})
            await self._save(metadata.collect())
            return log_min

    async def save_now(self, name: str) -> bool:
        """Write one table; False if that is not possible."""
        self._metadata.due_again({name})
        return name in await self._save(self._metadata.collect(only={name}))

    async def write_snapshot_again(self, name: str) -> bool:
        """The file was damaged: write it from memory, twice, for the damaged one becomes the .bak. False if that is not possible."""
        if not self._metadata.has_table(name):
            return False
        return await self.save_now(name) and await self.save_now(name)

    async def _catch_up(self) -> None:
        """Enter keys of old records, after a crash or a lost index: a little at a time, so that clients do not notice."""
        while self._store.catching_up():
            if self._store.failed is not None or self._unwritable_since is not None:
                await asyncio.sleep(1.0)  # what is entered now would only pile up
                continue
            at, size = self._store.next_catch_up
            await self._read(self._store.warm, at, size)
            self._store.catch_up()
            await self.write_derived()

    async def clean(self) -> None:
        """Delete what has expired; refuse writes while the disk is too full."""
        usage = retention.Usage(*await self._read(self._store.files.usage, self._store.config.root))
        self._guard_disk(usage)
        await self.delete_expired(usage)

    async def delete_expired(self, usage: retention.Usage | None = None, asked: bool = False) -> int:
        """Delete log files whose time is over, and what was derived from them; how many went.

        None without the role that may write: what waits in old files could not be stored again. Raises NotMaster if that was
        `asked` for."""
        async with self._cleaning:
            role_keepers = self._role_keepers
            if role_keepers is None:
                if asked:
                    raise not_master()
                return 0
            keepers = [*self._keepers, *role_keepers]
            if usage is None:
                usage = retention.Usage(*await self._read(self._store.files.usage, self._store.config.root))
            plan = self._plan(usage, asked)
            if not plan.delete:
                return 0
            # Snapshots that reach further back than the log will are written anew; twice, for the older version is kept, too.
            log_min = plan.delete[-1].start + self._store.config.segment_bytes
            for _ in range(2):
                if self._metadata.needed_from < log_min:
                    await self._save(self._metadata.collect(renew_below=log_min))
            for keeper in keepers:
                try:
                    await keeper.renew_below(log_min)
                except (KappaError, OSError) as error:  # then its part of the log stays
                    log.warning(
                        "%s could not copy the records it needs from old log files: %s", type(keeper).__name__, error
                    )
            if self._role_keepers is not role_keepers:
                return 0  # the role has ended meanwhile
            needed_from = min([self._metadata.needed_from, *(keeper.needed_from for keeper in keepers)])
            plan = self._plan(usage, asked, needed_from)
            for deletion in plan.delete:
                log.info("deleting log file %020d: %s", deletion.start, deletion.why)
                await self._read(self._store.log.delete, self._store.log.detach(deletion.start))
            if plan.delete:
                await self._raise_minimums()
            return len(plan.delete)

    def delete_with_master(self, log_min: int) -> None:
        """This node follows a master whose log begins at `log_min` now: our files below that may go, and none before."""
        first_kept = self._store.log.min + self._store.config.segment_bytes
        if log_min >= first_kept and not self._cleaning.locked() and self._shortening is None:
            self._shortening = asyncio.create_task(self._delete_below(log_min))
            self._shortening.add_done_callback(self._shortened)

    def _shortened(self, task: asyncio.Task[None]) -> None:
        self._shortening = None
        if not task.cancelled() and task.exception() is not None:
            log.error("old log files could not be deleted", exc_info=task.exception())

    async def _delete_below(self, log_min: int) -> None:
        store = self._store
        async with self._cleaning:
            for _ in range(2):
                if self._metadata.needed_from < log_min:
                    await self._save(self._metadata.collect(renew_below=log_min))
            keep_from = min(
                log_min, self._metadata.needed_from, store.marks.confirmed.offset, store.marks.dispatched.offset
            )
            gone = [
                segment.start
                for segment in store.log.segments()
                if segment.start + store.config.segment_bytes <= keep_from
            ]
            for start in gone:
                log.info("deleting log file %020d: the master has deleted it", start)
                await self._read(store.log.delete, store.log.detach(start))
            if gone:
                await self._raise_minimums(ours=False)

    def _plan(self, usage: retention.Usage, asked: bool, needed_from: int | None = None) -> retention.Plan:
        store = self._store
        files = [retention.LogFile(s.start, store.files.mtime_ms(s.path)) for s in store.log.segments()]
        safe = min(store.marks.confirmed.offset, store.marks.dispatched.offset)
        needed_from = safe if needed_from is None else min(safe, needed_from)
        # A deleted file does not come back: a clock that has just been set has to prove itself first, unless the operator says otherwise.
        now_ms = self._clock.message_ms() if asked else self._clock.settled_ms()
        return retention.plan(files, now_ms, store.config, usage, needed_from, asked=asked)

    async def raise_minimums(self) -> None:
        """The log has lost its beginning: shorten queues and index accordingly."""
        async with self._cleaning:
            await self._raise_minimums()

    async def _raise_minimums(self, *, ours: bool = True) -> None:
        """`ours`: this node decided it, and others here may record what follows from it."""
        await self.write_derived()  # a queue has its folder then
        log_min = self._store.log.min
        for topic, queue_id in await self._write(lambda: list(self._store.queues.queues())):
            low, end, _next, _stored = self._store.queue_state(topic, queue_id)
            new_low = await self._read(self._store.first_at_or_behind, topic, queue_id, log_min)
            if new_low > low:
                self._store.raise_minimum(topic, queue_id, min(new_low, end))
                if await self._write(self._store.queues.delete_below, topic, queue_id, new_low):
                    self._store.queues.forget_readers(topic, queue_id)
        if log_min == self._store.log.min:
            self._store.minimums_are_raised()
        await self._write(self._store.index.expire, log_min)
        if ours:
            self._events.publish(LogShortened(log_min))

    def _guard_disk(self, usage: retention.Usage) -> None:
        if self._guard.check(usage):
            if self._guard.refusing:
                log.error("refusing messages: %s", self._guard.why)
            else:
                log.info("accepting messages again: %s", usage)
                self._gate.open(DISK_FULL)
        if self._guard.refusing:
            self._gate.close(DISK_FULL, NotAvailable(self._guard.why))
