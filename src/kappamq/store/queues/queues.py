"""Consume-queue files: (topic, queue id, n) -> where message n lies in the log.

A queue is a sequence of files of fixed size, named after the byte position of their first entry; entry n lies at n * 20. Entries
come from the kernel in batches and are written with pwrite into sparse files: a hundred thousand queues cost what they hold.
The most recently used descriptors are kept open, in two separate tables: one for the worker that writes, one for the loop that
reads what is in memory. So neither waits for the other.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path

from kappamq.errors import StoreError
from kappamq.native.layout import ENTRY, FILLER_BYTES
from kappamq.store.files import Files

log = logging.getLogger(__name__)

ANY_FILLER = (0, FILLER_BYTES)  # it names no log offset
_PAGE_BYTES = 4096
_SYNC_EACH_MAX = 256
_ENTRIES_AT_ONCE = 200
_FOLDER_NAME_BYTES_MAX = 255


def is_folder_name(topic: str) -> bool:
    """Whether a queue of this topic can have files. Brokers reject other topics, but another program may have written the log."""
    return (
        topic not in ("", ".", "..")
        and "/" not in topic
        and len(topic.encode(errors="surrogatepass")) <= _FOLDER_NAME_BYTES_MAX
    )


class _Descriptors:
    """The most recently used queue files, open. For one thread."""

    def __init__(self, folder: Path, file_bytes: int, open_max: int, files: Files) -> None:
        self._folder = str(folder)  # a Path would cost as much as the system calls
        self._file_bytes = file_bytes
        self._files = files
        self._open_max = open_max
        self._open: OrderedDict[tuple[str, int, int], int] = OrderedDict()
        self.made: set[str] = set()  # files whose names may not be on disk yet

    def get(self, topic: str, queue_id: int, start: int, create: bool = False) -> int | None:
        key = (topic, queue_id, start)
        fd = self._open.get(key)
        if fd is not None:
            self._open.move_to_end(key)
            return fd
        folder = f"{self._folder}/{topic}/{queue_id}"
        path = f"{folder}/{start:020d}"
        try:
            fd = self._files.open(path)
        except FileNotFoundError:
            if not create:
                return None
            self._files.make_folder(folder)
            fd = self._files.open(path, create=True)
            self.made.add(path)
        if create:
            try:
                if self._files.size(fd) < self._file_bytes:  # new, or a crash came before it was extended
                    self._files.truncate(fd, self._file_bytes)
            except OSError:
                self._files.close(fd)
                raise
        if len(self._open) >= self._open_max:
            _oldest, old = self._open.popitem(last=False)
            self._files.close(old)
        self._files.read_exactly(fd)
        self._open[key] = fd
        return fd

    def forget(self, topic: str, queue_id: int | None = None, start: int | None = None) -> None:
        """Close the files of a topic, of a queue, or one file."""
        if queue_id is not None and start is not None:
            fd = self._open.pop((topic, queue_id, start), None)
            if fd is not None:
                self._files.close(fd)
            return
        for key in [k for k in self._open if k[0] == topic and queue_id in (None, k[1])]:
            self._files.close(self._open.pop(key))

    def close(self) -> None:
        for fd in self._open.values():
            self._files.close(fd)
        self._open.clear()


class QueueFiles:
    def __init__(self, folder: Path, file_entries: int, open_max: int, files: Files) -> None:
        self.folder = folder
        self.file_entries = file_entries
        self.file_bytes = file_entries * ENTRY.size
        self._files = files
        self._writing = _Descriptors(folder, self.file_bytes, max(8, open_max // 2), files)
        self._reading = _Descriptors(folder, self.file_bytes, max(8, open_max // 2), files)
        self._dirty: set[tuple[str, int, int]] = set()
        self._refused = False  # a topic without files was logged

    # -- writing -----------------------------------------------------------------------------------------------------------

    def write(self, topic: str, queue_id: int, first: int, entries: bytes, low: int) -> bool:
        """Write `entries` at offsets `first`, `first`+1, ... of the queue, creating files as needed. `low`: where the queue begins.
        Returns False, without an effect, if this topic cannot have files.

        Filler marks deleted messages, so it is written only below `low`. An empty entry between `low` and `first` is damage: it stays,
        and a reader repairs it from the log."""
        if not is_folder_name(topic):
            self._refuse(topic)
            return False
        view = memoryview(entries)
        position = first * ENTRY.size
        while view:
            start = position - position % self.file_bytes
            part = view[: start + self.file_bytes - position]
            fd = self._writing.get(topic, queue_id, start, create=True)
            assert fd is not None
            if first <= low and position > start:
                self._fill_gap(fd, position - start, ENTRY.unpack_from(entries)[0])
            self._files.pwrite(fd, part, position - start)
            self._dirty.add((topic, queue_id, start))
            view, position = view[len(part) :], position + len(part)
        return True

    def _refuse(self, topic: str) -> None:
        if not self._refused:
            log.warning(
                "the log has messages of topic %r, which is not a valid folder name: they stay in the log and are in no queue. "
                "Brokers reject such topics; find out where this log comes from (logged once, for the first such topic)",
                topic[:_FOLDER_NAME_BYTES_MAX],
            )
        self._refused = True

    def replace(self, topic: str, queue_id: int, number: int, entry: bytes) -> None:
        """Overwrite one entry that is wrong or missing."""
        start, position, _wanted = self._place(number, 1)
        fd = self._writing.get(topic, queue_id, start, create=True)
        assert fd is not None
        self._files.pwrite(fd, entry, position)
        self._dirty.add((topic, queue_id, start))

    def _fill_gap(self, fd: int, end: int, log_offset: int) -> None:
        """Before the first entry of a queue that begins in the middle of a file, write filler: Java accepts no empty entries.
        Filler after older entries names where the log continues, so that entries still ascend."""
        if any(self._files.pread(fd, ENTRY.size, end - ENTRY.size)):
            return
        low = len(self._files.pread(fd, end, 0).rstrip(b"\0"))
        low += -low % ENTRY.size
        filler = ENTRY.pack(log_offset if low else 0, FILLER_BYTES, 0)
        self._files.pwrite(fd, filler * ((end - low) // ENTRY.size), low)

    def sync(self) -> None:
        """Make everything written so far durable. Slow."""
        dirty, self._dirty = self._dirty, set()
        if len(dirty) > _SYNC_EACH_MAX:
            # Syncing thousands of files one by one takes twenty times as long as syncing the file system.
            self._files.sync_file_system(self.folder)
            self._writing.made.clear()
            return
        for topic, queue_id, start in sorted(dirty):
            fd = self._writing.get(topic, queue_id, start)
            if fd is not None:
                self._files.sync(fd)
        # A file survives only if its folder is on disk, too.
        made, self._writing.made = self._writing.made, set()
        folders = {
            folder
            for path in map(Path, made)
            for folder in (path.parent, path.parent.parent, self.folder, self.folder.parent)
        }
        for folder in sorted(folders, reverse=True):
            if self._files.exists(folder):
                self._files.sync_folder(folder)

    def cut(self, topic: str, queue_id: int, end: int) -> None:
        """Remove the entries from offset `end` on."""
        for start in self._starts(topic, queue_id):
            if start >= end * ENTRY.size:
                self._remove(topic, queue_id, start)
            elif start + self.file_bytes > end * ENTRY.size:
                fd = self._writing.get(topic, queue_id, start)
                if fd is not None and self._holds_more(fd, end * ENTRY.size - start):
                    self._files.zero(fd, end * ENTRY.size - start, self.file_bytes)

    def _holds_more(self, fd: int, at: int) -> bool:
        """Whether anything was written at or behind `at`; reads only allocated pages."""
        page = at + -at % _PAGE_BYTES
        return any(self._files.pread(fd, page - at, at)) or self._files.next_data(fd, page) is not None

    def delete_below(self, topic: str, queue_id: int, min_offset: int) -> int:
        """Delete files that hold nothing at or above `min_offset`; never the last one. Returns how many."""
        removed = 0
        for start in self._starts(topic, queue_id)[:-1]:
            if start + self.file_bytes > min_offset * ENTRY.size:
                break
            self._remove(topic, queue_id, start)
            removed += 1
        return removed

    def _remove(self, topic: str, queue_id: int, start: int) -> None:
        self._writing.forget(topic, queue_id, start)
        self._dirty.discard((topic, queue_id, start))
        self._files.remove(self._path(topic, queue_id, start))

    def delete_topic(self, topic: str) -> None:
        if not is_folder_name(topic):
            return
        self._writing.forget(topic)
        self._dirty = {key for key in self._dirty if key[0] != topic}
        self._files.remove_tree(self.folder / topic, ignore_errors=True)

    def forget_readers(self, topic: str, queue_id: int | None = None) -> None:
        """For the loop, after files of this topic were deleted."""
        self._reading.forget(topic, queue_id)

    # -- reading -----------------------------------------------------------------------------------------------------------

    def read_resident(self, topic: str, queue_id: int, first: int, count: int) -> bytes | None:
        """Up to `count` entries from `first` on, within one file; None if that needs the disk. For the loop."""
        start, position, wanted = self._place(first, count)
        fd = self._reading.get(topic, queue_id, start)
        return b"" if fd is None else self._files.pread_if_resident(fd, wanted, position)

    def read(self, topic: str, queue_id: int, first: int, count: int) -> bytes:
        """The same from any thread, however long the disk takes."""
        start, position, wanted = self._place(first, count)
        try:
            fd = self._files.open(self._path(topic, queue_id, start), writable=False)
        except FileNotFoundError:
            return b""
        try:
            return self._files.pread(fd, wanted, position)
        finally:
            self._files.close(fd)

    def _place(self, first: int, count: int) -> tuple[int, int, int]:
        position = first * ENTRY.size
        start = position - position % self.file_bytes
        return start, position - start, min(count * ENTRY.size, start + self.file_bytes - position)

    def queues(self) -> Iterator[tuple[str, int]]:
        """Every (topic, queue id) that has a folder."""
        for topic in self._files.list(self.folder):
            for name in self._files.list(self.folder / topic):
                if name.isdigit():
                    yield topic, int(name)

    def bounds(self, topic: str, queue_id: int, log_min: int, log_end: int) -> tuple[int, int]:
        """(min, end): the entries of this queue that point into [log_min, log_end). Entries beyond `end` are not valid.

        Entries are dense and ordered by log offset up to `end`, so both are found by bisection."""
        descriptors: dict[int, int] = {}
        try:
            for start in self._starts(topic, queue_id):
                path = self._path(topic, queue_id, start)
                try:
                    fd = self._files.open(path, writable=False)
                except FileNotFoundError:
                    continue  # deleted by retention meanwhile
                descriptors[start] = fd
                size = self._files.size(fd)
                if size == 0:  # a crash between creating and extending the file: it is empty
                    self._files.close(descriptors.pop(start))
                elif size != self.file_bytes:
                    raise StoreError(
                        f"{path} has {size} bytes, but queue files are configured with {self.file_bytes} "
                        f"(mappedFileSizeConsumeQueue): open the store with the size it was written with"
                    )
            if not descriptors:
                return 0, 0

            held, held_first = b"", 0  # the last read: it holds all entries of most queues

            def entry(offset: int) -> tuple[int, int]:
                nonlocal held, held_first
                if not held_first <= offset < held_first + len(held) // ENTRY.size:
                    start, position, wanted = self._place(offset, _ENTRIES_AT_ONCE)
                    if start not in descriptors:
                        return 0, 0
                    held, held_first = self._files.pread(descriptors[start], wanted, position), offset
                log_offset, size, _code = ENTRY.unpack_from(held, (offset - held_first) * ENTRY.size)
                return log_offset, size

            def is_real(offset: int) -> bool:
                if offset > first and entry(offset - 1)[1] == 0:
                    return False  # after a hole nothing was written: a flipped bit
                log_offset, size = entry(offset)
                return size > 0 and (log_offset < log_end or size == FILLER_BYTES)

            def is_filler(offset: int) -> bool:
                return entry(offset) == ANY_FILLER

            def is_gone(offset: int) -> bool:
                while offset < end - 1 and is_filler(offset):
                    offset += 1  # filler between messages, left by an earlier version: look at the next entry
                return entry(offset)[0] < log_min

            first = min(descriptors) // ENTRY.size
            high = max(descriptors) // ENTRY.size + self.file_entries
            early = min(first + _ENTRIES_AT_ONCE, high)
            if not (is_real(first) and is_real(early - 1)):
                high = early
            end = _bisect(first, high, is_real)
            # Find filler before the first message in doubling steps, so that filler further on does not mislead the search.
            step = 1
            while first + step < end and is_filler(first + step - 1):
                step *= 2
            begin = _bisect(first + step // 2, min(first + step, end), is_filler)
            return _bisect(begin, end, is_gone), end
        finally:
            for fd in descriptors.values():
                self._files.close(fd)

    def entry(self, topic: str, queue_id: int, offset: int) -> tuple[int, int, int]:
        """(log offset, record bytes, tag code); zeros if there is none."""
        data = self.read(topic, queue_id, offset, 1)
        if len(data) < ENTRY.size:
            return 0, 0, 0
        log_offset, size, code = ENTRY.unpack(data)
        return log_offset, size, code

    def _path(self, topic: str, queue_id: int, start: int) -> str:
        return f"{self.folder}/{topic}/{queue_id}/{start:020d}"

    def _starts(self, topic: str, queue_id: int) -> list[int]:
        return [
            int(name)
            for name in self._files.list(f"{self.folder}/{topic}/{queue_id}")
            if name.isdigit() and len(name) == 20
        ]

    def close(self) -> None:
        self._writing.close()
        self._reading.close()


def _bisect(low: int, high: int, below: Callable[[int], bool]) -> int:
    """The first number in [low, high) for which `below` is false, else high."""
    while low < high:
        middle = (low + high) // 2
        if below(middle):
            low = middle + 1
        else:
            high = middle
    return low
