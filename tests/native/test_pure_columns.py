"""Columns: the same for both kernels, and what one would get record by record."""

from __future__ import annotations

import itertools
import random
import struct
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kappamq.native.layout import (
    COLUMN_BODY,
    COLUMN_ID,
    COLUMN_KEYS,
    COLUMN_PROPERTIES,
    COLUMN_TAGS,
    COLUMN_TOPIC,
    PLACE,
    PLACE_BYTES,
    SCAN_BLANK,
    SCAN_DAMAGED,
    SCAN_EMPTY,
    SCAN_MORE,
    Column,
    MapColumn,
)
from kappamq.protocol.records import properties
from kappamq.protocol.records.record import Record, blank, decode
from kappamq.protocol.records.view import view_at
from tests.native.conftest import load_kernel

ALL = COLUMN_TOPIC | COLUMN_BODY | COLUMN_ID | COLUMN_KEYS | COLUMN_TAGS | COLUMN_PROPERTIES
V4, V6 = bytes([127, 0, 0, 1]), bytes(range(16))

names = st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "colour", "__BATCH#", "__HALF_MS#", "ß"]) | st.text(
    "abc", max_size=2
)
values = st.text(max_size=6).map(lambda text: text.replace("\2", ""))
hosts = st.sampled_from([V4, V6])


@st.composite
def records(draw: st.DrawFn) -> Record:
    pairs = draw(st.lists(st.tuples(names, values), max_size=20))
    return Record(
        topic=draw(st.sampled_from(["t", "grün", "x" * 127, "x" * 128])),
        body=draw(st.binary(max_size=40)),
        properties="".join(f"{name}\1{value}\2" for name, value in pairs)[
            : draw(st.none() | st.integers(0, 40))
        ].rstrip("\0"),  # zeros at the end are what a lost tail reads as
        queue_id=draw(st.integers(0, 7)),
        queue_offset=draw(st.integers(0, 1 << 58)),
        log_offset=draw(st.integers(0, (1 << 63) - 1)),
        born_ms=draw(st.integers(-(1 << 63), (1 << 63) - 1)),
        stored_ms=draw(st.integers(-(1 << 63), (1 << 63) - 1)),
        born_host=draw(hosts),
        store_host=draw(hosts),
        store_port=draw(st.integers(0, 65535)),
        tail_crc=draw(st.booleans()),
    )


def unpack(column: Column) -> list[bytes | None]:
    """A column as Arrow would read it."""
    valid, offsets, data = column
    ends = struct.unpack(f"={len(offsets) // 4}i", offsets)
    return [
        data[start:end] if valid is None or valid[row // 8] >> row % 8 & 1 else None
        for row, (start, end) in enumerate(itertools.pairwise(ends))
    ]


def unpack_map(column: MapColumn) -> list[dict[bytes | None, bytes | None]]:
    offsets, *pieces = column
    ends = struct.unpack(f"={len(offsets) // 4}i", offsets)
    keys, found = unpack((None, pieces[0], pieces[1])), unpack((None, pieces[2], pieces[3]))
    return [dict(zip(keys[start:end], found[start:end], strict=True)) for start, end in itertools.pairwise(ends)]


def expected(record: Record) -> tuple[object, ...]:
    """What a client that decodes this record shows."""
    message = record.to_message()
    shown = {
        name.encode(): value.encode()
        for name, value in message.properties.items()
        if name not in (properties.BATCH_BYTES, properties.HALF_SINCE, properties.TRANSACTION_OUTCOME)
    }
    return (
        message.topic.encode(),
        message.body,
        message.message_id.encode(),
        message.properties["KEYS"].encode() if "KEYS" in message.properties else None,
        message.tags.encode() or None,
        shown,
    )


@pytest.mark.parametrize("kind", ["twin", "native"])
@given(given_records=st.lists(records(), max_size=12))
def test_columns_show_what_a_client_shows(kind: str, given_records: list[Record]) -> None:
    kernel = load_kernel(kind)
    data = b"".join(record.encode() for record in given_records)
    places, count, consumed, why = kernel.locate(data, -1, True, 1000)
    assert (count, consumed, why) == (len(given_records), len(data), SCAN_MORE)
    made = kernel.columns(data, b"", places, ALL)
    texts = [unpack(made[bit]) for bit in (COLUMN_TOPIC, COLUMN_BODY, COLUMN_ID, COLUMN_KEYS, COLUMN_TAGS)]
    rows = list(zip(*texts, unpack_map(made[COLUMN_PROPERTIES]), strict=True))
    assert rows == [expected(record) for record in given_records]
    for place, record in zip(PLACE.iter_unpack(places), given_records, strict=True):
        assert place[1:5] == (record.size, record.queue_id, record.queue_offset, record.log_offset)
        assert (place[6], place[7], place[15]) == (record.born_ms, record.stored_ms, 0)
        assert decode(data, place[0]).body == record.body


@given(
    st.lists(records(), min_size=1, max_size=5),
    st.lists(st.tuples(st.integers(0), st.integers(0, 255)), max_size=4),
    st.integers(0, 6),
    st.booleans(),
)
def test_both_kernels_agree_on_damaged_bytes(
    given_records: list[Record], flips: list[tuple[int, int]], count_max: int, check: bool
) -> None:
    data = bytearray(b"".join(record.encode() for record in given_records))
    for position, value in flips:
        data[position % len(data)] = value
    twin, native = load_kernel("twin"), load_kernel("native")
    located = twin.locate(data, -1, check, count_max)
    assert native.locate(data, -1, check, count_max) == located
    places = located[0]
    assert native.columns(data, b"", places, ALL) == twin.columns(data, b"", places, ALL)


ASKED = "TAGS", "colour", "a", "ab", "__BATCH#"


@pytest.mark.parametrize("kind", ["twin", "native"])
@given(given_records=st.lists(records(), max_size=12))
def test_rows_hold_the_properties_that_are_asked_for(kind: str, given_records: list[Record]) -> None:
    kernel = load_kernel(kind)
    encoded = [record.encode() for record in given_records]
    rows, read = kernel.property_rows(b"".join(encoded), tuple(name.encode() for name in ASKED))
    assert read == sum(map(len, encoded))
    ends = list(itertools.accumulate(map(len, encoded)))
    for (offset, start, end, found), record, data, stop in zip(rows, given_records, encoded, ends, strict=True):
        assert (offset, start, end) == (record.queue_offset, stop - len(data), stop)
        decoded = properties.decode(view_at(data).all_property_bytes.decode())
        assert found == tuple(decoded.get(name) for name in ASKED)
    texts, _ = kernel.property_rows(b"".join(encoded), ())
    assert [found for *_, found in texts] == [(view_at(data).all_property_bytes,) for data in encoded]


@given(
    st.lists(records(), min_size=1, max_size=5),
    st.lists(st.tuples(st.integers(0), st.integers(0, 255)), max_size=4),
    st.integers(0, len(ASKED)),
)
def test_both_kernels_have_the_same_rows_of_damaged_bytes(
    given_records: list[Record], flips: list[tuple[int, int]], count: int
) -> None:
    data = bytearray(b"".join(record.encode() for record in given_records))
    for position, value in flips:
        data[position % len(data)] = value
    wanted = tuple(name.encode() for name in ASKED[:count])
    rows = load_kernel("twin").property_rows(bytes(data), wanted)
    assert load_kernel("native").property_rows(bytes(data), wanted) == rows


def test_where_rows_end(module: ModuleType) -> None:
    one = Record(topic="tea", body=b"cup", properties="a\1\xe4\2a\1\2b\1" + "\1\2", queue_offset=5).encode()
    good = (5, 0, len(one), ("\xe4", "\1", None))
    assert module.property_rows(one + one[:50], (b"a", b"b", b"c")) == ([good], len(one))
    assert module.property_rows(one + bytes(40), (b"a", b"b", b"c")) == ([good], len(one))
    assert module.property_rows(b"", (b"a",)) == ([], 0)
    strange = bytearray(Record(topic="t" * 128, body=b"").encode())
    strange[4:8] = one[4:8]  # version 1, whose topics have a length of one byte
    at = strange.index(b"t" * 128) - 2
    strange[at : at + 2] = b"\x80"
    strange[:4] = (len(strange)).to_bytes(4, "big")
    assert module.property_rows(one + strange, (b"a", b"b", b"c")) == ([good], len(one))
    latin = one.replace("\xe4".encode(), b"\xe4\x62")
    assert module.property_rows(latin, (b"a",))[0][0][3] == ("\ufffdb",)


def test_not_more_properties_than_there_is_room_for(module: ModuleType) -> None:
    with pytest.raises(ValueError, match="9 properties are asked for, 8 at most"):
        module.property_rows(b"", (b"a",) * 9)


def test_a_failed_checksum_marks_the_record_and_does_not_hide_its_neighbours(module: ModuleType) -> None:
    encoded = [Record(topic="tea", body=b"cup %d" % n, queue_offset=n).encode() for n in range(3)]
    data = bytearray(b"".join(encoded))
    data[data.index(b"cup 1")] ^= 1
    places, count, consumed, why = module.locate(data, -1, True, 100)
    assert (count, consumed, why) == (3, len(data), SCAN_MORE)
    assert [place[15] for place in PLACE.iter_unpack(places)] == [0, 1, 0]
    assert [place[15] for place in PLACE.iter_unpack(module.locate(data, -1, False, 100)[0])] == [0, 0, 0]


def test_what_ends_the_walk_is_told(module: ModuleType) -> None:
    one = Record(topic="tea", body=b"cup", log_offset=1000).encode()
    assert module.locate(one + blank(40), 1000, True, 9)[1:] == (1, len(one), SCAN_BLANK)
    assert module.locate(one + bytes(40), 1000, True, 9)[1:] == (1, len(one), SCAN_EMPTY)
    assert module.locate(one + b"garbage!" * 20, 1000, True, 9)[1:] == (1, len(one), SCAN_DAMAGED)
    assert module.locate(one + one[:50], 1000, True, 9)[1:] == (1, len(one), SCAN_MORE)
    assert module.locate(one + one, 1000, True, 9)[1:] == (1, len(one), SCAN_DAMAGED), "the second names another offset"
    assert module.locate(one + one, -1, True, 9)[1:] == (2, 2 * len(one), SCAN_MORE)
    assert module.locate(one + one, -1, True, 1)[1:] == (1, len(one), SCAN_MORE)
    assert module.locate(b"", 0, True, 9) == (bytearray(), 0, 0, SCAN_MORE)


def test_places_may_point_behind_the_data(module: ModuleType) -> None:
    """So a reader puts an unpacked body in the place of a packed one."""
    data = Record(topic="tea", body=b"packed").encode()
    places = module.locate(data, -1, True, 9)[0]
    fields = list(PLACE.unpack(places))
    fields[8:10] = len(data) + 2, 8
    made = module.columns(data, b"..unpacked", PLACE.pack(*fields), COLUMN_BODY | COLUMN_TOPIC)
    assert (unpack(made[COLUMN_BODY]), unpack(made[COLUMN_TOPIC])) == ([b"unpacked"], [b"tea"])


@pytest.mark.parametrize("field", [8, 10, 12, 14])
@pytest.mark.parametrize("value", [-1, 10_000, (1 << 63) - 1])
def test_a_place_outside_of_the_data_is_refused(module: ModuleType, field: int, value: int) -> None:
    data = Record(topic="tea", body=b"cup").encode()
    fields = list(PLACE.unpack(module.locate(data, -1, True, 9)[0]))
    fields[field] = value
    with pytest.raises(ValueError, match="does not lie within the data"):
        module.columns(data, b"more", PLACE.pack(*fields), ALL)


@pytest.mark.parametrize("size", [-1, 1000, (1 << 63) - 1])
def test_a_length_beyond_the_data_is_refused(module: ModuleType, size: int) -> None:
    data = Record(topic="tea", body=b"cup").encode()
    fields = list(PLACE.unpack(module.locate(data, -1, True, 9)[0]))
    fields[13] = size
    with pytest.raises(ValueError, match="does not lie within the data"):
        module.columns(data, b"more", PLACE.pack(*fields), COLUMN_TAGS)
    fields[13], fields[9] = 0, len(data) - fields[8] + 1  # reaches over the seam between data and what is behind it
    with pytest.raises(ValueError, match="does not lie within the data"):
        module.columns(data, b"more", PLACE.pack(*fields), COLUMN_BODY)


def test_half_a_place_is_refused(module: ModuleType) -> None:
    with pytest.raises(ValueError, match="are no places"):
        module.columns(b"", b"", bytes(PLACE_BYTES - 1), COLUMN_BODY)


@pytest.mark.parametrize("count", [15, 16, 17, 5000])
def test_many_properties_with_repeated_names(module: ModuleType, count: int) -> None:
    dice = random.Random(count)
    pairs = [(f"n{dice.randrange(count // 2)}", f"{n}") for n in range(count)]
    text = "".join(f"{name}\1{value}\2" for name, value in pairs)[: properties.TEXT_BYTES_MAX]
    record = Record(topic="tea", body=b"", properties=text)
    data = record.encode() * 2
    made = module.columns(data, b"", module.locate(data, -1, True, 9)[0], COLUMN_PROPERTIES)
    shown = {name.encode(): value.encode() for name, value in properties.decode(text).items()}
    found = unpack_map(made[COLUMN_PROPERTIES])
    assert found == [shown, shown]
    assert list(found[0]) == list(shown), "a repeated name stands where it stood first"


def test_bytes_that_are_no_text_are_replaced(module: ModuleType) -> None:
    record = bytearray(Record(topic="tea", body=b"", properties="TAGS\1a??b\2x?\1y?\2x!\1z\2").encode())
    at = record.index(b"??")
    record[at : at + 2] = b"\xe2\x82"
    record[record.index(b"x?") + 1] = record[record.index(b"x!") + 1] = 0xFF
    made = module.columns(record, b"", module.locate(record, -1, True, 9)[0], COLUMN_TAGS | COLUMN_PROPERTIES)
    assert unpack(made[COLUMN_TAGS]) == ["a\ufffdb".encode()]
    assert unpack_map(made[COLUMN_PROPERTIES]) == [{b"TAGS": "a\ufffdb".encode(), "x\ufffd".encode(): b"z"}]


def test_bodies_are_where_the_places_say(module: ModuleType) -> None:
    data = bytes(range(100))
    spans = [(0, 100), (5, 0), (99, 1), (10, 20)]
    places = b"".join(PLACE.pack(*[0] * 8, at, size, *[0] * 6) for at, size in spans)
    assert module.bodies_of(data, places, 0, 4) == [data[at : at + size] for at, size in spans]
    assert module.bodies_of(data, places, 2, 3) == [data[99:]]
    assert module.bodies_of(data, places, 4, 4) == []
    for first, end in ((-1, 2), (3, 2), (0, 5)):
        with pytest.raises(IndexError, match="no such places"):
            module.bodies_of(data, places, first, end)
    for at, size in ((-1, 1), (0, -1), (100, 1), (1, 100), (1 << 62, 1), (1, (1 << 63) - 1)):
        with pytest.raises(ValueError, match="outside of its bytes"):
            module.bodies_of(data, PLACE.pack(*[0] * 8, at, size, *[0] * 6), 0, 1)
