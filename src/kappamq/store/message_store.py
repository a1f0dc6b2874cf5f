"""The whole store: the log, its watermarks, and what is derived from it.

Everything here is called from the broker's loop, unless its docstring says that it is for a worker. Waits do not block: a waiter is
parked on a watermark and returned by the call that advances it.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable
from typing import Any

from kappamq.config.store import StoreConfig
from kappamq.errors import ForeignBytes, StoreDamaged, StoreReadOnly
from kappamq.native.interface import Flusher, Kernel, KernelModule
from kappamq.native.pure_record import GroupMember
from kappamq.protocol.records.view import FRONT_BYTES, Front
from kappamq.store.checkpoint import Checkpoint
from kappamq.store.derived import Derived, DerivedWork
from kappamq.store.files import Files
from kappamq.store.index.index_file import IndexFiles
from kappamq.store.lock import AbortFile, StoreLock, refuse_raft_store, unusable
from kappamq.store.log.clock_steps import ClockSteps
from kappamq.store.log.commit_log import CommitLog
from kappamq.store.log.marks import Marks, Mode, mode_of
from kappamq.store.position import Position
from kappamq.store.queue_bounds import QueueBounds
from kappamq.store.queues.queues import QueueFiles
from kappamq.store.receiving import bytes_of_unit_max, misnumbered, whole_part
from kappamq.store.recovery import Recovered, fingerprint, newest_stored_ms, recover

log = logging.getLogger(__name__)

_CATCH_UP_BYTES = 1 << 20
_STORE_AT_START_QUEUES = 1000  # creating the files of this many queues takes about 0.1 s
_CATCH_UP_AT_STOP_BYTES = 256 << 20
_READ_BACK_BYTES = 16 << 20  # more than any record


class MessageStore(QueueBounds):
    def __init__(
        self,
        config: StoreConfig,
        kernel_module: KernelModule,
        kernel: Kernel,
        files: Files | None = None,
        grown: Callable[[list[tuple[str, int]]], None] = lambda queues: None,
        written: Callable[[int, bytes | memoryview], None] = lambda start, data: None,
        flushed: Callable[[int], None] = lambda offset: None,
    ) -> None:
        """`grown`: called once per turn with the watched queues that have new messages; `written`: called with the offset and the bytes
        that a turn wrote; `flushed`: called with the offset up to which the log is on disk."""
        self.config = config
        self.kernel_module = kernel_module
        self.kernel = kernel
        self.files = files or Files()
        root = config.root
        self.log = CommitLog(root / "commitlog", config.segment_bytes, self.files, kernel)
        self.queues = QueueFiles(root / "consumequeue", config.queue_file_entries, config.open_files_max, self.files)
        self.index = IndexFiles(
            root / "index",
            config.index_slots,
            config.index_entries,
            self.files,
            index_apply=kernel_module.index_apply,
            index_link=kernel_module.index_link,
        )
        self.derived = Derived(
            root,
            kernel,
            self.queues,
            self.index,
            self.files,
            lambda offset: fingerprint(self, offset),
            lambda: (min(self.marks.flushed.offset, self.log.end), self._flushed_ms),
        )
        self.marks = Marks(mode_of(config.flush))
        self._grown = grown
        self._on_written, self._on_flushed = written, flushed
        self.generation = 0  # how often the log was cut since the start: bytes read before a cut may have been replaced
        self.failed: str | None = None  # why the store is read-only until a restart
        self.last_ms = 0  # store time of the newest record
        self.received_count = 0  # records of another broker's log
        self.clock_steps = ClockSteps()  # where the wall clock was set; set by the broker
        self._flushed_ms = 0
        self._flush_times: deque[tuple[int, int]] = deque()
        self._index_at = 0  # keys below are indexed or pending; less than `dispatched` only after a crash
        self._damage: list[tuple[int, int]] = []  # stretches of the log that recovery skipped
        self._flusher: Flusher = None  # type: ignore[assignment]  # made by `open`
        self._lock = StoreLock(root, self.files)
        self._abort = AbortFile(root, self.files)

    # -- opening and closing -----------------------------------------------------------------------------------------------

    def open(self, boot_id: str, *, enter_up_to: int | None = None, begin_at: int = 0) -> Recovered:
        """Lock the directory and bring log, queues and index together. Raises StoreError.

        `enter_up_to`: records behind this offset are not known to be confirmed. They stay in the log, and are entered into their queues
        when `visible` passes them; a record that is in its queue file counts as confirmed. `begin_at`: where an empty log begins."""
        try:
            self.files.make_folder(self.config.root)
            refuse_raft_store(self.config.root, self.files)
            self._lock.acquire()
            try:
                return self._open(boot_id, enter_up_to, begin_at)
            except BaseException:
                if self._flusher is not None:
                    self._flusher.close()
                self.log.close()
                self.queues.close()
                self.index.close()
                self._lock.release()
                raise
        except OSError as error:
            raise unusable(self.config.root, error) from error

    def _open(self, boot_id: str, enter_up_to: int | None, begin_at: int) -> Recovered:
        clean = not self._abort.exists()
        crashed_pid = None if clean else self._abort.pid()
        self._abort.create()
        try:
            checkpoint = Checkpoint.load(self.config.root / "checkpoint", self.files)
            position, why = Position.load(self.derived.position_path, self.files, to_replace=True)
            if position is None and why:
                log.warning("%s", why)
            self.log.load(self.config.skip_damage)
            written_ms = {segment.start: self.files.mtime_ms(segment.path) for segment in self.log.segments()}
            self.kernel.log_min = self.log.min
            self.kernel.index_enabled = False  # keys are indexed after recovery, in log order
            found = recover(self, position, checkpoint, clean, boot_id, enter_up_to, begin_at)
            found.crashed_pid = crashed_pid
            if found.checkpoint is not None:
                checkpoint = found.checkpoint
                checkpoint.write(self.config.root / "checkpoint", self.files, sync=True)
            if self.config.index_enabled:
                self.index.load(found.index_from)
        except BaseException:
            if clean:
                self._abort.remove()  # nothing was appended: the store is as the last broker left it
            raise
        end, entered = self.log.end, found.entered
        # Data that was read back is not yet on disk: after a crash the tail may be in the page cache only.
        known = position.flushed if position is not None and found.writer == "ours" else self.log.min
        for segment in self.log.segments():
            if segment.start + self.config.segment_bytes > min(known, found.scanned_from):
                self.files.sync(segment.fd)
        self.marks.reset(end)
        for mark in (self.marks.answerable, self.marks.visible, self.marks.confirmed, self.marks.dispatched):
            mark.reset(entered)
        self.last_ms = self._flushed_ms = newest_stored_ms(found, written_ms, end)
        self.kernel.hot_from = end
        self.kernel.log_min = self.log.min
        self.kernel.mins_raised = True
        self._damage = found.damage
        if self.config.index_enabled:
            # Without index files all keys are indexed again; otherwise from the last indexed record on: a record begins there, and the
            # index skips keys that it has.
            self._index_at = max(self.log.min, min(self.index.indexed_to - 1, entered))
        else:
            self._index_at = entered
        self.derived.open(checkpoint, boot_id, position if found.writer == "ours" else None, self.log.min)
        self._flusher = self.files.flusher(self.kernel_module)
        self.catching_up()  # if nothing is missing, keys are indexed as they arrive
        if self.kernel.dirty_queues() <= _STORE_AT_START_QUEUES:  # else upkeep does it while the broker serves
            try:
                self._store_all()
            except OSError as error:
                log.warning("recovered queue entries could not be written yet (%s); this is retried", error)
        return found

    def _store_all(self) -> DerivedWork:
        """Write everything that was dispatched; returns the last round."""
        while True:
            work = self.collect()
            self.write_derived(work)
            if work.complete and work.dispatched == self.marks.dispatched.offset:
                return work

    def enter(self, log_offset: int, records: memoryview) -> None:
        """Recovery: enter good records into the queues."""
        eaten, _woken = self.kernel.dispatch(records, log_offset)
        assert eaten == len(records), f"dispatch stopped at {log_offset + eaten} in records that were checked"

    def close(self, clean: bool = True) -> None:
        """Write and sync everything, then release the directory. With clean=False, leave it as a crash would.

        What cannot be written (disk full) is logged; the next start rebuilds it from the log."""
        finished = False
        try:
            if clean and self.failed is None:
                self._finish()
                finished = self.failed is None
        except OSError as error:
            log.error("not everything could be written (%s): the next start takes longer, nothing is lost", error)
        finally:
            if self._flusher is not None:
                self._flusher.close()
            self.log.close()
            self.queues.close()
            self.index.close()
            try:
                if finished:
                    self._abort.remove()
            except OSError as error:
                log.error("the abort file could not be removed (%s): the next start may check the whole store", error)
            finally:
                self._lock.release()

    def _finish(self) -> None:
        start, data = self.log.write()
        self._flusher.close()  # it completes pending requests: a full file may not be synced yet
        code = self._flusher.take()[1]
        if code:
            raise OSError(code, os.strerror(code))
        self.files.sync(self.log.current_fd)
        self.marks.move_written(self.log.end)
        self.marks.move_flushed(self.log.end)
        self._dispatch_visible(start, data)
        self._flushed_ms = self.last_ms
        if self.marks.dispatched.offset - self._index_at <= _CATCH_UP_AT_STOP_BYTES:  # the next start does the rest
            while self.catching_up():
                self.catch_up()
                self.write_derived(self.collect())
        work = self._store_all()
        self.index.flush()
        self.sync_derived(work)

    # -- a turn of the loop ------------------------------------------------------------------------------------------------

    def append(self, record: GroupMember, now_ms: int) -> tuple[int, int, int]:
        """Append one record; returns its log offset, its queue offset and its size. Raises SegmentFull of the kernel module."""
        return self.kernel.append(*record, now_ms)

    def write(self, now_ms: int) -> list[Any]:
        """Write what was appended; returns the waiters that are released."""
        try:
            start, data = self.log.write()
        except OSError as error:
            self.fail(f"writing the log failed: {error}")
            raise StoreReadOnly(self.failed or "") from error
        if not data:
            return []
        self.last_ms = now_ms
        reached = self._written(start, data)
        self._on_written(start, data)
        return reached

    def receive(self, log_offset: int, data: bytes | memoryview) -> tuple[int, list[Any]]:
        """Append bytes of another broker's log at the end of ours. Returns (the new end of our log, the waiters that are released).

        It takes whole records and batches within one file; call it again with the rest, from the new end on. After an end mark the new
        end is the next file and may be behind `data`: the rest of the file is unused. Raises ForeignBytes, and takes nothing, if the
        bytes cannot continue our log. If the next file is not prepared, it is created here, which takes time."""
        if self.failed is not None:
            raise StoreReadOnly(self.failed)
        assert self.kernel.append_offset == self.log.end, "nothing of our own may be pending"
        view = memoryview(data)
        part = whole_part(self.kernel_module, self.log, log_offset, view, bytes_of_unit_max(self.config))
        reached: list[Any] = []
        if part.size:
            records = view[: part.size]
            wrong = self.kernel.number(records)[1]
            if wrong is not None:
                raise ForeignBytes(
                    f"{misnumbered(log_offset, wrong)}: the other broker's log is not the one that ours is a copy of"
                )
            try:
                self.log.receive(records)
            except OSError as error:
                self.fail(f"writing the log failed: {error}")
                raise StoreReadOnly(self.failed or "") from error
            self.last_ms = max(self.last_ms, part.store_ms)
            self.received_count += part.records
            reached = self._written(log_offset, records)
        if part.ends_file:
            try:
                reached += self.roll()
            except StoreReadOnly:
                if self.failed is not None or not part.size:
                    raise
        return self.log.end, reached

    @property
    def arrived_count(self) -> int:
        """Records appended or received since the start: their entries are, or will be, in memory."""
        return self.kernel.put_count + self.received_count

    def cut(self, offset: int) -> list[Any]:
        """Durably end the log at `offset`, the end of a record or batch, behind which nothing has been dispatched; what is appended but
        not written is dropped. Returns the waiters for what is gone.

        Waits for the disk. Nothing else may use the store meanwhile: no thread that writes derived files or prepares a log file."""
        if self.failed is not None:
            raise StoreReadOnly(self.failed)
        dispatched = self.marks.dispatched.offset
        assert dispatched <= offset <= self.log.end, f"{offset} is not within [{dispatched}, {self.log.end}]"
        if self.log.whole_until(self.kernel_module, dispatched, offset) != offset:
            raise ValueError(f"the log cannot be cut to {offset}: no record or batch ends there")
        self.kernel.take()
        self._flusher.cut(offset)
        self.generation += 1
        try:
            # The position first: a log shorter than its position file says counts as damaged.
            self.derived.lower(offset)
            self.log.cut(offset)
        except OSError as error:
            self.fail(f"cutting the log failed: {error}")
            raise StoreReadOnly(self.failed or "") from error
        self._flush_times = deque(noted for noted in self._flush_times if noted[0] <= offset)
        gone = [waiter for mark in self.marks.all() for waiter in mark.cut(offset)]
        self.kernel.hot_from = min(self.kernel.hot_from, offset)
        self.kernel.rewind()
        self._number_rest()
        return gone

    def _number_rest(self) -> None:
        """Raise the next offsets of queues by the records in the log that are not dispatched."""
        for start, records in self.log.whole_pieces(self.kernel_module, self.marks.dispatched.offset, self.log.end):
            wrong = self.kernel.number(records)[1]
            if wrong is not None:
                raise StoreDamaged(f"records are missing from the log: {misnumbered(start, wrong)}")

    def _written(self, start: int, data: bytes | memoryview) -> list[Any]:
        reached = self.marks.move_written(self.log.end)
        self._dispatch_visible(start, data)
        if self.marks.mode.needs_flush:
            self.request_flush()
        return reached

    def take_mode(self, mode: Mode) -> list[Any]:
        """Use another mode to advance the marks from now on; returns the waiters that are released."""
        reached = self.marks.take_mode(mode)
        self._dispatch_visible()
        return reached

    def follow_marks(self) -> list[Any]:
        """Advance the marks after something outside of this store changed that the mode depends on; returns the released waiters."""
        reached = self.marks.follow()
        if self.marks.dispatched.offset < self.marks.visible.offset:
            self._dispatch_visible()
        return reached

    def roll(self) -> list[Any]:
        """Continue in the next file; returns the waiters that are released."""
        complete = self.log.current_fd
        try:
            end = self.log.roll()
        except OSError as error:
            if self.log.damaged:
                self.fail(f"writing the log failed: {error}")
            raise StoreReadOnly(f"the next log file could not be made: {error}") from error
        # The full file and its end mark are synced through its own descriptor: without the mark, recovery after a power cut would take
        # its place for the end of the log and discard later files.
        self._flusher.request(complete, end)
        self._flush_times.append((end, self.last_ms))
        everything_is_dispatched = self.marks.dispatched.offset == self.marks.written.offset
        reached = self.marks.move_written(end)
        if everything_is_dispatched and self.marks.visible.offset == end:
            self.marks.dispatched.advance(end)  # only the end mark lies between the two
        return reached

    def request_flush(self) -> None:
        """Ask the flusher to sync everything written so far; `flush_done` handles its report."""
        if self.marks.flushed.offset < self.log.end and (
            not self._flush_times or self._flush_times[-1][0] < self.log.end
        ):
            self._flush_times.append((self.log.end, self.last_ms))
            self._flusher.request(self.log.current_fd, self.log.end)

    @property
    def flush_fd(self) -> int:
        """Readable when the flusher has a report."""
        return int(self._flusher.fileno())

    def flush_done(self) -> list[Any]:
        """Handle a report of the flusher; returns the waiters that are released."""
        offset, code = self._flusher.take()
        if code:
            self.fail(f"fdatasync of the log failed with errno {code}: what was written since may not be on disk")
            return []
        if offset <= self.marks.flushed.offset:
            return []
        while self._flush_times and self._flush_times[0][0] <= offset:
            self._flushed_ms = self._flush_times.popleft()[1]
        reached = self.marks.move_flushed(offset)
        self._dispatch_visible()
        self._on_flushed(offset)
        return reached

    def fail(self, why: str) -> None:
        """Stop writing until a restart: after a failed write or sync the contents of the disk are unknown."""
        if self.failed is None:
            log.error("the store is read-only from now on: %s. Check the disk, then restart the broker", why)
            self.failed = why
        self.kernel.accepting = False

    def _dispatch_visible(self, start: int = 0, data: bytes | memoryview = b"") -> None:
        """Dispatch what has become visible. `data` was just written at `start` and need not be read; other visible bytes are read back
        from the log."""
        visible, dispatched = self.marks.visible.offset, self.marks.dispatched
        if data and start == dispatched.offset and start + len(data) <= visible:
            eaten = self._dispatch(start, data)
            assert eaten == len(data), f"dispatch stopped at {start + eaten} in records that were written just now"
            if start + eaten == visible:
                return
        while (at := dispatched.offset) < visible and self.failed is None:
            view = self.log.slice(at, visible - at)
            if self._dispatch(at, view):
                continue
            if not Front(view).is_end_mark:
                # A page of the map is lost (native/mapping.c): the file itself may be readable all the same.
                view = self._read_back(at, visible)
                if self._dispatch(at, view):
                    continue
            if not Front(view).is_end_mark:
                self.fail(f"the log cannot be read back at {at}")
                return
            dispatched.advance(at - at % self.config.segment_bytes + self.config.segment_bytes)

    def _read_back(self, at: int, end: int) -> memoryview:
        place = at % self.config.segment_bytes
        fd = self.log.fd_at(at)
        try:
            size = min(end - at, self.config.segment_bytes - place, _READ_BACK_BYTES)
            return memoryview(b"" if fd is None else self.files.pread(fd, size, place))
        except OSError as error:
            log.error("the log cannot be read at %d: %s", at, error)
            return memoryview(b"")

    def _dispatch(self, start: int, records: bytes | memoryview) -> int:
        """Dispatch records up to the first bad one; returns how many bytes."""
        eaten, woken = self.kernel.dispatch(records, start)
        if self.kernel.index_enabled:
            self._index_at = start + eaten
        self.marks.dispatched.advance(start + eaten)
        if woken:
            self._grown(woken)
        return int(eaten)

    # -- derived files -----------------------------------------------------------------------------------------------------

    def catching_up(self) -> bool:
        """Whether keys of old records are still missing from the index."""
        if self.kernel.index_enabled or not self.config.index_enabled:
            return False
        if self._index_at >= self.marks.dispatched.offset:
            self._index_at = self.marks.dispatched.offset
            self.kernel.index_enabled = True
            return False
        return True

    def catch_up(self) -> None:
        """Index the keys of the next stretch of old records."""
        at = self._index_at
        size = max(_CATCH_UP_BYTES, Front(self.log.slice(at, FRONT_BYTES)).size)  # one record may be longer
        # Stop before damage: a record with a bad checksum may show keys that it never had.
        end = self.marks.dispatched.offset
        low, high = next(((low, high) for low, high in self._damage if high > at), (end, end))
        if low <= at:
            self._index_at = high
            return
        view = self.log.slice(at, min(size, end - at, low - at))
        self.kernel.index_enabled = True
        eaten = self.kernel.dispatch(view, at)[0]
        self.kernel.index_enabled = False
        to_next_file = self.config.segment_bytes - at % self.config.segment_bytes
        self._index_at = at + (eaten or to_next_file)

    @property
    def next_catch_up(self) -> tuple[int, int]:
        """(offset, bytes) that `catch_up` will read: a worker reads them first, so that the loop does not wait for the disk."""
        return self._index_at, min(_CATCH_UP_BYTES, self.marks.dispatched.offset - self._index_at)

    def collect(self) -> DerivedWork:
        """Take what dispatch collected for the files, for `write_derived` on a worker. If that fails, the next call returns the same."""
        return self.derived.collect(self.marks.dispatched.offset, self._index_at, self.last_ms)

    def write_derived(self, work: DerivedWork) -> None:
        """Worker: put entries and keys into their files and record the position."""
        self.derived.write(work)

    def sync_derived(self, work: DerivedWork) -> None:
        """Worker: make queue and index files durable up to `work`, the last round of its sweep."""
        self.derived.sync(work)

    def forget_topic(self, topic: str) -> None:
        """Worker: remove a deleted topic's queue files."""
        self.derived.forget_topic(topic)
