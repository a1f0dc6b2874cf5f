"""The key index, in Python: from the output of dispatch to entries of an index file, and from entries to slots. Defines index.c."""

from __future__ import annotations

import struct
import sys
from operator import lt
from typing import Final

from kappamq.native.layout import INDEX_PENDING

ENTRY: Final = struct.Struct(">iqii")
"""Entry of an index file: key hash, log offset, seconds since the file's first message, number of the slot's previous entry."""
_SLOT: Final = struct.Struct(">i")
_INT_MAX: Final = (1 << 31) - 1
_CHUNK_ENTRIES: Final = 8192
# Decoding column by column takes seconds for twenty million entries.
_KEYS: Final = struct.Struct(">" + "i16x" * _CHUNK_ENTRIES)
_OFFSETS: Final = struct.Struct(">" + "4xq8x" * _CHUNK_ENTRIES)
_PREVIOUS: Final = struct.Struct(">" + "16xi" * _CHUNK_ENTRIES)


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


def index_link(slots: bytearray | memoryview, entries: bytes, number: int, last: int) -> tuple[int, int, int]:
    """Enter `entries` of an index file, the first of which has this `number`, into its slot table; in place.

    Stops at the first impossible entry: zeros, out of log order (`last` is the log offset of the entry before), or
    linked to one that is not older. Returns (number behind the last good one, its log offset, slots that were empty)."""
    count, rest = divmod(len(entries), ENTRY.size)
    if not slots or len(slots) % 4 or rest:
        raise ValueError(f"{len(slots)} bytes of slots or {len(entries)} bytes of entries cannot be")
    if not 1 <= number <= _INT_MAX - count:
        raise ValueError(f"{number=}: out of range")
    if not count:
        return number, last, 0
    keys, offsets, previous = _columns(entries)
    # All at once: sorting ordered offsets looks at each once. If the first offset is above zero, no entry is just zeros.
    good = offsets[0] >= max(last, 1) and min(keys) >= 0 and min(previous) >= 0
    if not good or sorted(offsets) != list(offsets) or not all(map(lt, previous, range(number, number + count))):
        count = _good_entries(entries, number, last)
        keys = keys[:count]
    table = memoryview(slots).cast("i")
    slot_count, fresh = len(table), 0
    numbers: tuple[int, ...] | range = range(number, number + count)
    if sys.byteorder == "little":
        numbers = struct.unpack(f"<{count}i", struct.pack(f">{count}i", *numbers))
    for key, value in zip(keys, numbers, strict=True):
        slot = key % slot_count
        if not table[slot]:
            fresh += 1
        table[slot] = value  # later entries of a slot overwrite earlier ones
    return number + count, offsets[count - 1] if count else last, fresh


def _columns(data: bytes) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Key hashes, log offsets and previous numbers of the entries in `data`."""
    if len(data) == _CHUNK_ENTRIES * ENTRY.size:
        return _KEYS.unpack(data), _OFFSETS.unpack(data), _PREVIOUS.unpack(data)
    keys, offsets, _seconds, previous = zip(*ENTRY.iter_unpack(data), strict=True)
    return keys, offsets, previous


def _good_entries(data: bytes, first: int, last: int) -> int:
    """How many entries at the beginning of `data` are possible: in log order, linked to older ones, and not just zeros."""
    for number, (key, log_offset, _seconds, previous) in enumerate(ENTRY.iter_unpack(data)):
        if log_offset < last or key < 0 or not 0 <= previous < first + number or not (log_offset or key):
            return number
        last = log_offset
    return len(data) // ENTRY.size
