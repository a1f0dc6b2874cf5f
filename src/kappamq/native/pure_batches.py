"""Columns in, batches out, in Python: properties of many messages as text, many messages as the body of one send, and its checksum.

The meaning of batches.c. Columns are buffers as Arrow has them (layout.Column), without an offset of their own.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Sequence
from typing import Final
from zlib import crc32

from kappamq.native.layout import PROPERTIES_BYTES_MAX, BadRow, Column, MapInput
from kappamq.native.pure_record import Buffer, split_batch

_FRONT: Final = struct.Struct(">iiiii")
_BATCH_BYTES_MAX: Final = (1 << 31) - 1


def column_of(values: Sequence[str | bytes]) -> Column:
    """Texts or bytes as a column. Raises UnicodeEncodeError for a text that UTF-8 cannot express."""
    pieces = [value if isinstance(value, bytes) else value.encode() for value in values]
    offsets = array("i", [0])
    end = 0
    for piece in pieces:
        end += len(piece)
        if end > _BATCH_BYTES_MAX:
            raise OverflowError("a column of more than 2 GiB: take fewer records at a time")
        offsets.append(end)
    return None, offsets.tobytes(), b"".join(pieces)


def property_texts(
    count: int, named: Sequence[tuple[bytes, Column]], mapped: MapInput | None, left_out: Iterable[bytes]
) -> Column:
    """The properties of `count` messages as text, a column: one property per named column, then the pairs of a map column.

    Nulls and empty texts of named columns are no property; names in `left_out` are not taken from the map. Raises BadRow for a
    row that cannot be a message."""
    columns = [(name, _texts(column, count)) for name, column in named]
    maps = _pairs(mapped, count) if mapped is not None else [[]] * count
    skipped = frozenset(left_out)
    pieces: list[bytes] = []
    offsets = array("i", [0])
    end = 0
    for row in range(count):
        text = b""
        for name, values in columns:
            if values[row]:
                text = _with_pair(row, text, name, values[row])
        for name, value in maps[row]:
            if name in skipped:
                continue
            if not name or not value:
                raise BadRow(row, "a property has an empty name or value, which RocketMQ would drop")
            if b"\1" in name or b"\2" in name:
                raise BadRow(row, "a property holds a separator (0x01 or 0x02)")
            text = _with_pair(row, text, name, value)
        pieces.append(text)
        end += len(text)
        if end > _BATCH_BYTES_MAX:
            raise OverflowError("a column of more than 2 GiB: take fewer records at a time")
        offsets.append(end)
    return None, offsets.tobytes(), b"".join(pieces)


def batch_body(
    bodies: Column,
    texts: Column,
    rows: Buffer,
    first: int,
    bytes_max: int,
    count_max: int,
    id_prefix: bytes,
    first_id: int,
) -> tuple[bytes, int]:
    """The body of a batch send and where to go on: members from `rows`[first] on, as many as fit, at least one.

    `rows` are int32 numbers of rows of the columns. With an `id_prefix` (10 bytes) each member gets a unique id: the prefix and
    6 bytes that count, `first_id` for row 0."""
    if len(id_prefix) not in (0, 10):
        raise ValueError(f"a prefix of ids has 10 bytes, or none; got {len(id_prefix)}")
    count = len(bodies[1]) // 4 - 1
    all_bodies, all_texts = _texts(bodies, count), _texts(texts, count)
    wanted = memoryview(rows).cast("B").cast("i")
    members: list[bytes] = []
    size = 0
    taken = first
    while taken < len(wanted) and taken - first < count_max:
        row = wanted[taken]
        if not 0 <= row < count:
            raise ValueError("a place does not lie within the data")
        text, body = all_texts[row], all_bodies[row]
        if id_prefix:
            number = (first_id + row) & ((1 << 48) - 1)
            text = b"UNIQ_KEY\1%b\2%b" % ((id_prefix + number.to_bytes(6, "big")).hex().upper().encode(), text)
        if len(text) > PROPERTIES_BYTES_MAX:
            raise BadRow(row, f"its properties take more than {PROPERTIES_BYTES_MAX} bytes")
        length = 22 + len(body) + len(text)
        if members and size + length > bytes_max:
            break
        if size + length > _BATCH_BYTES_MAX:
            raise OverflowError("a column of more than 2 GiB: take fewer records at a time")
        members.append(_FRONT.pack(length, 0, 0, 0, len(body)) + body + len(text).to_bytes(2, "big") + text)
        size += length
        taken += 1
    return b"".join(members), taken


def batch_checksum(body: bytes) -> int:
    """The sum of the CRC-32s of the bodies of a batch. Raises ValueError if its lengths do not fit."""
    members = split_batch(body, False)
    if members is None:
        raise ValueError("the lengths of a batch do not fit")
    return sum(crc32(content) for _flag, content, _properties in members)


def _texts(column: Column, count: int) -> list[bytes]:
    """The values of a column, a null as an empty text."""
    valid, offsets, data = column
    ends = memoryview(offsets).cast("B").cast("i")
    if count < 0 or len(ends) < count + 1 or (valid is not None and len(valid) * 8 < count):
        raise ValueError(f"a column of {count} rows has {len(ends)} offsets or too few validity bits")
    found: list[bytes] = []
    for row in range(count):
        if valid is not None and not valid[row // 8] >> row % 8 & 1:
            found.append(b"")
            continue
        start, end = ends[row], ends[row + 1]
        if not 0 <= start <= end <= len(data):
            raise ValueError("a place does not lie within the data")
        found.append(bytes(data[start:end]))
    return found


def _pairs(mapped: MapInput, count: int) -> list[list[tuple[bytes, bytes]]]:
    valid, offsets, names, values = mapped
    ends = memoryview(offsets).cast("B").cast("i")
    pair_count = len(names[1]) // 4 - 1
    if len(ends) < count + 1 or (valid is not None and len(valid) * 8 < count):
        raise ValueError(f"a column of {count} rows has {len(ends)} offsets or too few validity bits")
    all_names, all_values = _texts(names, pair_count), _texts(values, pair_count)
    found: list[list[tuple[bytes, bytes]]] = []
    for row in range(count):
        start, end = ends[row], ends[row + 1]
        if valid is not None and not valid[row // 8] >> row % 8 & 1:
            start = end = 0
        if not 0 <= start <= end <= pair_count:
            raise ValueError("a place does not lie within the data")
        found.append(list(zip(all_names[start:end], all_values[start:end], strict=True)))
    return found


def _with_pair(row: int, text: bytes, name: bytes, value: bytes) -> bytes:
    if len(text) + len(name) + len(value) + 2 > PROPERTIES_BYTES_MAX:
        raise BadRow(row, f"its properties take more than {PROPERTIES_BYTES_MAX} bytes")
    if b"\2" in value:
        raise BadRow(row, "a property holds a separator (0x01 or 0x02)")
    return b"%b%b\1%b\2" % (text, name, value)
