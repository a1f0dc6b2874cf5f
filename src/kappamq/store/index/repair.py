"""Confirm a repair of an index file before it is written. For the one thread that writes these files.

Slots and header change while a broker runs, and a check beside it may have held old ones against new: what it calls right is
derived once more here, where nobody writes meanwhile. Entries are never changed, so those need no second look.
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
        """Whether what the fix calls right follows from the entries as they are now; `fd` is its file."""
        view = IndexView(fix.path, fd, self._index.slots, self._index.entries_max, self._files)
        if fix.position < INDEX_HEADER_BYTES:
            return self._header_field(view, fix.position) == int.from_bytes(fix.right, "big", signed=True)
        if fix.position < slot_position(view.slots):
            return self._is_right_slot(view, fix)
        return True

    def was_repaired(self, fix: BytesFix) -> None:
        """What memory knows of a file may be as old as the damage."""
        if fix.position < INDEX_HEADER_BYTES:
            self._index.read_header_again(fix.path)
        elif fix.position < slot_position(self._index.slots):
            growing = self._index.growing(fix.path)
            if growing is not None:
                growing.slot_was_repaired(_slot(fix), *INDEX_SLOT.unpack(fix.right))

    def _header_field(self, view: IndexView, position: int) -> int | None:
        """What the header should say at `position`; None if that is not known."""
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
                return False  # the slots on disk are not believed by anybody, and will be written
            in_memory = growing.slot_in_memory(slot)
            if in_memory == right:
                return True
            if in_memory not in (None, wrong):
                return False  # the slot has got an entry since, and will be written
        # What a check calls right was the newest entry of the slot at some time. Only a newer one of the same slot goes before it.
        return (not right or _leads(view, slot, right)) and not (wrong > right and _leads(view, slot, wrong))


def _slot(fix: BytesFix) -> int:
    return (fix.position - slot_position(0)) // INDEX_SLOT_BYTES


def _leads(view: IndexView, slot: int, number: int) -> bool:
    """Whether an entry of the slot has this number."""
    entry = view.entry(number)
    return entry is not None and entry[0] % view.slots == slot
