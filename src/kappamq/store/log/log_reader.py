"""Read-only access to the log's files, also while a broker appends: no lock, no mapping.

Reads use pread, so a file that is truncated or deleted meanwhile ends the read and not the process. A record counts when it is
complete, contains its own log offset and its checksums match; a batch counts when all of it is there.
"""

from __future__ import annotations

import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import ne
from pathlib import Path
from typing import Final

from kappamq import native
from kappamq.errors import StoreFormatError
from kappamq.native.layout import BLANK_BYTES, SCAN_BLANK, SCAN_MORE, TAIL_CRC_BYTES, TAIL_CRC_NAME
from kappamq.protocol.records import properties
from kappamq.protocol.records.record import Fault, Record, RecordError, batch_bytes, blank, decode
from kappamq.protocol.records.view import FRONT_BYTES, Front, fronts_in
from kappamq.store.files import Files

NAME_DIGITS: Final = 20
_WINDOW_BYTES = 1 << 20
_BLANK_WINDOW = bytes(_WINDOW_BYTES)
_FIRST_READ_BYTES = 4096
_SCAN_BYTES = 4 << 20
_GAP_BYTES = 16 << 10  # one read across a gap of this size is cheaper than two reads
_OPEN_MAX = 16


Pread = Callable[[int, int, int], bytes]
"""(descriptor, count, position) -> bytes, as os.pread."""


@dataclass(frozen=True, slots=True)
class Found:
    """A good record at `offset`, `size` bytes long."""

    offset: int
    size: int
    record: Record


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes [start, stop) that are not records. `tail`: no good record follows, so it may be an incomplete write.

    `end_mark`: only the end mark of a file is damaged: (file, position, its bytes, the correct bytes)."""

    start: int
    stop: int
    why: str
    tail: bool = False
    end_mark: tuple[Path, int, bytes, bytes] | None = None


class LogReader:
    def __init__(
        self, folder: Path, files: Files | None = None, segment_bytes: int = 0, pread: Pread | None = None
    ) -> None:
        self.folder = folder
        self._files = files or Files()
        self._pread = pread or self._files.pread
        self._open: OrderedDict[int, int] = OrderedDict()  # start of a file -> descriptor, the last used last
        self._starts: list[int] = []
        self._window = (0, b"")
        self.segment_bytes = segment_bytes  # 0: there is no file yet
        self.refresh()

    def refresh(self) -> None:
        """List the files again. Raises StoreFormatError if they cannot be a log."""
        starts: list[int] = []
        for name in self._files.list(self.folder):
            if len(name) != NAME_DIGITS or not (name.isascii() and name.isdigit()):
                raise StoreFormatError(f"{self.folder / name} is not a log file (20 digits): move it to another folder")
            starts.append(int(name))
        if starts and not self.segment_bytes:
            sizes = [self._size(start) for start in starts]
            self.segment_bytes = max(sizes, key=lambda size: (sizes.count(size), size))  # a file may be truncated
        self._starts = [start for start in starts if self._fits(start)]

    def _size(self, start: int) -> int:
        try:
            fd = self._files.open(self._path(start), writable=False)
        except FileNotFoundError:
            return 0
        try:
            return self._files.size(fd)
        finally:
            self._files.close(fd)

    def _fits(self, start: int) -> bool:
        if start in self._open:
            return True
        size = self._size(start)
        if size == 0:
            return False  # being created, or deleted meanwhile
        if size > self.segment_bytes or start % self.segment_bytes:
            raise StoreFormatError(
                f"{self._path(start)} has {size} bytes where the others have {self.segment_bytes}, or a name that is not a "
                f"multiple of it: it does not belong to this log"
            )
        return True  # a shorter one is truncated: its missing bytes are damage

    def _path(self, start: int) -> Path:
        return self.folder / f"{start:0{NAME_DIGITS}d}"

    @property
    def min(self) -> int:
        """Offset of the first byte that still exists."""
        return self._starts[0] if self._starts else 0

    @property
    def limit(self) -> int:
        """End of the last file, most of which may be unwritten."""
        return self._starts[-1] + self.segment_bytes if self._starts else 0

    @property
    def starts(self) -> list[int]:
        """First offsets of the files."""
        return list(self._starts)

    def read(self, offset: int, count: int) -> bytes:
        """Up to `count` bytes from `offset` on, within one file; none where there is no file."""
        if not self.segment_bytes or offset < 0:
            return b""
        start = offset - offset % self.segment_bytes
        fd = self._open.get(start)
        if fd is None:
            try:
                fd = self._files.open(self._path(start), writable=False)
            except FileNotFoundError:
                return b""
            if len(self._open) >= _OPEN_MAX:
                self._files.close(self._open.popitem(last=False)[1])
            self._open[start] = fd
        else:
            self._open.move_to_end(start)
        return self._pread(fd, min(count, start + self.segment_bytes - offset), offset - start)

    def record(self, offset: int, check_crc: bool = True) -> Found:
        """The record at `offset`, read from disk. Raises RecordError if there is none."""
        return self._decode(offset, self.read(offset, _FIRST_READ_BYTES), check_crc)

    def _decode(self, offset: int, data: bytes, check_crc: bool) -> Found:
        """`data` is the beginning of what lies at `offset`; more is read if the record is longer."""
        front = Front(data)
        if front.is_record and len(data) < front.size <= self.segment_bytes - offset % self.segment_bytes:
            data = self.read(offset, front.size)
        try:
            record = decode(data, 0, check_crc)
        except RecordError as error:
            raise RecordError(error.fault, offset, error.detail) from None
        if record.log_offset != offset:
            raise RecordError(Fault.FIELDS, offset, f"it contains the log offset {record.log_offset}")
        # A tail that never reached the disk reads as zeros, and the checksum property is part of that tail.
        if record.properties.endswith("\0") or "\0" in record.topic:
            raise RecordError(Fault.FIELDS, offset, "it ends in zeros, so it was not written completely")
        return Found(offset, front.size, record)

    def damaged_crc(self, found: Found) -> tuple[Path, int, bytes, bytes] | None:
        """A damaged checksum property makes a record look like one without a checksum: (file, position, its bytes, the correct bytes), or
        None if that is not the case."""
        at = found.offset + found.size - TAIL_CRC_BYTES
        start, data = self._window
        tail = data[at - start : at - start + TAIL_CRC_BYTES] if start <= at else b""
        if len(tail) < TAIL_CRC_BYTES:
            tail = self.read(at, TAIL_CRC_BYTES)
        name = tail[: len(TAIL_CRC_NAME)]
        if (name == TAIL_CRC_NAME and tail[len(name) : -1].isdigit() and tail[-1] == 2) or sum(
            map(ne, name, TAIL_CRC_NAME)
        ) > 1:
            return None  # it is intact and was compared, or there is none
        right = properties.tail_crc(zlib.crc32(self.read(found.offset, found.size - TAIL_CRC_BYTES)))
        if sum(map(ne, tail, right)) != 1:
            return None  # it only looks like one
        return self._path(at - at % self.segment_bytes), at % self.segment_bytes, tail, right

    def records_at(
        self, places: Sequence[tuple[int, int]], check_crc: bool = True
    ) -> Iterator[tuple[int, Found | RecordError]]:
        """(offset, record or error) for each (offset, size), in ascending order; neighbours are read together."""
        first = 0
        while first < len(places):
            start, stop, last = places[first][0], places[first][0], first
            while last < len(places):
                offset, size = places[last]
                same_file = offset // self.segment_bytes == start // self.segment_bytes if self.segment_bytes else False
                if last > first and (
                    not same_file or not 0 <= offset - stop <= _GAP_BYTES or offset + size - start > _WINDOW_BYTES
                ):
                    break
                stop, last = offset + max(size, 0), last + 1
            data = self.read(start, min(stop - start, _WINDOW_BYTES))
            for offset, size in places[first:last]:
                try:
                    yield offset, self._decode(offset, data[offset - start : offset - start + max(size, 0)], check_crc)
                except RecordError as error:
                    yield offset, error
            first = last

    def end(self, start: int | None = None) -> int:
        """One past the last good record, by the kernel's scan from `start` on; else from the last file that has any."""
        self.refresh()
        scan = native.load().scan
        if start is None or not self.min <= start < self.limit:
            used = [first for first in self._starts if self.read(first, 8) != bytes(8)]
            start = used[-1] if used else self.min
        at: int = start
        while True:
            count = _SCAN_BYTES
            while True:
                data = self.read(at, count)
                good: int
                good, why, _records, _ms = scan(data, at, True)
                # A record or batch may be longer than the piece read.
                if good or why != SCAN_MORE or len(data) < count:
                    break
                count *= 4
            at += good
            if not good:
                if why != SCAN_BLANK:
                    return at
                at += self.segment_bytes - at % self.segment_bytes

    # -- in log order ------------------------------------------------------------------------------------------------------

    def scan(
        self, start: int | None = None, stop: int | None = None, *, check_crc: bool = True, thorough: bool = False
    ) -> Iterator[Found | Damage]:
        """Records and damage in log order from `start` (a record's offset); no record that begins at or behind `stop`.

        Zeros end the log unless a later file holds something; `thorough` looks for records in the rest of this file too.
        A file that is deleted meanwhile is skipped."""
        self.refresh()
        self._window = (0, b"")
        at = self.min if start is None else max(start, self.min)
        batch: list[Found] = []  # the members so far of a batch that is not complete
        batch_end = 0
        while stop is None or at < stop or batch:
            found = self._good_at(at, check_crc)
            if isinstance(found, Found):
                if batch and found.record.stored_ms != batch[0].record.stored_ms:
                    yield from batch  # not a member: the property was not a batch length
                    batch = []
                if not batch:
                    batch_end = at + (batch_bytes(found.record) or 0)
                batch.append(found)
                at += found.size
                if at >= batch_end:
                    yield from batch
                    batch = []
                continue
            if found.fault is Fault.BLANK and not batch:
                behind = at + self.segment_bytes - at % self.segment_bytes
                if thorough and (mark := self._damaged_mark(at)) is not None and behind in self._starts:
                    yield mark
                at = behind
                continue
            moved = self._passed_over(at)
            if moved is not None:
                at, batch = moved, []
                continue
            damage = self._damage(at, found, batch, thorough)
            if damage is None:
                return
            if damage.stop <= at and not damage.tail:
                continue  # a record was being written there and is complete now
            yield damage
            if damage.tail:
                return
            at, batch = damage.stop, []

    def _good_at(self, at: int, check_crc: bool) -> Found | RecordError:
        try:
            return self._decode(at, self._from_window(at), check_crc)
        except RecordError:
            # It may have been written after the window was read.
            self._window = (0, b"")
            try:
                return self.record(at, check_crc)
            except RecordError as error:
                return error

    def _from_window(self, at: int) -> bytes:
        """The bytes at `at`, enough for a record header; one read serves many records."""
        start, data = self._window
        if not start <= at <= start + len(data) - _FIRST_READ_BYTES:
            start, data = self._window = (at, self.read(at, _WINDOW_BYTES))
        at -= start
        return data[at : at + max(BLANK_BYTES, Front(data, at).size)]

    def _passed_over(self, at: int) -> int | None:
        """Where to continue if `at` is in no file: the oldest files may have been deleted."""
        if self.read(at, 1):
            return None
        self.refresh()
        return self.min if at < self.min else None

    def _damage(self, at: int, error: RecordError, batch: list[Found], thorough: bool) -> Damage | None:
        """The damage at `at`, where there is no good record; None if the log ends there."""
        start, why = at, str(error)
        if batch:
            start, why = batch[0].offset, f"the beginning of a batch, but not all of it; {why}"
        head = self.read(at, BLANK_BYTES)
        empty = head == bytes(len(head))
        if empty and not batch:
            cut = not head and any(first <= start < first + self.segment_bytes for first in self._starts)
            why = "nothing was ever written there" if head else "the file is truncated" if cut else "a file is missing"
        self.refresh()
        resumed = self.next_good(at + 1, thorough or not empty)
        if resumed is not None and not batch and resumed % self.segment_bytes == 0:
            mark = self._damaged_mark(at)
            if mark is not None and mark.stop == resumed:
                return mark
        if resumed is None:
            return None if empty and not batch else Damage(start, at, why, tail=True)
        if isinstance(self._good_at(at, check_crc=True), Found):
            return Damage(at, at, "")
        return Damage(start, resumed, why)

    def _damaged_mark(self, at: int) -> Damage | None:
        """The damage at `at` if it is an end mark in which one of the two numbers is wrong."""
        room = self.segment_bytes - at % self.segment_bytes
        right, found = blank(room), self.read(at, BLANK_BYTES)
        if found == right or len(found) < len(right) or (found[:4] != right[:4] and found[4:] != right[4:]):
            return None
        path, position = self._path(at - at % self.segment_bytes), at % self.segment_bytes
        return Damage(at, at + room, "the end mark of the file is damaged", end_mark=(path, position, found, right))

    def next_good(
        self, after: int, search_here: bool = True, is_good: Callable[[int], bool] | None = None
    ) -> int | None:
        """The first offset from `after` on that holds a good record; `is_good` checks each candidate."""
        is_good = is_good or self._is_good
        for start in self._starts:
            stop = start + self.segment_bytes
            if stop <= after or (start < after and not search_here):
                continue
            if start >= after and not search_here and self.read(start, 8) == bytes(8):
                continue  # prepared, not used yet
            at = max(after, start)
            while at < stop:
                data = self.read(at, _WINDOW_BYTES)
                # Most of a file that was prepared is blank, which is seen much faster than that no record begins there.
                for place in fronts_in(data, at) if data != _BLANK_WINDOW else ():
                    if is_good(at + place):
                        return at + place
                if len(data) < _WINDOW_BYTES:
                    break
                at += len(data) - FRONT_BYTES  # a record's front may lie across
        return None

    def _is_good(self, offset: int) -> bool:
        try:
            self.record(offset)
        except RecordError:
            return False
        return True

    def close(self) -> None:
        for fd in self._open.values():
            self._files.close(fd)
        self._open.clear()
