"""One file of the key index, read: header, slots, entries and the chains through them. Java's files and ours.

    0    begin and end store time, begin and end log offset (4 x int64), used slots, entries + 1 (2 x int32)
    40   slots: int32 each, the number of the newest entry whose key hash falls into the slot, 0 for none
    ...  entries from number 1 on (0 is never used): key hash, log offset, seconds since begin, previous in the slot

Entries are in log order and never change; zeros follow them. Slots and counters lag while a broker runs (a Java broker writes its
counters when the file is full or at a clean stop, ours writes slots and counters together), so no number is used here before
the entries confirm it.
"""

from __future__ import annotations

import datetime
from array import array
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Final, Self

from kappamq.errors import StoreFormatError
from kappamq.native.pure_index import index_link
from kappamq.protocol.records.entries import (
    INDEX_ENTRY,
    INDEX_ENTRY_BYTES,
    INDEX_HEADER,
    INDEX_HEADER_BYTES,
    INDEX_SLOT_BYTES,
    entry_position,
    index_file_bytes,
    slot_position,
)
from kappamq.store.files import Files

NAME_DIGITS: Final = 17
FIRST: Final = 1  # number of the first entry
_FOREVER_MS = 1 << 62
WALK_MAX: Final = 100_000
"""The most entries that a query reads: millions of messages may have the same key."""
SCAN_MAX: Final = 5_000_000
"""Entries without a slot that a reader of a live store scans at most; about a second's work."""
_NO_ENTRY = bytes(INDEX_ENTRY_BYTES)
_TIME_MAX_S = 253_402_000_000  # year 9999: later store times are invalid, but a file name must still be formed
_SECOND_MS = 1000
_CHUNK_ENTRIES = 8192

IndexLink = Callable[[bytearray, bytes, int, int], tuple[int, int, int]]
"""Kernel's index_link: (slots, entries, number, last log offset) -> (number, last log offset, new slots)."""


@dataclass(slots=True)
class IndexHeader:
    begin_ms: int = 0  # store time of the first entry's record; 0: empty
    end_ms: int = 0
    begin_offset: int = 0
    end_offset: int = 0
    used_slots: int = 0
    count: int = FIRST  # number of the next entry

    @classmethod
    def decode(cls, data: bytes) -> Self:
        header = cls(*INDEX_HEADER.unpack(data))
        header.count = max(header.count, FIRST)
        return header

    def encode(self) -> bytes:
        return INDEX_HEADER.pack(*astuple(self))

    def copy(self) -> IndexHeader:
        return replace(self)


def file_name(store_ms: int, after: str = "") -> str:
    """The name of a file whose first record was stored at `store_ms`: local time, and later than the file `after`.

    Local time is not unique (autumn), and two files may begin in one millisecond; order by name is order in the log."""
    seconds, ms = divmod(max(store_ms, 0), 1000)
    name = f"{datetime.datetime.fromtimestamp(min(seconds, _TIME_MAX_S)):%Y%m%d%H%M%S}{ms:03d}".zfill(NAME_DIGITS)
    if name > after:
        return name
    moment = datetime.datetime.strptime(after + "000", "%Y%m%d%H%M%S%f") + datetime.timedelta(milliseconds=1)
    return f"{moment:%Y%m%d%H%M%S}{moment.microsecond // 1000:03d}".zfill(NAME_DIGITS)


def is_file_name(name: str) -> bool:
    if len(name) != NAME_DIGITS or not (name.isascii() and name.isdigit()):
        return False
    try:
        datetime.datetime.strptime(name + "000", "%Y%m%d%H%M%S%f")
    except ValueError:
        return False
    return True


class IndexView:
    """An index file that the caller opens and closes."""

    __slots__ = ("_files", "entries_max", "fd", "path", "slots")

    def __init__(self, path: Path, fd: int, slots: int, entries_max: int, files: Files) -> None:
        self.path = path
        self.fd = fd
        self.slots = slots
        self.entries_max = entries_max
        self._files = files

    def check_size(self) -> None:
        size, expected = self._files.size(self.fd), index_file_bytes(self.slots, self.entries_max)
        if size != expected:
            raise StoreFormatError(
                f"{self.path} has {size} bytes, but index files with {self.slots} slots (maxHashSlotNum) and "
                f"{self.entries_max} entries (maxIndexNum) have {expected}: open the store with the numbers it was "
                f"written with, or remove the index folder to have it rebuilt"
            )

    def header(self) -> IndexHeader:
        return IndexHeader.decode(self._files.pread(self.fd, INDEX_HEADER_BYTES, 0))

    def slot(self, key: int) -> int:
        """What the file holds in the slot of a key hash."""
        data = self._files.pread(self.fd, INDEX_SLOT_BYTES, slot_position(key % self.slots))
        return int.from_bytes(data, "big", signed=True)

    def used_slots(self) -> int:
        table = array("i", self._files.pread(self.fd, self.slots * INDEX_SLOT_BYTES, slot_position(0)))
        return len(table) - table.count(0)

    def entry(self, number: int) -> tuple[int, int, int, int] | None:
        """(key hash, log offset, seconds, previous); None where nothing was written."""
        if not FIRST <= number < self.entries_max:
            return None
        data = self._files.pread(self.fd, INDEX_ENTRY_BYTES, entry_position(self.slots, number))
        if data == _NO_ENTRY or len(data) < INDEX_ENTRY_BYTES:
            return None
        key, log_offset, seconds, previous = INDEX_ENTRY.unpack(data)
        return key, log_offset, seconds, previous

    def chunks(self, first: int, stop: int) -> Iterator[tuple[int, bytes]]:
        """(number of its first entry, bytes) over entries [first, stop)."""
        while first < stop:
            count = min(_CHUNK_ENTRIES, stop - first)
            data = self._files.pread(self.fd, count * INDEX_ENTRY_BYTES, entry_position(self.slots, first))
            if len(data) < count * INDEX_ENTRY_BYTES:
                return
            yield first, data
            first += count

    def end(self, log_end: int) -> int:
        """One past the last entry of a record below `log_end`. Entries are dense and in log order, so it bisects."""
        end = self._bisect(self.entries_max, log_end)
        while end - 2 >= FIRST and self.entry(end - 2) is None:
            end = self._bisect(end - 1, log_end)  # after a hole nothing was written: a flipped bit
        return end

    def _bisect(self, high: int, log_end: int) -> int:
        low = FIRST
        while low < high:
            middle = (low + high) // 2
            entry = self.entry(middle)
            if entry is not None and entry[1] < log_end:
                low = middle + 1
            else:
                high = middle
        return low

    def store_ms(self, number: int, seconds: int, begin_ms: int) -> int:
        """When the record of an entry was stored, at most a second too early.

        In a file that follows a full one, Java counts the first entry's seconds from the end of that file, the others'
        from the first record on. The first record's time is the begin time by definition."""
        return begin_ms if number == FIRST else begin_ms + seconds * _SECOND_MS

    def unslotted(self, header: IndexHeader) -> range:
        """Numbers of the entries that the slots on disk lack.

        Our broker writes slots and counters together, so these are the entries behind the count. A Java broker's slots
        are always current and its count is not: the newest entry shows it, by whether its slot leads to it."""
        stop = self.end(1 << 62)
        newest = self.entry(stop - 1)
        if newest is None or self.slot(newest[0]) >= stop - 1:
            return range(stop, stop)
        return range(min(stop, max(header.count, stop - SCAN_MAX)), stop)


class Search:
    """One query over the files, newest first. Limits both the results and the entries read."""

    def __init__(
        self,
        key: int,
        count_max: int,
        begin_ms: int,
        end_ms: int,
        walk_max: int = WALK_MAX,
        within: Callable[[int], bool] | None = None,
    ) -> None:
        """With `within`, the times in the files are ignored, and no file is skipped because of them."""
        self.key = key
        self.begin_ms = begin_ms if within is None else 0
        self.end_ms = end_ms if within is None else _FOREVER_MS
        self._within = within
        self.found: list[int] = []
        self._count_max = count_max
        self._walk_left = walk_max

    @property
    def done(self) -> bool:
        return len(self.found) >= self._count_max or self._walk_left <= 0

    def wants(self, header: IndexHeader) -> bool:
        """Whether a file may hold entries of the requested time."""
        return header.begin_ms <= self.end_ms and header.end_ms + _SECOND_MS > self.begin_ms

    def walk(self, view: IndexView, begin_ms: int, newest: int, stop: int, below: int | None = None) -> None:
        """Follow the chain of the key's slot from entry `newest` back; all entries lie below number `stop`.

        Those at or above number `below` are skipped."""
        number = newest
        while FIRST <= number < stop and not self.done:
            entry = view.entry(number)
            self._walk_left -= 1
            if entry is None:
                return  # a broken link; older entries cannot be found from here
            key, log_offset, seconds, previous = entry
            if (below is None or number < below) and not self._look(
                key, log_offset, view.store_ms(number, seconds, begin_ms)
            ):
                return
            # Each link leads to an older entry, so a walk ends even if links are damaged.
            stop, number = number, previous

    def scan(self, view: IndexView, begin_ms: int, numbers: range) -> None:
        """Scan entries that no slot leads to yet, newest first."""
        stop = numbers.stop
        while stop > numbers.start and not self.done:
            first = max(numbers.start, stop - _CHUNK_ENTRIES)
            rows = [row for _, data in view.chunks(first, stop) for row in INDEX_ENTRY.iter_unpack(data)]
            for number in range(first + len(rows) - 1, first - 1, -1):
                key, log_offset, seconds, _previous = rows[number - first]
                if self.done or not self._look(key, log_offset, view.store_ms(number, seconds, begin_ms)):
                    return
            stop = first

    def _look(self, key: int, log_offset: int, store_ms: int) -> bool:
        """Take the entry if it fits; False if all older entries are too old."""
        if store_ms + _SECOND_MS <= self.begin_ms:
            return False
        if key == self.key and self._within is not None and not self._within(log_offset):
            return True
        # A record with the same key twice has two entries, one after the other.
        if key == self.key and store_ms <= self.end_ms and self.found[-1:] != [log_offset]:
            self.found.append(log_offset)
        return True


def rebuild_slots(view: IndexView, stop: int, link: IndexLink = index_link) -> tuple[bytearray, int, int]:
    """Compute the slot table from entries [1, stop): (table, used slots, stop).

    The returned stop is smaller if an earlier entry is invalid (zeros, or out of log order): the machine went down before it was
    on disk."""
    table = bytearray(view.slots * INDEX_SLOT_BYTES)
    number, last, used = FIRST, 0, 0
    for first, data in view.chunks(FIRST, stop):
        number, last, fresh = link(table, data, first, last)
        used += fresh
        if number < first + len(data) // INDEX_ENTRY_BYTES:
            break
    return table, used, number
