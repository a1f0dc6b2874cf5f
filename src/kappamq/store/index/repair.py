"""Confirms a repair of an index file before it is written. For the one thread that writes these files.

Slots and header change while a broker runs, so a concurrent check may have compared old ones with new ones. The expected value is
therefore computed again here, where nothing else writes. Entries never change and need no second check.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kappamq.protocol.records.entries import INDEX_HEADER_BYTES, INDEX_SLOT, INDEX_SLOT_BYTES, slot_position
from kappamq.store.files import Files
from kappamq.store.index.index_file import IndexFiles
from kappamq.store.index.view import FIRST, IndexView
from kappamq.store.verify.report import BytesFix

_FOREVER = 1 << 62
_BEGIN_MS, _END_MS, _BEGIN_OFFSET, _END_OFFSET, _USED_SLOTS, _COUNT = 0, 8, 16, 24, 32, 36  # positions in the header
_OF_FIRST: Final = (_BEGIN_MS, _BEGIN_OFFSET)


class IndexRepair:
    def __init__(self, index: IndexFiles, files: Files, stored_ms: Callable[[int], int | None]) -> None:
        """`stored_ms`: log offset of a record -> when it was stored, None if no good record lies there."""
        self._index = index
        self._files = files
        self._stored_ms = stored_ms

    def is_right(self, fix: BytesFix, fd: int) -> bool:
        """Whether the fix is right for the current entries; `fd` is its file."""
        view = IndexView(fix.path, fd, self._index.slots, self._index.entries_max, self._files)
        if fix.position < INDEX_HEADER_BYTES:
            return self._header_field(view, fix.position) == int.from_bytes(fix.right, "big", signed=True)
        if fix.position < slot_position(view.slots):
            return self._is_right_slot(view, fix)
        return True

    def was_repaired(self, fix: BytesFix) -> None:
        """Update what is in memory, which may have been read before the repair."""
        if fix.position < INDEX_HEADER_BYTES:
            self._index.read_header_again(fix.path)
        elif fix.position < slot_position(self._index.slots):
            growing = self._index.growing(fix.path)
            if growing is not None:
                growing.slot_was_repaired(_slot(fix), *INDEX_SLOT.unpack(fix.right))

    def _header_field(self, view: IndexView, position: int) -> int | None:
        """The correct header field at `position`; None if unknown."""
        growing = self._index.on_disk(view.path)
        count = view.end(_FOREVER) if growing is None else growing.flushed
        if not count and position not in _OF_FIRST:
            return None
        if position == _COUNT:
            return count
        if position == _USED_SLOTS:
            return view.used_slots()
        entry = view.entry(FIRST if position in _OF_FIRST else count - 1)
        if entry is None:
            return None
        return entry[1] if position in (_BEGIN_OFFSET, _END_OFFSET) else self._stored_ms(entry[1])

    def _is_right_slot(self, view: IndexView, fix: BytesFix) -> bool:
        slot, (wrong,), (right,) = _slot(fix), INDEX_SLOT.unpack(fix.wrong), INDEX_SLOT.unpack(fix.right)
        growing = self._index.growing(view.path)
        if growing is not None:
            if not growing.on_disk.flushed:
                return False  # the slots on disk are not in use and will be written
            in_memory = growing.slot_in_memory(slot)
            if in_memory == right:
                return True
            if in_memory not in (None, wrong):
                return False  # the slot got a new entry and will be written
        # The value in the fix was the newest entry of the slot at some time; only a newer entry of the same slot supersedes it.
        return (not right or _leads(view, slot, right)) and not (wrong > right and _leads(view, slot, wrong))


def _slot(fix: BytesFix) -> int:
    return (fix.position - slot_position(0)) // INDEX_SLOT_BYTES


def _leads(view: IndexView, slot: int, number: int) -> bool:
    """Whether the entry with this number belongs to the slot."""
    entry = view.entry(number)
    return entry is not None and entry[0] % view.slots == slot
