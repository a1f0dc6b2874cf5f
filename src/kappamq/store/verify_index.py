"""Hold the key index against the log: its entries lie in log order, so both are read once, side by side."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator
from pathlib import Path

from kappamq.errors import StoreError
from kappamq.protocol.entries import INDEX_ENTRY, INDEX_SLOT_BYTES, slot_position
from kappamq.store.files import Files
from kappamq.store.index_file import list_index_files
from kappamq.store.index_view import FIRST, IndexView
from kappamq.store.verify_report import Kind, Report

_FOREVER = 1 << 62


class IndexCheck:
    """`expect` is called for each record in log order, `finish` after the last.

    Below `indexed_to` a record's keys must be there; behind it they may still be on their way."""

    def __init__(
        self, folder: Path, slots: int, entries_max: int, indexed_to: int, report: Report, files: Files
    ) -> None:
        self._folder = folder
        self._slots = slots
        self._entries_max = entries_max
        self._indexed_to = indexed_to
        self._report = report
        self._files = files
        self._rows = self._read()
        self._row = next(self._rows, None)
        self._exists = self._row is not None  # without any entry nothing was promised

    def expect(self, offset: int, hashes: list[int], optional: bool = False) -> None:
        """The record at `offset` is to be found under these hashes."""
        found: list[int] = []
        while self._row is not None and self._row[1] <= offset:
            if self._row[1] == offset:
                found.append(self._row[0])
            else:
                self._leads_nowhere()
            self._row = next(self._rows, None)
        if found == hashes or (optional and not found) or not self._exists:
            return
        if not found and self._row is None and offset >= self._indexed_to:
            self._report.unindexed += 1
            return
        # After a crash Java enters a record's keys once more, which does no harm: what counts is which there are.
        for key in sorted(set(hashes) - set(found)):
            self._report.add(Kind.INDEX, "index", offset, f"the record's key with hash {key} is not in the index")
        for key in sorted(set(found) - set(hashes)):
            self._report.add(Kind.INDEX, "index", offset, f"the index has a key with hash {key}, the record has not")

    def finish(self) -> None:
        while self._row is not None:
            self._leads_nowhere()
            self._row = next(self._rows, None)

    def _leads_nowhere(self) -> None:
        assert self._row is not None
        key, log_offset, path = self._row
        if log_offset >= self._report.log_min:
            self._report.add(Kind.INDEX, path.name, log_offset, f"key hash {key} leads to no good record")

    def _read(self) -> Iterator[tuple[int, int, Path]]:
        """(key hash, log offset, file) of every entry; order, links and slots are checked on the way."""
        before = 0
        for path in list_index_files(self._folder, self._files):
            try:
                view = IndexView(
                    path, self._files.open(path, writable=False), self._slots, self._entries_max, self._files
                )
            except FileNotFoundError:
                continue  # expired meanwhile
            try:
                if self._files.size(view.fd) == 0:
                    continue  # just being made
                view.check_size()
                self._report.index_files += 1
                for row in self._read_file(view):
                    if row[1] < before:
                        self._report.add(Kind.INDEX, path.name, row[1], f"comes behind an entry for {before}")
                    before = max(before, row[1])
                    yield row
            except StoreError as error:
                self._report.add(Kind.INDEX, path.name, 0, str(error))
            finally:
                self._files.close(view.fd)

    def _read_file(self, view: IndexView) -> Iterator[tuple[int, int, Path]]:
        header, stop = view.header(), view.end(_FOREVER)
        newest = array("i", bytes(view.slots * INDEX_SLOT_BYTES))
        for first, data in view.chunks(FIRST, stop):
            for number, (key, log_offset, _seconds, previous) in enumerate(INDEX_ENTRY.iter_unpack(data), first):
                self._report.index_entries += 1
                slot = key % view.slots
                if previous != newest[slot]:
                    self._report.add(
                        Kind.INDEX,
                        view.path.name,
                        log_offset,
                        f"entry {number} links to entry {previous}, but before it in its slot comes {newest[slot]}",
                    )
                newest[slot] = number
                yield key, log_offset, view.path
        if header.count == stop:
            self._check_slots(view, newest, header.end_offset)
        # Else slots and counters on disk are older than the entries, and a broker computes them anew.

    def _check_slots(self, view: IndexView, newest: array[int], end_offset: int) -> None:
        table = array("i", self._files.pread(view.fd, view.slots * INDEX_SLOT_BYTES, slot_position(0)))
        if sys.byteorder == "little":
            table.byteswap()
        if table == newest:
            return
        for slot, (found, expected) in enumerate(zip(table, newest, strict=True)):
            if found != expected:
                self._report.add(
                    Kind.INDEX,
                    view.path.name,
                    end_offset,
                    f"slot {slot} leads to entry {found}, its newest is {expected}",
                )
