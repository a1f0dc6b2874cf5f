"""Compare the key index with the log: index entries lie in log order, so both are read once, side by side.

Every used byte of an index file can be derived from something else: key, log offset and time of an entry from its record, the
link to the previous entry of the slot from the entries before it, slots and header from the entries.
"""

from __future__ import annotations

import sys
from array import array
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from kappamq.errors import StoreError
from kappamq.protocol.records.entries import (
    INDEX_ENTRY,
    INDEX_HEADER,
    INDEX_SLOT,
    INDEX_SLOT_BYTES,
    entry_position,
    slot_position,
)
from kappamq.store.files import Files
from kappamq.store.index.growing import OnDisk
from kappamq.store.index.index_file import list_index_files
from kappamq.store.index.view import FIRST, IndexHeader, IndexView, rebuild_slots
from kappamq.store.verify.report import BytesFix, Kind, Report

_FOREVER = (1 << 63) - 1
_INT_MAX = (1 << 31) - 1
_SLOTS_AT_ONCE = 512  # an upper bound for the problems that one step can find
_BEGIN_MS, _END_MS, _BEGIN_OFFSET, _END_OFFSET, _USED_SLOTS, _COUNT = range(6)
_HEADER_FIELDS: Final = (
    ("begin time", 0, 8),
    ("end time", 8, 8),
    ("first log offset", 16, 8),
    ("last log offset", 24, 8),
    ("number of used slots", 32, 4),
    ("number of entries", 36, 4),
)

StoredMs = Callable[[int], int | None]
"""Log offset of a record -> its store time; None if there is no valid record."""
GrowingOnDisk = Callable[[Path], OnDisk | None]
"""Index file -> what of it is on disk, if it is being written; None if it is not, or if that is unknown."""


@dataclass(slots=True)
class _File:
    """The state of the check of one index file."""

    path: Path
    slots: int
    header: IndexHeader
    stored: tuple[int, ...]  # the header's fields as they are on disk
    begin_ms: int
    stop: int  # one past the number of the last entry
    is_last: bool
    on_disk: OnDisk | None  # before its header was read
    newest: array[int]  # by slot: the number of its newest entry so far
    first: int  # number of the first entry to check
    next: int  # number of the next entry to check
    # slot -> its value before the entries that the header does not count
    older: dict[int, int] = field(default_factory=dict)
    counted: tuple[int, int] | None = None  # (log offset, store ms) of the last entry that the header counts
    expected: dict[int, int] = field(default_factory=dict)  # header field -> the right value

    @property
    def count(self) -> int:
        """One past the number of the last entry that the slots on disk include."""
        return self.expected.get(_COUNT, self.header.count)


class _Row(NamedTuple):
    key: int
    log_offset: int
    seconds: int
    previous: int
    number: int
    file: _File


class IndexCheck:
    """Call `expect` for each record in log order, followed by `check_files`, and `finish` after the last record.

    The keys of records below `indexed_to` must be in the index; later ones may be. `start` is the offset of the first record that
    will be passed to `expect`: entries of earlier records, and of records from `stop` on, are skipped. `on_disk` is called
    whenever slots and header are read, because a running broker may write them, or continue in another file, at any time."""

    def __init__(
        self,
        folder: Path,
        slots: int,
        entries_max: int,
        indexed_to: int,
        report: Report,
        files: Files,
        *,
        start: int = 0,
        stop: int = _FOREVER,
        on_disk: GrowingOnDisk = lambda path: None,
        stored_ms: StoredMs = lambda log_offset: None,
    ) -> None:
        self._folder = folder
        self._slots = slots
        self._entries_max = entries_max
        self._indexed_to = indexed_to
        self._report = report
        self._files = files
        self._start, self._stop = start, stop
        self._on_disk = on_disk
        self._stored_ms = stored_ms
        self._rows = self._read()
        self._ahead: deque[_Row] = deque()
        self._file: _File | None = None
        # files whose entries have all been read; slots and header are not checked yet
        self._done: deque[_File] = deque()
        self._before = 0  # log offset of the previous entry
        self._exists = self._peek() is not None  # without any entry the index does not exist, which is valid

    # -- record by record ----------------------------------------------------------------------------------------------------

    def expect(self, offset: int, hashes: list[int], optional: bool = False, stored_ms: int | None = None) -> None:
        """Check that the record at `offset` is indexed under these hashes."""
        if not self._exists:
            return
        missing, extra, found = list(hashes), list[int](), 0
        while (row := self._peek()) is not None:
            wanted = missing[0] if missing else None
            if row.log_offset == offset and row.key == wanted:
                self._check_time(row, stored_ms)
            elif wanted is not None and self._is_flipped(row, offset, wanted):
                self._fix_entry(row, wanted, offset, stored_ms)
                row = row._replace(key=wanted, log_offset=offset)
            elif row.log_offset == offset:
                # After a crash a Java broker indexes a record's keys a second time, which is harmless: only the set matters.
                extra.append(row.key)
                self._advance(row, stored_ms)
                continue
            elif missing and (row.log_offset < offset or self._is_out_of_order(row)):
                if row.log_offset >= self._start:
                    self._report_dangling(row)
                self._advance(row, None)
                continue
            else:
                break
            self._advance(row, stored_ms)
            del missing[0]
            found += 1
        if (optional and not found and not extra) or (not missing and set(extra) <= set(hashes)):
            return
        if not found and not extra and self._peek() is None and offset >= self._indexed_to:
            self._report.unindexed += 1
            return
        for key in sorted(set(missing) - set(extra)):
            self._report.add(Kind.INDEX, "index", offset, f"the record's key with hash {key} is not in the index")
        for key in sorted(set(extra) - set(hashes)):
            self._report.add(
                Kind.INDEX, "index", offset, f"the index has a key with hash {key} that the record does not have"
            )

    def check_files(self) -> Iterator[int]:
        """Check slots and header of the completed files, in short steps; yields how many bytes each step has read."""
        while self._done:
            yield from self._check_file(self._done.popleft())

    def finish(self) -> Iterator[int]:
        """Check what is left after the last record, in short steps as well."""
        while (row := self._peek()) is not None:
            self._report_dangling(row)
            self._advance(row, None)
            yield INDEX_ENTRY.size
        if self._file is not None:
            self._done.append(self._file)
            self._file = None
        yield from self.check_files()

    def _peek(self, place: int = 0) -> _Row | None:
        while len(self._ahead) <= place:
            row = next(self._rows, None)
            if row is None:
                return None
            self._ahead.append(row)
        return self._ahead[place]

    def _advance(self, row: _Row, stored_ms: int | None) -> None:
        """Move on to the next entry. `row` is correct by now; its record was stored at `stored_ms`, if there is one."""
        self._ahead.popleft()
        file = row.file
        if self._file is not file:
            if self._file is not None:
                self._done.append(self._file)
            self._file = file
        self._report.index_entries += 1
        if row.log_offset < self._before and row.log_offset >= self._start:
            self._report.add(
                Kind.INDEX, file.path.name, row.log_offset, f"out of order: it follows an entry for {self._before}"
            )
        if stored_ms is not None:
            self._before = max(self._before, row.log_offset)
        slot = row.key % file.slots
        if row.previous != file.newest[slot]:
            self._report_link(row, file.newest[slot])
        if row.number >= file.count:
            file.older.setdefault(slot, file.newest[slot])
        file.newest[slot] = row.number
        file.next = row.number + 1
        if stored_ms is not None and row.number == file.count - 1:
            file.counted = (row.log_offset, stored_ms)

    def _is_flipped(self, row: _Row, offset: int, key: int) -> bool:
        """Whether the entry would be that of this key and record if one bit of either were flipped."""
        return (row.key == key and (row.log_offset ^ offset).bit_count() == 1) or (
            row.log_offset == offset and ((row.key ^ key) & 0xFFFFFFFF).bit_count() == 1
        )

    def _is_out_of_order(self, row: _Row) -> bool:
        following = [found for found in (self._peek(1), self._peek(2)) if found is not None]
        return bool(following) and all(found.log_offset < row.log_offset for found in following)

    def _seconds(self, row: _Row, stored_ms: int) -> int:
        return min(max(stored_ms - row.file.begin_ms, 0) // 1000, _INT_MAX)

    def _check_time(self, row: _Row, stored_ms: int | None) -> None:
        if stored_ms is None:
            return
        file = row.file
        if row.number == FIRST:
            # The first entry's seconds count from the end of the previous file, which may have been deleted.
            file.begin_ms = stored_ms
            file.expected.update({_BEGIN_MS: stored_ms, _BEGIN_OFFSET: row.log_offset})
        elif row.seconds != self._seconds(row, stored_ms):
            self._fix_entry(row, row.key, row.log_offset, stored_ms)

    def _fix_entry(self, row: _Row, key: int, offset: int, stored_ms: int | None) -> None:
        seconds = row.seconds
        if stored_ms is not None and row.number != FIRST:
            seconds = self._seconds(row, stored_ms)
        elif stored_ms is not None:
            self._check_time(row._replace(key=key, log_offset=offset), stored_ms)
        wrong = INDEX_ENTRY.pack(row.key, row.log_offset, row.seconds, row.previous)
        right = INDEX_ENTRY.pack(key, offset, seconds, row.previous)
        self._report.add(
            Kind.INDEX,
            row.file.path.name,
            offset,
            f"entry {row.number} has key hash {row.key}, log offset {row.log_offset}, {row.seconds} s; according to the record "
            f"it should be {key}, {offset}, {seconds} s",
            BytesFix(row.file.path, entry_position(row.file.slots, row.number), wrong[:16], right[:16]),
        )

    def _report_dangling(self, row: _Row) -> None:
        if row.log_offset >= self._report.log_min:
            self._report.add(
                Kind.INDEX, row.file.path.name, row.log_offset, f"there is no valid record for key hash {row.key}"
            )

    # -- file by file --------------------------------------------------------------------------------------------------------

    def _read(self) -> Iterator[_Row]:
        """Yield every entry to check, file by file."""
        paths = list_index_files(self._folder, self._files)
        while len(paths) > 1 and self._begins_below(paths[1]):
            del paths[0]
        for path in paths:
            view = self._view(path)
            if view is None:
                continue
            try:
                if self._files.size(view.fd) == 0:
                    continue  # it is being created
                view.check_size()
                self._report.index_files += 1
                yield from self._read_file(view)
            except StoreError as error:
                self._report.add(Kind.INDEX, path.name, 0, str(error))
            finally:
                self._files.close(view.fd)

    def _view(self, path: Path) -> IndexView | None:
        try:
            return IndexView(path, self._files.open(path, writable=False), self._slots, self._entries_max, self._files)
        except FileNotFoundError:
            return None  # it has expired meanwhile

    def _begins_below(self, path: Path) -> bool:
        """Whether all entries before this file are those of records below `start`."""
        view = self._view(path) if self._start else None
        if view is None:
            return False
        try:
            first = view.entry(FIRST) if self._files.size(view.fd) else None
            return first is not None and 0 < first[1] < self._start
        finally:
            self._files.close(view.fd)

    def _read_file(self, view: IndexView) -> Iterator[_Row]:
        # Before anything is read: a file that is no longer the last one was completely written before this call.
        on_disk = self._on_disk(view.path)
        is_last = on_disk is not None or list_index_files(self._folder, self._files)[-1:] == [view.path]
        data = self._files.pread(view.fd, INDEX_HEADER.size, 0)
        header, stored, stop = IndexHeader.decode(data), INDEX_HEADER.unpack(data), view.end(_FOREVER)
        first = FIRST if not self._start else max(FIRST, view.end(self._start))
        newest = array("i", bytes(view.slots * INDEX_SLOT_BYTES))
        if first > FIRST:
            table, _used, _stop = rebuild_slots(view, first)
            newest = _from_disk(bytes(table))
        file = _File(
            view.path, view.slots, header, stored, header.begin_ms, stop, is_last, on_disk, newest, first, first
        )
        oldest = view.entry(FIRST) if first > FIRST else None
        if oldest is not None and (begun := self._stored_ms(oldest[1])) is not None:
            file.begin_ms = file.expected[_BEGIN_MS] = begun
        # A count of 0 or FIRST means that a Java broker was killed before it wrote its counters.
        if not is_last and stored[_COUNT] not in (0, FIRST):
            file.expected[_COUNT] = stop
        elif on_disk is not None and on_disk.flushed:
            file.expected[_COUNT] = on_disk.flushed
        last_wanted = stop  # searched from the end: a bisection could be misled by a damaged entry
        while (
            self._stop < _FOREVER and last_wanted > first and (view.entry(last_wanted - 1) or (0, 0))[1] >= self._stop
        ):
            last_wanted -= 1
        for number, data in view.chunks(first, last_wanted):
            for place, (key, log_offset, seconds, previous) in enumerate(INDEX_ENTRY.iter_unpack(data), number):
                yield _Row(key, log_offset, seconds, previous, place, file)

    def _report_link(self, row: _Row, right: int) -> None:
        self._report.add(
            Kind.INDEX,
            row.file.path.name,
            row.log_offset,
            f"entry {row.number} links to entry {row.previous}, but the previous entry of its slot is {right}",
            BytesFix(
                row.file.path,
                entry_position(row.file.slots, row.number) + INDEX_ENTRY.size - INDEX_SLOT.size,
                INDEX_SLOT.pack(row.previous),
                INDEX_SLOT.pack(right),
            ),
        )

    def _check_file(self, file: _File) -> Iterator[int]:
        """Check slots and header of a file, now that all its entries have been read."""
        view = self._view(file.path)
        if view is None:
            return
        try:
            # Otherwise slots and counters on disk may be older than the entries; a broker recomputes them.
            if file.first <= file.count <= file.next and self._is_slot_count_known(file):
                for slot, value in file.older.items():
                    file.newest[slot] = value
                yield from self._check_slots(view, file)
                file.expected[_USED_SLOTS] = len(file.newest) - file.newest.count(0)
            if self._is_unchanged(view, file):
                self._check_header(file)
        finally:
            self._files.close(view.fd)

    def _is_slot_count_known(self, file: _File) -> bool:
        """Whether the number of entries that the slots on disk include is known for certain."""
        if file.on_disk is not None:
            return file.on_disk.flushed > 0
        return file.stored[_COUNT] == file.stop or _COUNT in file.expected

    def _is_unchanged(self, view: IndexView, file: _File) -> bool:
        """Whether slots and header are still those that were on disk when the file was opened: a broker may write them any time."""
        if self._on_disk(file.path) != file.on_disk:
            return False
        # The state of another process is unknown, but it writes an entry before the slot that leads to it.
        return not file.is_last or file.on_disk is not None or view.entry(file.stop) is None

    def _check_slots(self, view: IndexView, file: _File) -> Iterator[int]:
        for first in range(0, view.slots, _SLOTS_AT_ONCE):
            count = min(_SLOTS_AT_ONCE, view.slots - first)
            table = _from_disk(self._files.pread(view.fd, count * INDEX_SLOT_BYTES, slot_position(first)))
            if not self._is_unchanged(view, file):
                return  # the broker wrote meanwhile: the bytes may be half old, half new
            right = file.newest[first : first + count]
            for slot, (found, expected) in enumerate(zip(table, right, strict=False) if table != right else (), first):
                if found != expected:
                    self._report.add(
                        Kind.INDEX,
                        view.path.name,
                        file.header.end_offset,
                        f"slot {slot} leads to entry {found}, its newest is {expected}",
                        BytesFix(view.path, slot_position(slot), INDEX_SLOT.pack(found), INDEX_SLOT.pack(expected)),
                    )
            yield count * INDEX_SLOT_BYTES

    def _check_header(self, file: _File) -> None:
        if file.counted is not None:
            file.expected[_END_OFFSET], file.expected[_END_MS] = file.counted
        stored = file.stored
        for place, right in file.expected.items():
            if stored[place] == right:
                continue
            what, position, size = _HEADER_FIELDS[place]
            self._report.add(
                Kind.INDEX,
                file.path.name,
                file.header.end_offset,
                f"the header has {stored[place]} as {what}, it should be {right}",
                BytesFix(
                    file.path,
                    position,
                    stored[place].to_bytes(size, "big", signed=True),
                    right.to_bytes(size, "big", signed=True),
                ),
            )


def _from_disk(data: bytes) -> array[int]:
    table = array("i", data[: len(data) - len(data) % INDEX_SLOT_BYTES])
    if sys.byteorder == "little":
        table.byteswap()
    return table
