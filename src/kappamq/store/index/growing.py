"""The newest index file: entries are written as they come, its slot table stays in memory until it is flushed.

Slots can be computed from entries, so a crash before a flush costs only time. Slots are written after entries and counters after
slots; if they are consistent, the slots are valid.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Self

from kappamq.native.layout import INDEX_PENDING
from kappamq.native.pure_index import index_link
from kappamq.protocol.records.entries import (
    INDEX_ENTRY,
    INDEX_SLOT_BYTES,
    entry_position,
    index_file_bytes,
    slot_position,
)
from kappamq.store.files import Files
from kappamq.store.index.view import FIRST, SCAN_MAX, IndexHeader, IndexLink, IndexView, Search, rebuild_slots

log = logging.getLogger(__name__)

IndexApply = Callable[[bytearray, bytes, int, int, int, int], tuple[bytes, int, int, int]]
"""Kernel's index_apply: (slots, pending, position, count, capacity, begin ms) -> (entries, position, count, new slots)."""

FEW_ENTRIES = 2048  # up to here, writing the changed slots is cheaper than writing the table
FLUSH_EVERY_MS = 30_000  # store time between two writes of the whole slot table
_CHUNK_BYTES = 64 << 10
_PAGE_BYTES = 4096
_ZEROS = bytes(1 << 20)


class OnDisk(NamedTuple):
    """The state of slots and counters on disk. A reader beside the writer compares it before and after: if it is unchanged, nothing
    was written in between."""

    flushed: int  # they cover the entries below this number; 0: being written, or unknown
    write: int  # how often writing them has begun


class GrowingIndexFile:
    __slots__ = (
        "_all_slots",
        "_files",
        "_link",
        "_table",
        "_unsynced",
        "_view",
        "flushed",
        "flushed_ms",
        "header",
        "on_disk",
    )

    def __init__(
        self, view: IndexView, header: IndexHeader, flushed: int, files: Files, link: IndexLink = index_link
    ) -> None:
        self._view = view
        self._link = link
        self._files = files
        self.header = header  # as of the last entry; replaced, never changed: queries read it
        self.flushed = flushed  # slots and counters on disk cover the entries below this number; 0: unknown
        self.flushed_ms = header.end_ms if flushed > FIRST else 0
        self.on_disk = OnDisk(flushed, 0)  # replaced, never changed: checks read it
        self._table: bytearray | None = None  # read or computed when first needed
        self._all_slots = not flushed  # the next flush must write every slot, also those that became empty
        self._unsynced = True

    @classmethod
    def create(
        cls,
        path: Path,
        slots: int,
        entries_max: int,
        files: Files,
        before: IndexHeader | None,
        link: IndexLink = index_link,
    ) -> Self:
        """An empty file, of full size but without disk space; `before` is the header of the full file it follows."""
        assert not files.exists(path), f"{path} exists already"
        fd = files.open(path, create=True)
        try:
            files.truncate(fd, index_file_bytes(slots, entries_max))
        except OSError:
            files.close(fd)
            files.remove(path)
            raise
        header = IndexHeader()
        if before is not None:
            header = IndexHeader(before.end_ms, before.end_ms, before.end_offset, before.end_offset)
        return cls(IndexView(path, fd, slots, entries_max, files), header, FIRST, files, link)

    @classmethod
    def resume(
        cls, path: Path, slots: int, entries_max: int, files: Files, trusted_to: int, link: IndexLink = index_link
    ) -> Self | None:
        """Open an existing file, ours or Java's, without its entries for records at or above `trusted_to`.

        None if nothing of it can be used. Quick: slots are not read."""
        view = IndexView(path, files.open(path), slots, entries_max, files)
        try:
            if files.size(view.fd) > 0:  # 0: a crash between creating and extending the file
                view.check_size()
                header, count = view.header(), view.end(trusted_to)
                # Without a begin time the store times of its records are unknown: it has to be rebuilt.
                if header.begin_ms > 0 and count > FIRST:
                    return cls._resume(view, header, count, files, link)
        except BaseException:
            files.close(view.fd)
            raise
        files.close(view.fd)
        return None

    @classmethod
    def _resume(cls, view: IndexView, header: IndexHeader, count: int, files: Files, link: IndexLink) -> Self:
        last = view.entry(count - 1)
        assert last is not None
        _key, last_offset, seconds, _previous = last
        complete = (header.count, header.end_offset) == (count, last_offset) and view.entry(count) is None
        header.count = count
        if header.end_offset != last_offset:
            header.end_offset = last_offset
            header.end_ms = view.store_ms(count - 1, seconds, header.begin_ms) + 999  # at most a second too late
        file = cls(view, header, count if complete else 0, files, link)
        if not complete:
            file._wipe(count)
        return file

    def _wipe(self, count: int) -> None:
        """Zeros from entry `count` on: old entries there would look valid again once new ones reach them."""
        view = self._view
        at, end = entry_position(view.slots, count), index_file_bytes(view.slots, view.entries_max)
        while (at := self._next_data(at, end)) < end:
            data = self._files.pread(view.fd, min(len(_ZEROS), end - at), at)
            if not data:
                break
            if data != _ZEROS[: len(data)]:
                self._files.pwrite(view.fd, _ZEROS[: len(data)], at)
            at += len(data)

    def _next_data(self, at: int, end: int) -> int:
        """Where the next allocated bytes are; holes of a sparse file are skipped."""
        try:
            found = self._files.next_data(self._view.fd, at)
        except OSError:
            return at  # this file system cannot tell
        return end if found is None else min(found, end)

    # -- growing -----------------------------------------------------------------------------------------------------------

    @property
    def path(self) -> Path:
        return self._view.path

    @property
    def full(self) -> bool:
        return self.header.count >= self._view.entries_max

    @property
    def behind(self) -> bool:
        """Whether slots and counters on disk lack entries."""
        return self.flushed != self.header.count

    def append(self, pending: bytes, position: int, index_apply: IndexApply) -> int:
        """Add `pending` from `position` on until its end or until the file is full: the new position.

        After an error the file is as before; bytes behind the last entry will be overwritten."""
        view, table = self._view, self._load_table()
        first, entries = self.header.count, b""
        header = self.header.copy()
        try:
            if first == FIRST:
                # As in Java, its seconds count from the end of the file before, all others' from its own time.
                one = pending[: position + INDEX_PENDING.size]
                entries, position, header.count, header.used_slots = index_apply(
                    table, one, position, FIRST, view.entries_max, header.begin_ms
                )
                _key, header.begin_offset, header.begin_ms = _pending_before(pending, position)
                # Entries are meaningless without a begin time, so it is written first.
                begun = IndexHeader(header.begin_ms, header.begin_ms, header.begin_offset, header.begin_offset)
                self._begin_write()
                self._files.pwrite(view.fd, begun.encode(), 0)
                self.on_disk = self.on_disk._replace(flushed=self.flushed)
            more, position, header.count, used = index_apply(
                table, pending, position, header.count, view.entries_max, header.begin_ms
            )
            self._unsynced = True
            self._files.pwrite(view.fd, entries + more, entry_position(view.slots, first))
        except BaseException:
            self._table, self.flushed, self._all_slots = None, 0, True  # it has entries that are not in the file
            self._begin_write()
            raise
        header.used_slots += used
        _key, header.end_offset, header.end_ms = _pending_before(pending, position)
        self.header = header
        return position

    def _load_table(self) -> bytearray:
        if self._table is not None:
            return self._table
        view = self._view
        if not self.behind:
            # Empty stretches are not copied, so that their memory is never allocated.
            table = bytearray(view.slots * INDEX_SLOT_BYTES)
            for at in range(0, len(table), _CHUNK_BYTES):
                data = self._files.pread(view.fd, min(_CHUNK_BYTES, len(table) - at), slot_position(0) + at)
                if data != _ZEROS[: len(data)]:
                    table[at : at + len(data)] = data
        else:
            header = self.header.copy()
            table, header.used_slots, stop = rebuild_slots(view, header.count, self._link)
            if stop != header.count:
                log.warning(
                    "%s: entry %d is damaged; %d entries from there on are dropped. To find all keys again, stop the broker, "
                    "remove the index folder and start it",
                    *(view.path, stop, header.count - stop),
                )
                header.count = stop
                self._wipe(stop)
            self.header = header
        self._table = table
        return table

    # -- to disk -----------------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Write slots and counters."""
        if self.behind:
            self._write_slots()
            self._write_header()

    def sync(self) -> None:
        """Make all entries durable; also slots and counters, if that is cheap or overdue."""
        if not self._unsynced:
            return
        behind = self.header.count - self.flushed
        due = behind and (behind <= FEW_ENTRIES or self.header.end_ms - self.flushed_ms >= FLUSH_EVERY_MS)
        if due:
            self._write_slots()
        self._files.sync(self._view.fd)
        if due:
            self._write_header()  # the header makes the slots valid, so they go first
            self._files.sync(self._view.fd)
        self._unsynced = False

    def _begin_write(self) -> None:
        """Until the counters are written, slots and counters on disk may be inconsistent."""
        self.on_disk = OnDisk(0, self.on_disk.write + 1)

    def _write_slots(self) -> None:
        table, view = memoryview(self._load_table()), self._view
        self._begin_write()
        self._unsynced = True
        if not self._all_slots and self.header.count - self.flushed <= FEW_ENTRIES:
            pages: set[int] = set()
            for _number, data in view.chunks(self.flushed, self.header.count):
                pages |= {
                    row[0] % view.slots * INDEX_SLOT_BYTES // _PAGE_BYTES for row in INDEX_ENTRY.iter_unpack(data)
                }
            for page in sorted(pages):
                at = page * _PAGE_BYTES
                self._files.pwrite(view.fd, table[at : at + _PAGE_BYTES], slot_position(0) + at)
            return
        for at in range(0, len(table), _CHUNK_BYTES):
            part = bytes(table[at : at + _CHUNK_BYTES])
            if self._all_slots or part != _ZEROS[: len(part)]:
                self._files.pwrite(view.fd, part, slot_position(0) + at)

    def _write_header(self) -> None:
        self._files.pwrite(self._view.fd, self.header.encode(), 0)
        self.flushed, self.flushed_ms = self.header.count, self.header.end_ms
        self.on_disk = self.on_disk._replace(flushed=self.flushed)
        self._all_slots = False
        self._unsynced = True

    def slot_in_memory(self, slot: int) -> int | None:
        """The number of the newest entry of a slot; None if the table is not in memory."""
        if self._table is None:
            return None
        at = slot * INDEX_SLOT_BYTES
        return int.from_bytes(self._table[at : at + INDEX_SLOT_BYTES], "big", signed=True)

    def slot_was_repaired(self, slot: int, number: int) -> None:
        """A slot was repaired on disk: update the table, which may have been read before."""
        if self._table is not None:
            at = slot * INDEX_SLOT_BYTES
            self._table[at : at + INDEX_SLOT_BYTES] = number.to_bytes(INDEX_SLOT_BYTES, "big", signed=True)

    def read_begin_again(self) -> None:
        """The begin fields of the header were repaired on disk: read them again."""
        header, disk = self.header.copy(), self._view.header()
        header.begin_ms, header.begin_offset = disk.begin_ms, disk.begin_offset
        self.header = header

    def close(self) -> None:
        """Close the file. Slots and counters must have been flushed."""
        self._files.close(self._view.fd)

    # -- reading -----------------------------------------------------------------------------------------------------------

    def search(self, search: Search, view: IndexView) -> None:
        """Search `view`, the same file opened again; may run beside `append` and `flush` on another thread."""
        # In this order: what is flushed is counted. The table may be ahead of both.
        flushed, header, table = max(self.flushed, FIRST), self.header, self._table
        if table is not None:
            at = search.key % view.slots * INDEX_SLOT_BYTES
            number = int.from_bytes(table[at : at + INDEX_SLOT_BYTES], "big", signed=True)
            if number < header.count:
                search.walk(view, header.begin_ms, number, header.count)
                return
            # `append` is running, and the entry may not be in the file yet.
            # Entries that the slots on disk lack are scanned one by one; after a crash that is all of them, until
            # the table is needed. If a flush adds some meanwhile, they are skipped.
        search.scan(view, header.begin_ms, range(max(flushed, header.count - SCAN_MAX), header.count))
        if flushed > FIRST:
            search.walk(view, header.begin_ms, view.slot(search.key), view.entries_max, below=flushed)


def _pending_before(pending: bytes, position: int) -> tuple[int, int, int]:
    """(key hash, log offset, store ms) of the item that ends at `position`."""
    key, log_offset, store_ms = INDEX_PENDING.unpack_from(pending, position - INDEX_PENDING.size)
    return key, log_offset, store_ms
