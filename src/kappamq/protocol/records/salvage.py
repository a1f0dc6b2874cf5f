"""Recovers intact records from a buffer of records stored back to back, some of them damaged.

A record contains its length twice: in its size field, and as the sum of the lengths of its parts. One damaged bit leaves at
least one of the two right. The record ends where exactly one of the two leads to an intact record, or to the end of the buffer.
If that is ambiguous, nothing after it is read: a body may contain bytes that look like a record.
"""

from __future__ import annotations

import struct
import zlib
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from kappamq.protocol.records import fields as records
from kappamq.protocol.records.fields import RecordError
from kappamq.protocol.records.view import RecordView, view_at, walk

_FINGERPRINT_BYTES: Final = 91
_LONG = struct.Struct(">q")
_INT = struct.Struct(">i")
_SHORT = struct.Struct(">h")


@dataclass(frozen=True, slots=True)
class Spoiled:
    """Damaged bytes in place of a record. The offsets are those in the damaged record: either may be wrong."""

    why: str
    queue_offset: int
    log_offset: int
    fingerprint: int  # identifies the same bytes when read again
    last: bool = False  # the start of the next record is unknown


def salvage(buffer: bytes | memoryview) -> Iterator[RecordView | Spoiled]:
    """Yield intact records and, in their places, damaged ones; nothing after one whose end is unknown."""
    rest = memoryview(buffer)
    while len(rest):
        for item in walk(rest):
            if isinstance(item, RecordView):
                yield item
                continue
            behind = _behind(rest, item.position)
            yield _spoiled(rest, item.position, item, last=behind is None)
            if behind is None:
                return
            rest = rest[behind:]
            break
        else:
            return


def out_of_order(numbers: Sequence[int]) -> set[int]:
    """Return the smallest set of positions to leave out so that the rest of `numbers` ascends."""
    tails: list[int] = []  # smallest number that ends an ascending run of each length
    tail_at: list[int] = []
    before: list[int] = []
    for position, number in enumerate(numbers):
        length = bisect_left(tails, number)
        before.append(tail_at[length - 1] if length else -1)
        tails[length : length + 1] = [number]
        tail_at[length : length + 1] = [position]
    outside = set(range(len(numbers)))
    at = tail_at[-1] if tail_at else -1
    while at >= 0:
        outside.discard(at)
        at = before[at]
    return outside


def _spoiled(view: memoryview, position: int, error: RecordError, *, last: bool) -> Spoiled:
    head = bytes(view[position : position + _FINGERPRINT_BYTES])
    padded = head.ljust(_FINGERPRINT_BYTES, b"\0")
    return Spoiled(
        error.fault.value,
        _LONG.unpack_from(padded, records.QUEUE_OFFSET_AT)[0],
        _LONG.unpack_from(padded, records.LOG_OFFSET_AT)[0],
        zlib.crc32(head),
        last,
    )


def _behind(view: memoryview, position: int) -> int | None:
    """Return where the damaged record at `position` ends, if that is unambiguous."""
    sizes = {_told_size(view, position), _inner_size(view, position, False), _inner_size(view, position, True)}
    ends = [position + size for size in sizes if size]
    fitting = [end for end in ends if end == len(view) or _is_good(view, end)]
    return fitting[0] if len(fitting) == 1 else None


def _told_size(view: memoryview, position: int) -> int:
    """Return the size field, 0 if it is impossible."""
    if len(view) - position < records.FIXED_BYTES:
        return 0
    (size,) = _INT.unpack_from(view, position)
    return int(size) if records.FIXED_BYTES <= size <= len(view) - position else 0


def _inner_size(view: memoryview, position: int, wide: bool) -> int:
    """Return the size derived from the lengths of the parts, `wide` if the topic's length has two bytes; 0 if impossible."""
    limit = len(view) - position
    if limit < records.FIXED_BYTES:
        return 0
    (sys_flag,) = _INT.unpack_from(view, position + records.SYS_FLAG_AT)
    hosts = (sys_flag & records.SYS_BORN_IPV6 and 1) + (sys_flag & records.SYS_STORE_IPV6 and 1)
    at = records.BODY_AT + hosts * records.IPV6_EXTRA_BYTES
    parts = ((_INT, 4), (_SHORT, 2) if wide else (None, 1), (_SHORT, 2))
    for layout, width in parts:
        if at + width > limit:
            return 0
        size = layout.unpack_from(view, position + at)[0] if layout else view[position + at]
        if not 0 <= size <= limit - at - width:
            return 0
        at += width + size
    return at


def _is_good(view: memoryview, position: int) -> bool:
    try:
        view_at(view, position)
    except RecordError:
        return False
    return True
