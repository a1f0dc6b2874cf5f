"""Definitions that both kernels share: record fields, verdicts, limits, the format of results. kernel.h repeats the numbers."""

from __future__ import annotations

import struct
from typing import Any, Final, NamedTuple

from kappamq.native import property_names

MAGIC_V1: Final = 0xDAA320A7 - (1 << 32)
MAGIC_V2: Final = 0xDAA320AB - (1 << 32)
MAGIC_BLANK: Final = 0xCBD43194 - (1 << 32)
BLANK_BYTES: Final = 8
"""A log file ends with (bytes left, blank magic); a record must leave room for it."""

# Fixed front of a record: size, magic, body CRC, queue id, flag, queue offset, log offset, sys flag, born ms, born host,
# store ms, store host, reconsume times, prepared offset, body length. Hosts are 8 bytes (IPv4) or 20 (IPv6), port included.
HEAD: Final = {
    (8, 8): struct.Struct(">iiiiiqqiq8sq8siqi"),
    (20, 8): struct.Struct(">iiiiiqqiq20sq8siqi"),
    (8, 20): struct.Struct(">iiiiiqqiq8sq20siqi"),
    (20, 20): struct.Struct(">iiiiiqqiq20sq20siqi"),
}
assert HEAD[8, 8].size == 88

ENTRY: Final = struct.Struct(">qiq")
"""Consume-queue entry: log offset, record bytes, tag code. Entry n of a queue lies at n * 20."""
INDEX_PENDING: Final = struct.Struct(">iqq")
"""Output of dispatch for the key index (its byte order does not matter): key hash, log offset, store ms."""

TAIL_CRC_NAME: Final = f"{property_names.TAIL_CRC}\x01".encode()
TAIL_CRC_BYTES: Final = 20
BATCH_NAME: Final = f"{property_names.BATCH_BYTES}\x01".encode()
BATCH_PROPERTY_BYTES: Final = 20
"""First member of a batch: how many log bytes the whole batch occupies, ten decimal digits."""
PROPERTIES_BYTES_MAX: Final = 32767
TOPIC_BYTES_MAX: Final = 127
"""Longer topics (retry topics) need record version 2."""
TOPIC_BYTES_LIMIT: Final = 32767
QUEUE_OFFSET_MAX: Final = 1 << 58
"""Entry n is at n * 20: beyond this, no file offset could address it, so a record that claims more is damaged."""
BATCH_MEMBERS_MAX: Final = 8192
"""A larger batch is left to Python: its answer lists an id per member."""
BATCH_PAIRS_MAX: Final = 16
"""A batch with more properties of its own is left to Python: each member is compared with each of them."""

WAITING_PAIRS_MAX: Final = 32
"""A send that waits and has more properties is left to Python: each name is compared with each."""
WAITING_BYTES_MAX: Final = 8191
"""The same for longer properties: those that are added must fit in, too."""
HALVES_MAX: Final = 65536
"""If more transactions are open, the others are left to Python."""

# Topics of messages that consumers must not see yet.
SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
HALF_OP_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"

WARM_BLOCK_BYTES: Final = 4 << 20
WARM_BLOCKS: Final = 256
"""Old parts of the log that are known to be in memory: at most this many blocks of this size, one per remainder."""
SYS_COMPRESSED: Final = 0x1
SYS_TRANSACTION: Final = 0xC
SYS_PREPARED: Final = 0x4
SYS_COMMIT: Final = 0x8
SYS_BORN_V6: Final = 0x10
SYS_STORE_V6: Final = 0x20
SYS_INNER_BATCH: Final = 0x80
SYS_PLAIN: Final = 0x701
"""Compression bits: the only ones a plain send may carry."""

# What a topic allows the kernel to do without Python.
TOPIC_SEND: Final = 1
TOPIC_PULL: Final = 2

# Verdict of a burst.
DONE: Final = 0
"""Every complete frame was processed."""
LEFT: Final = 1
"""The frame at `consumed` must be processed by Python."""
FULL: Final = 2
"""The append buffer or the log file has no room for the frame at `consumed`: write, roll if necessary, call again."""
BAD: Final = 3
"""The bytes at `consumed` are not a frame: close the connection."""
PAUSE: Final = 4
"""Enough replies were collected: send them, and call again when the peer has received some."""
REPLIES_BYTES_MAX: Final = 1 << 20

# Verdict of a pull.
FOUND: Final = 0
NO_MATCH: Final = 1
EMPTY: Final = 2
"""The offset is the queue's end: no message yet."""
TOO_SMALL: Final = 3
TOO_LARGE: Final = 4
NO_MESSAGES: Final = 5
"""The queue has never had a message."""
NEED_ENTRIES: Final = 6
"""The entries are on disk only: lend them and ask again."""
COLD: Final = 7
"""The records may not be in memory: warm the span (payload) and call again with warm=True."""
GONE: Final = 8
"""The entries exist, but their records are deleted."""
BROKEN: Final = 9
"""The entry (its number comes first in the payload) does not lead to this message of this queue: have it repaired, or skip it."""
NOT_FOR_KERNEL: Final = -1

PULL_COMMIT: Final = 1
PULL_SUSPEND: Final = 2
PULL_SUBSCRIPTION: Final = 4
PULL_LITE: Final = 16

FILLER_BYTES: Final = 0x7FFFFFFF
"""Record size in filler entries: before a queue's first message, or where the log is damaged."""
GAP_ENTRIES_MAX: Final = 65_536
"""A longer jump in a queue's numbering means another log, not damage: the queue begins again behind it."""

SCAN_ENTRIES_MAX: Final = 800
"""A pull with a selective filter examines this many entries, then answers `no match, continue from here`."""

TAIL_KEEP_BYTES: Final = 1024 * 20
"""If memory for entries is short, a long tail is first cut to its newest 1024 entries: readers at the end stay fast."""
LENT_BYTES_MAX: Final = 16 << 20
"""Limit for entries read back from disk, over all queues; the oldest are dropped first."""

# Why a scan over log bytes stopped.
SCAN_MORE: Final = 0
"""The bytes ended within a record (or batch): pass more."""
SCAN_BLANK: Final = 1
"""End mark of a file."""
SCAN_EMPTY: Final = 2
"""Zeros: nothing was ever written here."""
SCAN_DAMAGED: Final = 3
"""Bytes that are not a good record."""

# Columns: where records are, and which columns can be made from them.
PLACE: Final = struct.Struct("=16q")
"""One record of a buffer: position, bytes, queue id, queue offset, log offset, system flag, born ms, store ms, then position and
length of body, topic and properties, the position of the store host, and 1 if a checksum fails. Native byte order."""
PLACE_BYTES: Final = PLACE.size
COLUMN_TOPIC: Final = 1
COLUMN_BODY: Final = 2
COLUMN_ID: Final = 4
COLUMN_KEYS: Final = 8
COLUMN_TAGS: Final = 16
COLUMN_PROPERTIES: Final = 32

VALUES_MAX: Final = 8
"""How many properties of each record can be requested at once."""
PropertyRow = tuple[int, int, int, tuple[str | None, ...] | tuple[bytes]]
"""Queue offset of a record, its begin and end, the values of the requested properties; or all its properties."""

Column = tuple[bytes | None, bytes, bytes]
"""Arrow's buffers of a text or binary column: validity bits (None: nothing is null), int32 offsets, data."""
MapColumn = tuple[bytes, bytes, bytes, bytes, bytes]
"""Arrow's buffers of a map column: int32 offsets, offsets and data of the names, offsets and data of the values."""

MapInput = tuple[bytes | None, bytes, Column, Column]
"""A map column as an argument: validity bits, int32 offsets, names, values."""


class BadRow(ValueError):
    """A row of a table that cannot become a message."""

    def __init__(self, row: int, why: str) -> None:
        super().__init__(f"row {row} cannot be a message: {why}")
        self.row = row
        self.why = why


PRIVATE_PROPERTIES: Final = frozenset(name.encode() for name in property_names.PRIVATE_NAMES)
"""Bookkeeping of the broker: not shown to readers."""

SPECIAL_PROPERTIES: Final = property_names.SPECIAL_NAMES
"""A message with one of these is not plain: the broker must act on it."""


class QueueState(NamedTuple):
    """The offsets of a queue; zeros if it is unknown."""

    first: int
    """The first message that can be read."""
    end: int
    """One past the last message that consumers may see."""
    next: int
    """The number of the next append: ahead of `end` while records wait to become visible."""
    stored: int
    """Entries below this are in the queue's files."""


class Misnumbered(NamedTuple):
    """A record that is not the next message of its queue."""

    at: int
    """Where it begins in the passed bytes."""
    topic: str
    queue_id: int
    number: int
    expected: int


class PullVerdict(NamedTuple):
    """The result of a pull."""

    verdict: int
    """FOUND, COLD, BROKEN, or why there are no records."""
    payload: Any
    """FOUND: the whole reply (of `fetch`: the records, concatenated). COLD: (first log byte, one past the last). Else: (next offset,
    first, end) of the queue."""


class HalfOpened(NamedTuple):
    """A half message was stored; this is the record that its producer sent, not a later copy."""

    log_offset: int
    queue_offset: int
    size: int
    group: str
    topic: str
    """The topic of the message that consumers will get."""


class HalfEnded(NamedTuple):
    """The kernel has ended a transaction that it had opened, as its producer requested."""

    log_offset: int
    """Of the half message."""
    decision: int
    """SYS_COMMIT, or SYS_TRANSACTION if it was rolled back."""
    op_offset: int
    """Of the record that settles it, in the op queue."""
    end: int
    """One past the last byte of the log that belongs to the end."""


class LevelParked(NamedTuple):
    """There are new messages of a delay level; level 0: new timers."""

    level: int


Note = HalfOpened | HalfEnded | LevelParked
"""What Python must be told about messages that wait."""

PullTuple = tuple[int, int, int, int, int, int, int, int, bool, Any]
"""verdict, row, queue id, offset, count, sys flag, suspend ms, opaque, binary, payload"""
BurstTuple = tuple[int, int, bytes, int, bytes, list[PullTuple], list[tuple[int, int, int]], list[Note]]
"""consumed, verdict, acks, end, replies, pulls, commits, notes: see pure.Kernel.burst"""


class SegmentFull(Exception):
    """The log file or the append buffer is full: write what is pending, open the next file if necessary, try again."""
