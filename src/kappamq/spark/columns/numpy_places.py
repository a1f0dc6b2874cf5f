"""Finds each record of a buffer with numpy: `pure_columns.locate` for machines without the compiled kernel.

Only the walk from size to size goes record by record. The fields of all records are then read at once, and all are checked at
once; the twin then explains why the first failing record is bad.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Final
from zlib import crc32

import numpy as np

from kappamq.native.layout import (
    MAGIC_V1,
    MAGIC_V2,
    QUEUE_OFFSET_MAX,
    SCAN_DAMAGED,
    SCAN_MORE,
    SYS_BORN_V6,
    SYS_STORE_V6,
    TAIL_CRC_BYTES,
    TAIL_CRC_NAME,
    TOPIC_BYTES_LIMIT,
)
from kappamq.native.pure_record import Buffer, intact, parse
from kappamq.spark.columns.numpy_spans import joined, numbers, windows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kappamq.spark.columns.numpy_spans import Bytes, Ints

_mark: Final = struct.Struct(">ii").unpack_from
_RECORD_BYTES_MIN: Final = 91
(
    _AT, _SIZE, _QUEUE_ID, _QUEUE_OFFSET, _LOG_OFFSET, _SYS_FLAG, _BORN_MS, _STORE_MS, _BODY_AT, _BODY_BYTES, _TOPIC_AT, _TOPIC_BYTES,
    _PROPERTIES_AT, _PROPERTIES_BYTES, _HOST_AT, _DAMAGED,
) = range(16)  # fmt: skip
"""The numbers of layout.PLACE."""
_POWERS: Final = 10 ** np.arange(10, dtype=np.uint32)
"""A tail CRC is written in ten digits, the last one first."""


def locate(buffer: Buffer, log_offset: int, check: bool, count_max: int) -> tuple[bytearray, int, int, int]:
    """Note the records that lie back to back in `buffer`, at most `count_max`: (places, how many, bytes, why it stopped).

    With a `log_offset` that is not negative each record must name its own offset. A record whose checksums fail is
    marked as damaged; one whose lengths make no sense ends the walk."""
    data = np.frombuffer(buffer, np.uint8)
    table = _fields(data, _walk(buffer, count_max), log_offset)
    if check:
        table[:, _DAMAGED] = _damaged(buffer, data, table)
    count = len(table)
    end = int(table[-1, _AT] + table[-1, _SIZE]) if count else 0
    why = SCAN_MORE
    if count < count_max and end < len(buffer):
        verdict = parse(buffer, end, len(buffer))
        why = verdict if isinstance(verdict, int) else SCAN_DAMAGED  # a good record, but from another place of the log
    return bytearray(table.data), count, end, why


def _walk(buffer: Buffer, count_max: int) -> Ints:
    """Return where records seem to begin: each at the end of the one before."""
    starts: list[int] = []
    at = 0
    last = len(buffer) - _RECORD_BYTES_MIN
    while at <= last and len(starts) < count_max:
        size, magic = _mark(buffer, at)
        if (magic != MAGIC_V1 and magic != MAGIC_V2) or size < _RECORD_BYTES_MIN:
            break
        starts.append(at)
        at += size
    if at > len(buffer):
        starts.pop()
    return np.array(starts, np.int64)


def _fields(data: Bytes, starts: Ints, log_offset: int) -> Ints:
    """Return the places of the records at `starts`, up to the first bad record.

    Some fields locate others: records with implausible fields are cut off before these are followed."""
    table = np.zeros((len(starts), 16), np.int64)
    table[:, _AT] = at = starts
    for field, kind, position in (
        (_SIZE, ">i4", 0), (_QUEUE_ID, ">i4", 12), (_QUEUE_OFFSET, ">i8", 20), (_LOG_OFFSET, ">i8", 28), (_SYS_FLAG, ">i4", 36),
        (_BORN_MS, ">i8", 40),
    ):  # fmt: skip
        table[:, field] = numbers(data, kind, at + position)
    born_bytes = np.where(table[:, _SYS_FLAG] & SYS_BORN_V6, 20, 8)
    table[:, _HOST_AT] = at + 56 + born_bytes
    table[:, _BODY_AT] = at + 72 + born_bytes + np.where(table[:, _SYS_FLAG] & SYS_STORE_V6, 20, 8)
    good = (table[:, _QUEUE_ID] >= 0) & (table[:, _QUEUE_OFFSET] >= 0) & (table[:, _QUEUE_OFFSET] <= QUEUE_OFFSET_MAX)
    good &= table[:, _BODY_AT] + 3 <= at + table[:, _SIZE]
    if log_offset >= 0:
        good &= table[:, _LOG_OFFSET] - at == log_offset
    table = _until_bad(table, good)

    table[:, _STORE_MS] = numbers(data, ">i8", table[:, _HOST_AT] - 8)
    table[:, _BODY_BYTES] = numbers(data, ">i4", table[:, _BODY_AT] - 4)
    ends = table[:, _AT] + table[:, _SIZE]
    table = _until_bad(table, (table[:, _BODY_BYTES] >= 0) & (table[:, _BODY_AT] + table[:, _BODY_BYTES] + 3 <= ends))

    length_at = table[:, _BODY_AT] + table[:, _BODY_BYTES]
    is_v2 = numbers(data, ">i4", table[:, _AT] + 4) == MAGIC_V2
    table[:, _TOPIC_AT] = length_at + 1 + is_v2
    table[:, _TOPIC_BYTES] = np.where(is_v2, numbers(data, ">u2", length_at), data[length_at])
    ends = table[:, _AT] + table[:, _SIZE]
    table[:, _PROPERTIES_AT] = table[:, _TOPIC_AT] + table[:, _TOPIC_BYTES] + 2
    good = (table[:, _TOPIC_BYTES] <= TOPIC_BYTES_LIMIT) & (table[:, _PROPERTIES_AT] <= ends)
    table = _until_bad(table, good)

    table[:, _PROPERTIES_BYTES] = numbers(data, ">u2", table[:, _PROPERTIES_AT] - 2)
    ends = table[:, _AT] + table[:, _SIZE]
    table = _until_bad(table, table[:, _PROPERTIES_AT] + table[:, _PROPERTIES_BYTES] == ends)
    return _until_bad(table, _named_by_text(data, table))


def _until_bad(table: Ints, good: NDArray[np.bool_]) -> Ints:
    return table if good.all() else table[: good.argmin()]


def _named_by_text(data: Bytes, table: Ints) -> NDArray[np.bool_]:
    """Return whether the topics are UTF-8 without a zero byte."""
    at, sizes = table[:, _TOPIC_AT], table[:, _TOPIC_BYTES]
    text = joined(data, at, sizes)
    if text.isascii() and b"\0" not in text:
        return np.ones(len(table), np.bool_)
    known: dict[bytes, bool] = {}
    good = np.empty(len(table), np.bool_)
    end = 0
    for row, size in enumerate(sizes.tolist()):
        topic = text[end : end + size]
        if topic not in known:
            known[topic] = b"\0" not in topic and topic.decode("utf-8", "replace").encode() == topic
        good[row] = known[topic]
        end += size
    return good


def _damaged(buffer: Buffer, data: Bytes, table: Ints) -> NDArray[np.bool_]:
    """Return whose checksums fail: the rules of `pure_record.intact`, for all records at once."""
    at, size = table[:, _AT], table[:, _SIZE]
    found = _crcs(buffer, table[:, _BODY_AT], table[:, _BODY_AT] + table[:, _BODY_BYTES])
    damaged: NDArray[np.bool_] = found != numbers(data, ">u4", at + 8)
    has_properties = table[:, _PROPERTIES_BYTES] > 0
    damaged |= has_properties & (data[at + size - 1] == 0)

    rows = np.flatnonzero(table[:, _PROPERTIES_BYTES] >= TAIL_CRC_BYTES)
    tail_at = (at + size - TAIL_CRC_BYTES)[rows]
    has_tail = windows(data, f"S{len(TAIL_CRC_NAME)}")[tail_at] == TAIL_CRC_NAME
    rows, tail_at = rows[has_tail], tail_at[has_tail]
    is_own = (table[rows, _PROPERTIES_BYTES] == TAIL_CRC_BYTES) | (data[tail_at - 1] == 2)
    for row in rows[~is_own].tolist():  # rare: did it lose its separator?
        start, length, body_at, body_bytes = (int(table[row, field]) for field in (_AT, _SIZE, _BODY_AT, _BODY_BYTES))
        properties = bytes(buffer[int(table[row, _PROPERTIES_AT]) : start + length])
        damaged[row] = not intact(buffer, start, length, body_at, body_bytes, properties)
    rows, tail_at = rows[is_own], tail_at[is_own]
    found = _crcs(buffer, at[rows], tail_at)
    digits = windows(data, "V11")[tail_at + len(TAIL_CRC_NAME)].view(np.uint8).reshape(-1, 11)
    holds = (digits[:, :10] == found[:, None] // _POWERS % 10 + ord("0")).all(axis=1) & (digits[:, 10] == 2)
    damaged[rows] |= ~holds
    return damaged


def _crcs(buffer: Buffer, starts: Ints, stops: Ints) -> NDArray[np.uint32]:
    """Return the checksums of these stretches as a record stores them: 31 bits of their CRC."""
    cut: Callable[[slice], bytes | bytearray | memoryview] = buffer.__getitem__
    pieces = map(cut, map(slice, starts.tolist(), stops.tolist()))
    return np.fromiter(map(crc32, pieces), np.uint32, len(starts)) & np.uint32(0x7FFFFFFF)
