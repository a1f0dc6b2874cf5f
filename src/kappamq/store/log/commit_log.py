"""The log: fixed-size files as one endless address space, appended at one end, deleted at the other.

The kernel decides *what* is appended and at which offset; this class owns the files. `write()` passes what the kernel has
gathered to the page cache, with one pwrite; `roll()` closes a file with its end mark and opens the next one, which `prepare()`
(on a worker) has created in advance. A record never lies in two files.
"""

from __future__ import annotations

import contextlib
import errno
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kappamq.errors import StoreDamaged, StoreError
from kappamq.native.interface import Kernel, KernelModule
from kappamq.native.layout import BLANK_BYTES, MAGIC_BLANK, SCAN_BLANK, SCAN_MORE
from kappamq.store.files import FileMap, Files

_END_MARK = struct.Struct(">ii")
_CRAMPED_BYTES_MAX = 32 << 20
_LOOK_BYTES = 4096
_PIECE_BYTES = 32 << 20


def file_name(offset: int) -> str:
    return f"{offset:020d}"


@dataclass(slots=True)
class Segment:
    """One file of the log: bytes [start, start + size)."""

    start: int
    path: Path
    fd: int
    view: FileMap


class CommitLog:
    def __init__(self, folder: Path, segment_bytes: int, files: Files, kernel: Kernel) -> None:
        self.folder = folder
        self.segment_bytes = segment_bytes
        self._files = files
        self._kernel = kernel
        self._segments: dict[int, Segment] = {}  # by start, ascending
        self._current: Segment | None = None
        self._next: Segment | None = None  # created in advance, still empty
        # How much of a file is kept for appends that cannot wait (the present burst, our own records) if the next file is not ready.
        self._kept_bytes = min(_CRAMPED_BYTES_MAX, segment_bytes // 8)
        self.end = 0  # one past the last written byte
        self.damaged = False  # a write or sync failed: no appends until a restart

    # -- opening -----------------------------------------------------------------------------------------------------------

    def load(self, skip_damage: bool = False) -> None:
        """Open the existing files. An incomplete last file (a crash while it was created) is removed.

        A truncated file is damage; with `skip_damage` it is extended again, and the missing bytes read as zeros."""
        self._files.make_folder(self.folder)
        names = self._files.list(self.folder)
        expected: int | None = None
        for number, name in enumerate(names):
            path = self.folder / name
            if len(name) != 20 or not name.isdigit():
                raise StoreError(f"{path} is not a log file (20 digits): move it to another folder")
            start = int(name)
            fd = self._files.open(path)
            size = self._files.size(fd)
            if size != self.segment_bytes:
                # A file is synced in its full size before anything is written to it.
                unused = size < self.segment_bytes and not any(self._files.pread(fd, _LOOK_BYTES, 0))
                self._files.close(fd)
                if unused and number == len(names) - 1:
                    self._files.remove(path)
                    break
                if size < self.segment_bytes and self._has_whole_file(names):
                    if skip_damage:
                        self._files.resize(path, self.segment_bytes)
                        fd = self._files.open(path)
                        self._open(start, path, fd)
                        expected = start + self.segment_bytes
                        continue
                    raise StoreDamaged(
                        f"{path} is truncated: it has {size} of {self.segment_bytes} bytes. Restore the file from a copy; or, to open the "
                        f"store without the messages that are missing, start with --set store.skip_damage=true"
                    )
                raise StoreError(
                    f"{path} has {size} bytes, but log files are configured with {self.segment_bytes} "
                    f"(mappedFileSizeCommitLog): open the store with the size it was written with, for example "
                    f"--set mappedFileSizeCommitLog={size}"
                )
            if start % self.segment_bytes or (expected is not None and start != expected):
                self._files.close(fd)
                raise StoreDamaged(
                    f"{path}: expected a log file that starts at {expected}; a file is missing or misnamed"
                )
            expected = start + size
            self._open(start, path, fd)

    def _has_whole_file(self, names: list[str]) -> bool:
        """Whether some files of this log have the configured size: then the setting is correct."""
        return any(self._files.size_of(self.folder / name) == self.segment_bytes for name in names)

    def _open(self, start: int, path: Path, fd: int) -> None:
        self._add(Segment(start, path, fd, self._files.map(fd, self.segment_bytes)))

    def _add(self, segment: Segment) -> None:
        self._segments[segment.start] = segment
        self._files.read_exactly(segment.fd)
        self._kernel.map_segment(segment.start, segment.view)

    def open_end(self, end: int) -> None:
        """Set the end of the log to `end`, where recovery found the last good record, and durably zero everything behind it:
        old records there would look valid again once new ones are written up to them.

        Raises StoreDamaged, and changes nothing, if a page there could not be read: it may hold records."""
        self.require_readable(end)
        # Last file first: an interruption must not leave a gap in the middle.
        for start, segment in reversed(list(self._segments.items())):
            if start > end or (start == end and start > self.min):
                # Files prepared ahead, or truncated to nothing.
                self._drop(segment)
                self._files.sync_folder(self.folder)  # else a power cut could bring a later file back without this one
        holder = self._segments.get(end - end % self.segment_bytes)
        if holder is not None:
            self._files.zero(holder.fd, end - holder.start, self.segment_bytes)
            self._files.sync(holder.fd)
        else:
            holder = self._make(end)
            self._add(holder)
        self._files.sync_folder(self.folder)
        self._current = holder
        self.end = end
        self._kernel.open_segment(end, holder.start + self.segment_bytes)

    def _drop(self, segment: Segment) -> None:
        del self._segments[segment.start]
        self._kernel.map_segment(segment.start, None)
        self.discard(segment)

    def _make(self, start: int) -> Segment:
        path = self.folder / file_name(start)
        # Check free space first: a failing attempt would use up the last free bytes for a moment.
        if self._files.usage(self.folder)[1] < self.segment_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        fd = self._files.open(path, create=True)
        try:
            self._files.allocate(fd, self.segment_bytes)
            self._files.sync(fd)
            return Segment(start, path, fd, self._files.map(fd, self.segment_bytes))
        except OSError:
            self._files.close(fd)
            self._files.remove(path)
            raise

    # -- appending ---------------------------------------------------------------------------------------------------------

    @property
    def min(self) -> int:
        return next(iter(self._segments), 0)

    @property
    def current_fd(self) -> int:
        assert self._current is not None
        return self._current.fd

    @property
    def segment_end(self) -> int:
        assert self._current is not None
        return self._current.start + self.segment_bytes

    def write(self) -> tuple[int, bytes | memoryview]:
        """Write everything the kernel has appended: (its log offset, the bytes)."""
        start, data = self._kernel.take()
        if data:
            assert self._current is not None
            assert start == self.end
            try:
                self._files.pwrite(self._current.fd, data, start - self._current.start)
            except OSError:
                self.damaged = True
                raise
            self.end = start + len(data)
        return start, data

    def receive(self, records: memoryview) -> None:
        """Append records of another broker's log. The kernel must have no pending appends."""
        assert self._current is not None
        assert self.end + len(records) + BLANK_BYTES <= self.segment_end, "records were not cut to the file"
        try:
            self._files.pwrite(self._current.fd, records, self.end - self._current.start)
        except OSError:
            self.damaged = True
            raise
        self.end += len(records)
        self._kernel.open_segment(self.end, self.segment_end)

    @property
    def next_is_ready(self) -> bool:
        return self._next is not None

    @property
    def is_cramped(self) -> bool:
        """Whether the file is nearly full and the next one is not ready: senders should wait a little."""
        return self.is_cramped_behind(self.end)

    def is_cramped_behind(self, offset: int) -> bool:
        """The same for a log that ends at `offset`."""
        return self._next is None and self.segment_end - offset < self._kept_bytes

    @property
    def is_fresh(self) -> bool:
        """Whether the current file is still empty."""
        return self._current is not None and self.end == self._current.start

    def prepare(self) -> Segment:
        """Create the file after the current one and pass the result to `prepared`. Slow: for a worker, one call at a time.

        `roll` must not run meanwhile: two calls that create the same file would remove each other's."""
        start = self.segment_end
        path = self.folder / file_name(start)
        if self._files.exists(path):
            self._files.remove(path)  # left from an attempt that failed
        segment = self._make(start)
        self._files.sync_folder(self.folder)
        return segment

    def prepared(self, segment: Segment) -> None:
        assert self._next is None
        assert segment.start == self.segment_end
        self._next = segment

    def roll(self) -> int:
        """Close the current file with an end mark and continue in the next: the log's new end. Everything must be written."""
        if self._next is None:
            self._next = self.prepare()
        assert self._current is not None
        left = self.segment_end - self.end
        assert left >= BLANK_BYTES, f"only {left} bytes are left for the end mark"
        try:
            self._files.pwrite(self._current.fd, _END_MARK.pack(left, MAGIC_BLANK), self.end - self._current.start)
        except OSError:
            self.damaged = True
            raise
        self._current, self._next = self._next, None
        self._add(self._current)
        self.end = self._current.start
        self._kernel.open_segment(self.end, self.segment_end)
        return self.end

    # -- cutting ---------------------------------------------------------------------------------------------------------------

    def cut(self, offset: int) -> None:
        """Durably end the log at `offset`, the end of a record. The kernel and the flusher must have nothing pending.

        A crash leaves all of the old bytes, the first part of them, or none of them: never a gap with records behind it."""
        assert self.min <= offset <= self.end, f"the log [{self.min}, {self.end}) cannot be cut to {offset}"
        try:
            if self._next is not None:
                unused, self._next = self._next, None
                self.discard(unused)
            for start, segment in reversed(list(self._segments.items())):
                if start > offset:
                    self._drop(segment)
                    self._files.sync_folder(self.folder)  # else a crash could bring a later file back without this one
            holder = self._segments[offset - offset % self.segment_bytes]
            # The rest of the log's last file is zeros already; zeroing the whole file would take seconds.
            stop = min(self.end - holder.start, self.segment_bytes)
            self._files.zero(holder.fd, offset - holder.start, stop)
            self._files.sync(holder.fd)
        except OSError:
            self.damaged = True
            raise
        self._current = holder
        self.end = offset
        self._kernel.open_segment(offset, self.segment_end)

    # -- reading -----------------------------------------------------------------------------------------------------------

    def fd_at(self, offset: int) -> int | None:
        segment = self._segments.get(offset - offset % self.segment_bytes)
        return segment.fd if segment is not None else None

    def enter(self, offset: int, size: int) -> None:
        """Worker: map the pages of [offset, offset + size), which is within one file and in the page cache, into the address space."""
        segment = self._segments.get(offset - offset % self.segment_bytes)
        if segment is not None:
            segment.view.enter(offset - segment.start, size)

    def slice(self, offset: int, size: int) -> memoryview:
        """Bytes [offset, offset + size), cut short at the end of the file that holds `offset` or of the log."""
        segment = self._segments.get(offset - offset % self.segment_bytes)
        if segment is None:
            return memoryview(b"")
        at = offset - segment.start
        stop = min(at + size, self.segment_bytes, max(at, self.end - segment.start))
        return memoryview(segment.view)[at:stop]

    def whole_view(self, offset: int) -> memoryview:
        """From `offset` to the end of its file, written or not. For recovery."""
        segment = self._segments.get(offset - offset % self.segment_bytes)
        return memoryview(segment.view)[offset - segment.start :] if segment is not None else memoryview(b"")

    def whole_pieces(self, module: KernelModule, start: int, end: int) -> Iterator[tuple[int, memoryview]]:
        """Yield whole records and batches in [start, end), which begins with one, as (offset, bytes), up to the first bad one. After an end
        mark it yields an empty piece at the beginning of the next file."""
        while start < end:
            view = self.slice(start, min(end - start, _PIECE_BYTES))
            size, why, _records, _ms = module.scan(view, start, False)
            if not size and why == SCAN_MORE and len(view) == _PIECE_BYTES:
                view = self.slice(start, end - start)
                size, why, _records, _ms = module.scan(view, start, False)
            if size:
                yield start, view[:size]
                start += size
            elif why == SCAN_BLANK:
                start += self.segment_bytes - start % self.segment_bytes
                yield start, view[:0]
            else:
                return

    def whole_until(self, module: KernelModule, start: int, end: int) -> int:
        """The end of the last whole record or batch in [start, end), or the beginning of the file behind an end mark."""
        for at, piece in self.whole_pieces(module, start, end):
            start = at + len(piece)
        return start

    def segments(self) -> Iterator[Segment]:
        yield from self._segments.values()

    # -- reads that failed ---------------------------------------------------------------------------------------------------

    @property
    def lost_count(self) -> int:
        """Pages that could not be read; they appear as zeros. See native/mapping.c."""
        return sum(segment.view.lost_count for segment in self._segments.values())

    def has_lost(self, offset: int, size: int) -> bool:
        """Read a byte of every page of [offset, offset + size), within one file; return whether one of them could not be read."""
        segment = self._segments.get(offset - offset % self.segment_bytes)
        if segment is None:
            return False
        at = offset - segment.start
        return segment.view.is_lost(at, min(size, self.segment_bytes - at))

    def first_lost(self, offset: int) -> tuple[Path, int, int] | None:
        """The first stretch (file, start, stop) at or behind `offset` that an earlier read could not read."""
        for segment in self._segments.values():
            for start, stop in segment.view.lost():
                if segment.start + stop > offset:
                    return segment.path, start, stop
        return None

    def require_readable(self, offset: int) -> None:
        """Raise StoreDamaged if something at or behind `offset` could not be read earlier."""
        if (lost := self.first_lost(offset)) is not None:
            path, start, stop = lost
            raise StoreDamaged(
                f"{path}: bytes {start} to {stop} cannot be read and may hold messages: the broker does not start, and the log "
                f"was not changed. Check the disk and start again. If the bytes stay unreadable, restore the file from a copy; or copy "
                f"it to a good disk with a tool that fills what it cannot read with zeros, such as ddrescue"
            )

    @property
    def cut_to(self) -> int | None:
        """The size of the current file if another process has truncated it."""
        size = self._files.size(self.current_fd)
        return size if size < self.segment_bytes else None

    # -- deleting ----------------------------------------------------------------------------------------------------------

    def detach(self, start: int) -> Segment:
        """Remove the oldest file from the log; `delete` then deletes it, on a worker."""
        assert start == self.min, "only the oldest file can be removed"
        assert len(self._segments) > 1, "the last file cannot be removed"
        segment = self._segments.pop(start)
        self._kernel.map_segment(start, None)
        self._kernel.log_min = self.min
        self._kernel.mins_raised = False
        return segment

    def delete(self, segment: Segment) -> None:
        """Delete a file that was detached, durably: else a power cut could bring an earlier file back without this one."""
        self.discard(segment)
        self._files.sync_folder(self.folder)

    def discard(self, segment: Segment) -> None:
        self._release(segment)
        self._files.remove(segment.path)

    def _release(self, segment: Segment) -> None:
        with contextlib.suppress(BufferError):  # a reader still holds a slice; the map is freed with it
            segment.view.close()
        self._files.close(segment.fd)

    def close(self) -> None:
        for segment in self._segments.values():
            self._kernel.map_segment(segment.start, None)
            self._release(segment)
        self._segments.clear()
        if self._next is not None:
            self._release(self._next)
            self._next = None
