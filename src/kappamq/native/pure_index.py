"""The key index, in Python: from what dispatch left to the entries of an index file. The meaning of index.c."""

from __future__ import annotations

import struct
from typing import Final

from kappamq.native.layout import INDEX_PENDING

ENTRY: Final = struct.Struct(">iqii")
"""Entry of an index file: key hash, log offset, seconds since the file's first message, number of the slot's previous entry."""
_SLOT: Final = struct.Struct(">i")
_INT_MAX: Final = (1 << 31) - 1


def index_apply(
    slots: bytearray | memoryview, pending: bytes, position: int, count: int, capacity: int, begin_ms: int
) -> tuple[bytes, int, int, int]:
    """Enter `pending` (Kernel.take_index) from byte `position` on into an index file, until it is used up or the file is full.

    `slots` is the file's slot table, changed in place; `count` the number of the next entry (the first is 1); `begin_ms` the
    file's begin time, 0 if it has none yet: the first entry then sets it. Returns (entries to append, new position, new
    count, slots used for the first time)."""
    if not slots or len(slots) % 4 or len(pending) % INDEX_PENDING.size:
        raise ValueError(f"{len(slots)} bytes of slots or {len(pending)} bytes of pending entries cannot be")
    if (
        not 0 <= position <= len(pending)
        or position % INDEX_PENDING.size
        or not 1 <= count <= _INT_MAX
        or capacity > _INT_MAX
    ):
        raise ValueError(f"{position=} {count=} {capacity=}: out of range")
    slot_count = len(slots) // 4
    entries = bytearray()
    fresh = 0
    while position < len(pending) and count < capacity:
        key, log_offset, store_ms = INDEX_PENDING.unpack_from(pending, position)
        slot = key % slot_count * 4
        (previous,) = _SLOT.unpack_from(slots, slot)
        if previous <= 0 or previous > count:
            previous = 0
            fresh += 1
        if begin_ms <= 0:
            begin_ms = store_ms
        seconds = min(max(store_ms - begin_ms, 0) // 1000, _INT_MAX) if begin_ms > 0 else 0
        entries += ENTRY.pack(key, log_offset, seconds, previous)
        _SLOT.pack_into(slots, slot, count)
        count += 1
        position += INDEX_PENDING.size
    return bytes(entries), position, count, fresh
