"""Columns made with numpy hold the same bytes as those of the compiled kernel and of its twin."""

from __future__ import annotations

import itertools
import random
from types import ModuleType
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kappamq.native.layout import COLUMN_ID, COLUMN_KEYS, COLUMN_PROPERTIES, COLUMN_TAGS, PLACE, PLACE_BYTES
from kappamq.protocol.records.record import Record
from kappamq.spark.columns import numpy_columns
from tests.native.conftest import load_kernel
from tests.native.test_pure_columns import (
    ALL,
    records,
    test_a_length_beyond_the_data_is_refused,
    test_a_place_outside_of_the_data_is_refused,
    test_bytes_that_are_no_text_are_replaced,
    test_half_a_place_is_refused,
    test_many_properties_with_repeated_names,
    test_places_may_point_behind_the_data,
)

__all__ = [
    "test_a_length_beyond_the_data_is_refused",
    "test_a_place_outside_of_the_data_is_refused",
    "test_bytes_that_are_no_text_are_replaced",
    "test_half_a_place_is_refused",
    "test_many_properties_with_repeated_names",
    "test_places_may_point_behind_the_data",
]
KINDS = ("twin", "native", "numpy")


@pytest.fixture
def module() -> ModuleType:
    """The tests that are imported run with numpy here."""
    return numpy_columns


def made(kind: str, data: bytes, extra: bytes, places: bytes, wanted: int) -> Any:
    """The columns, or what is said against them."""
    try:
        return (numpy_columns if kind == "numpy" else load_kernel(kind)).columns(data, extra, places, wanted)
    except ValueError as error:
        return str(error)


def same(data: bytes, extra: bytes, places: bytes, wanted: int = ALL) -> Any:
    twin, native, with_numpy = (made(kind, data, extra, places, wanted) for kind in KINDS)
    assert with_numpy == twin
    assert native == twin
    return twin


def of_properties(texts: list[bytes]) -> tuple[bytes, bytes]:
    """Properties alone, back to back, and places that point to them."""
    ends = list(itertools.accumulate(map(len, texts), initial=0))
    rows = [[0] * 12 + [start, len(text), 0, 0] for start, text in zip(ends, texts, strict=False)]
    return b"".join(texts) + bytes(8), b"".join(PLACE.pack(*row) for row in rows)


@given(st.lists(records(), max_size=12), st.integers(0, ALL))
def test_all_three_agree(given_records: list[Record], wanted: int) -> None:
    data = b"".join(record.encode() for record in given_records)
    places = numpy_columns.locate(data, -1, True, 1000)[0]
    assert len(places) == len(given_records) * PLACE_BYTES
    assert isinstance(same(data, b"", bytes(places), wanted), dict)


@given(
    st.lists(records(), min_size=1, max_size=5), st.lists(st.tuples(st.integers(0), st.integers(0, 255)), max_size=4)
)
def test_all_three_agree_on_damaged_bytes(given_records: list[Record], flips: list[tuple[int, int]]) -> None:
    data = bytearray(b"".join(record.encode() for record in given_records))
    for position, value in flips:
        data[position % len(data)] = value
    same(bytes(data), b"", bytes(numpy_columns.locate(data, -1, True, 1000)[0]))


@given(
    st.lists(records(), min_size=1, max_size=4),
    st.lists(
        st.tuples(
            st.integers(0), st.integers(0, 15), st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(-2, 3000)
        ),
        max_size=3,
    ),
)  # fmt: skip
@example([Record(topic="t", body=b"")], [(0, 9, 1 << 31)])
def test_all_three_agree_on_places_that_lie(given_records: list[Record], lies: list[tuple[int, int, int]]) -> None:
    data = b"".join(record.encode() for record in given_records)
    rows = [list(row) for row in PLACE.iter_unpack(numpy_columns.locate(data, -1, True, 1000)[0])]
    for row, field, value in lies:
        rows[row % len(rows)][field] = value
    same(data, b"a\1b\2unpacked\xff", b"".join(PLACE.pack(*row) for row in rows))


hostile = st.lists(
    st.sampled_from(
        [b"\1", b"\2", b"a", b"TAGS", b"KEYS", b"UNIQ_KEY", b"\1v\2", b"__CRC32#", b"__END#", b"__HALF_MS#", b"\0", b"\xff",
         b"\xc3\xbc", b"\xe2\x82", b"\xf0\x9f\x98", b"\xed\xa0\x80", b"n" * 8, b"n" * 17, b"TAG\0", b"#"]
    ),
    max_size=16,
).map(b"".join)  # fmt: skip


@given(st.lists(hostile, max_size=6))
def test_all_three_agree_on_hostile_properties(texts: list[bytes]) -> None:
    for wanted in (COLUMN_ID | COLUMN_KEYS | COLUMN_TAGS, COLUMN_PROPERTIES, ALL):
        assert isinstance(same(*_with_extra(of_properties(texts)), wanted), dict)


def _with_extra(given: tuple[bytes, bytes]) -> tuple[bytes, bytes, bytes]:
    return given[0], b"", given[1]


def test_more_pairs_than_a_record_can_have_are_refused() -> None:
    """Such a place is a lie; where most of the names are repeated it is none."""
    dice = random.Random(3)
    many = b"".join(b"%x\1v\2" % n for n in range(20_000))
    repeated = b"".join(b"%x\1%d\2" % (dice.randrange(50), n) for n in range(20_000))
    for wanted in (COLUMN_TAGS, COLUMN_PROPERTIES):
        assert same(*_with_extra(of_properties([b"", many])), wanted) == "a place does not lie within the data"
        assert isinstance(same(*_with_extra(of_properties([repeated, b"a\1b"])), wanted), dict)


def test_a_whole_batch() -> None:
    dice = random.Random(7)
    data = b"".join(
        Record(
            topic=dice.choice(["tea", "coffee", "grün"]),
            body=dice.randbytes(dice.randrange(300)),
            properties="".join(f"{name}\1{dice.randrange(10**9)}\2" for name in dice.sample(["TAGS", "KEYS", "UNIQ_KEY", "n"], 3)),
            queue_offset=number,
            tail_crc=True,
        ).encode()
        for number in range(3000)
    )  # fmt: skip
    located = numpy_columns.locate(data, -1, True, len(data))
    assert located == load_kernel("twin").locate(data, -1, True, len(data))
    assert located[1] == 3000
    assert isinstance(same(data, b"", bytes(located[0])), dict)
