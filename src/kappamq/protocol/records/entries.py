"""Fixed-size entries of the files derived from the log: consume queues and key index."""

from __future__ import annotations

import struct
from typing import Final

from kappamq.protocol.records.tags import java_hash

QUEUE_ENTRY: Final = struct.Struct(">qiq")
"""Log offset, record bytes, tag hash; entry n of a queue is at n * 20."""
QUEUE_ENTRY_BYTES: Final = 20
assert QUEUE_ENTRY.size == QUEUE_ENTRY_BYTES

PRE_BLANK: Final = QUEUE_ENTRY.pack(0, 0x7FFFFFFF, 0)
"""Filler: occupies a queue's file below the first entry when the queue does not start at 0."""

INDEX_HEADER: Final = struct.Struct(">qqqqii")
"""Begin and end store time, begin and end log offset, used slots, entries + 1 (entry 0 is never used)."""
INDEX_SLOT: Final = struct.Struct(">i")
"""Number of the newest entry of the slot, 0 for none."""
INDEX_ENTRY: Final = struct.Struct(">iqii")
"""Key hash, log offset, seconds since the file's begin time, number of the previous entry in the slot."""
INDEX_HEADER_BYTES: Final = 40
INDEX_SLOT_BYTES: Final = 4
INDEX_ENTRY_BYTES: Final = 20
assert (INDEX_HEADER.size, INDEX_SLOT.size, INDEX_ENTRY.size) == (40, 4, 20)


def key_hash(topic: str, key: str) -> int:
    """Return the hash under which a key of a topic is indexed; never negative."""
    value = abs(java_hash(f"{topic}#{key}"))
    return 0 if value == 1 << 31 else value


def index_file_bytes(slots: int, entries: int) -> int:
    return INDEX_HEADER_BYTES + slots * INDEX_SLOT_BYTES + entries * INDEX_ENTRY_BYTES


def slot_position(slot: int) -> int:
    return INDEX_HEADER_BYTES + slot * INDEX_SLOT_BYTES


def entry_position(slots: int, number: int) -> int:
    return INDEX_HEADER_BYTES + slots * INDEX_SLOT_BYTES + number * INDEX_ENTRY_BYTES
