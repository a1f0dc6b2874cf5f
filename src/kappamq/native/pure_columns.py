"""Records in, columns out, in Python: where each record of a buffer lies, and the fields of many in the layout of Arrow.

Defines the behaviour of columns.c. First `locate` walks over the records once and notes a place (layout.PLACE) for each. A caller that
wants only some records, or has to unpack a body, edits the places; then `columns` gathers from them. A position beyond the data points
into `extra`, which contains unpacked bodies, as if the two were one buffer.
"""

from __future__ import annotations

import struct
from array import array
from typing import Final

from kappamq.native.layout import (
    COLUMN_BODY,
    COLUMN_ID,
    COLUMN_KEYS,
    COLUMN_PROPERTIES,
    COLUMN_TAGS,
    COLUMN_TOPIC,
    MAGIC_V1,
    PLACE,
    PLACE_BYTES,
    PRIVATE_PROPERTIES,
    SCAN_DAMAGED,
    SCAN_MORE,
    SYS_BORN_V6,
    SYS_COMPRESSED,
    SYS_INNER_BATCH,
    SYS_STORE_V6,
    TOPIC_BYTES_MAX,
    VALUES_MAX,
    Column,
    MapColumn,
    PropertyRow,
)
from kappamq.native.pure_record import Buffer, intact, parse, property_values

_born_ms: Final = struct.Struct(">q").unpack_from
_log_offset: Final = struct.Struct(">q").pack
_MAGIC_V1: Final = MAGIC_V1.to_bytes(4, "big", signed=True)
_COLUMN_BYTES_MAX: Final = (1 << 31) - 1
_PAIRS_MAX: Final = 0xFFFF // 4 + 1


def locate(buffer: Buffer, log_offset: int, check: bool, count_max: int) -> tuple[bytearray, int, int, int]:
    """Note the records that follow each other in `buffer`, at most `count_max`: (places, how many, bytes, why it stopped).

    With a `log_offset` that is not negative each record must contain its own offset. A record with wrong checksums is
    marked as damaged; one with impossible lengths ends the walk."""
    places = bytearray()
    at = count = 0
    limit = len(buffer)
    while at < limit and count < count_max:
        fields = parse(buffer, at, limit)
        if isinstance(fields, int):
            return places, count, at, fields
        size, queue_id, queue_offset, claimed_offset, sys_flag, store_ms, body_at, body_bytes, topic, properties = (
            fields
        )
        if 0 <= log_offset != claimed_offset - at:
            return places, count, at, SCAN_DAMAGED
        properties_at = at + size - len(properties)
        places += PLACE.pack(
            at, size, queue_id, queue_offset, claimed_offset, sys_flag, *_born_ms(buffer, at + 40), store_ms, body_at, body_bytes,
            properties_at - 2 - len(topic), len(topic), properties_at, len(properties),
            at + 56 + (20 if sys_flag & SYS_BORN_V6 else 8),
            check and not intact(buffer, at, size, body_at, body_bytes, properties),
        )  # fmt: skip
        at += size
        count += 1
    return places, count, at, SCAN_MORE


def bodies_of(data: bytes, places: bytes, first: int, end: int) -> list[bytes]:
    """The bodies of the records [first, end) of `places`, which describes `data`."""
    if not 0 <= first <= end <= len(places) // PLACE.size:
        raise IndexError("no such places")
    made = []
    for number in range(first, end):
        at, size = PLACE.unpack_from(places, number * PLACE.size)[8:10]
        if at < 0 or size < 0 or at + size > len(data):
            raise ValueError("a place lies outside of its bytes")
        made.append(data[at : at + size])
    return made


def index_plain(buffer: Buffer, offset: int, next_offset: int) -> bytes | None:
    """The places of the records in a pull's answer if all can be used as they are, else None.

    All are intact, neither compressed nor batches, and their queue offsets ascend within [offset, next_offset)."""
    places, _count, read, _why = locate(buffer, -1, True, len(buffer))
    if read != len(buffer):
        return None
    for place in PLACE.iter_unpack(places):
        # The length of a topic has one byte in version 1, signed in Java.
        narrow = place[10] - place[9] - place[8] == 1
        if place[15] or place[5] & (SYS_COMPRESSED | SYS_INNER_BATCH) or (narrow and place[11] > 127):
            return None
        if not offset <= place[3] < next_offset:
            return None
        offset = place[3] + 1
    return bytes(places)


def property_rows(records: bytes, names: tuple[bytes, ...]) -> tuple[list[PropertyRow], int]:
    """The named properties of each record in `records`, which follow each other; without names, all of them as one text.

    Returns rows (queue offset, begin and end of the record, values), and how many bytes were read: a record that cannot be read, or not
    in this simple way, ends the walk. A property without a value counts as absent (None); of equal names the last one counts."""
    if len(names) > VALUES_MAX:
        raise ValueError(f"{len(names)} properties are asked for, {VALUES_MAX} at most")
    rows: list[PropertyRow] = []
    at, limit = 0, len(records)
    while at < limit:
        fields = parse(records, at, limit)
        if isinstance(fields, int) or (len(fields[8]) > TOPIC_BYTES_MAX and records[at + 4 : at + 8] == _MAGIC_V1):
            break
        end = at + fields[0]
        if names:
            found = property_values(fields[9])
            values = tuple([_text(found.get(name)) for name in names])
            rows.append((fields[2], at, end, values))
        else:
            rows.append((fields[2], at, end, (fields[9],)))
        at = end
    return rows, at


def _text(value: bytes | None) -> str | None:
    return value.decode("utf-8", "replace") if value else None


def columns(data: Buffer, extra: Buffer, places: Buffer, wanted: int) -> dict[int, Column | MapColumn]:
    """The `wanted` columns (bits of layout.COLUMN_*) of the records at `places`, as Arrow's buffers.

    Texts that are not valid UTF-8 get replacement characters, as Java reads them; properties that only the broker uses are left out.
    Raises ValueError if a place points outside of the data."""
    if len(places) % PLACE_BYTES:
        raise ValueError(f"{len(places)} bytes are no places: each takes {PLACE_BYTES}")
    rows = list(PLACE.iter_unpack(places))
    source = _Source(data, extra)
    made: dict[int, Column | MapColumn] = {}
    if wanted & COLUMN_TOPIC:
        made[COLUMN_TOPIC] = _spans([source.take(row[10], row[11]) for row in rows], text=True)
    if wanted & COLUMN_BODY:
        made[COLUMN_BODY] = _spans([source.take(row[8], row[9]) for row in rows], text=False)
    if wanted & (COLUMN_ID | COLUMN_KEYS | COLUMN_TAGS | COLUMN_PROPERTIES):
        properties = [_properties(source.take(row[12], row[13])) for row in rows]
        if wanted & COLUMN_ID:
            made[COLUMN_ID] = _spans(
                [_message_id(source, *pair) for pair in zip(rows, properties, strict=True)], text=False
            )
        if wanted & COLUMN_KEYS:
            made[COLUMN_KEYS] = _texts([names.get(b"KEYS", b"") for names in properties])
        if wanted & COLUMN_TAGS:
            made[COLUMN_TAGS] = _texts([names.get(b"TAGS", b"") for names in properties])
        if wanted & COLUMN_PROPERTIES:
            made[COLUMN_PROPERTIES] = _maps(properties)
    return made


class _Source:
    """The data followed by the unpacked bodies, as if it were one buffer."""

    def __init__(self, data: Buffer, extra: Buffer) -> None:
        self.data, self.extra, self.first = data, extra, len(data)
        self.all = len(data) + len(extra)

    def take(self, at: int, size: int) -> bytes:
        if size < 0 or at < 0 or at + size > self.all or at < self.first < at + size:
            raise ValueError("a place does not lie within the data")
        if at < self.first:
            return bytes(self.data[at : at + size])
        return bytes(self.extra[at - self.first : at - self.first + size])


def _offsets(pieces: list[bytes]) -> bytes:
    offsets = array("i", [0])
    end = 0
    for piece in pieces:
        end += len(piece)
        if end > _COLUMN_BYTES_MAX:
            raise OverflowError("a column of more than 2 GiB: take fewer records at a time")
        offsets.append(end)
    return offsets.tobytes()


def _spans(pieces: list[bytes], text: bool) -> Column:
    if text and any(not piece.isascii() and piece.decode("utf-8", "replace").encode() != piece for piece in pieces):
        raise ValueError("a place does not lie within the data")  # the topic of a record is always a text
    return None, _offsets(pieces), b"".join(pieces)


def _texts(values: list[bytes]) -> Column:
    """A column; a missing value becomes null."""
    valid = bytearray(-(-len(values) // 8))
    for row, value in enumerate(values):
        if value:
            valid[row // 8] |= 1 << row % 8
    return (None if all(values) else bytes(valid)), _offsets(values), b"".join(values)


def _properties(data: bytes) -> dict[bytes, bytes]:
    found = property_values(data if data.isascii() else data.decode("utf-8", "replace").encode())
    if len(found) > _PAIRS_MAX:
        raise ValueError("a place does not lie within the data")  # longer than the properties of any record
    return found


def _message_id(source: _Source, row: tuple[int, ...], properties: dict[bytes, bytes]) -> bytes:
    """The unique id, or address and log offset of the record in hexadecimal digits."""
    if unique_key := properties.get(b"UNIQ_KEY"):
        return unique_key
    host = source.take(row[14], 20 if row[5] & SYS_STORE_V6 else 8)
    return (host + _log_offset(row[4])).hex().upper().encode()


def _maps(properties: list[dict[bytes, bytes]]) -> MapColumn:
    names: list[bytes] = []
    values: list[bytes] = []
    offsets = array("i", [0])
    for pairs in properties:
        shown = [(name, value) for name, value in pairs.items() if name not in PRIVATE_PROPERTIES]
        names += [name for name, _ in shown]
        values += [value for _, value in shown]
        offsets.append(len(names))
    return offsets.tobytes(), _offsets(names), b"".join(names), _offsets(values), b"".join(values)
