"""numpy finds the records that the compiled kernel and the twin find, and judges them alike."""

from __future__ import annotations

import mmap
import random
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kappamq.native.layout import PLACE
from kappamq.protocol.records.record import Record, blank
from kappamq.spark.columns import numpy_columns
from tests.native.conftest import load_kernel
from tests.native.test_pure_columns import (
    V4,
    V6,
    records,
    test_a_failed_checksum_marks_the_record_and_does_not_hide_its_neighbours,
    test_what_ends_the_walk_is_told,
)

__all__ = [
    "test_a_failed_checksum_marks_the_record_and_does_not_hide_its_neighbours",
    "test_what_ends_the_walk_is_told",
]


@pytest.fixture
def module() -> ModuleType:
    """The tests that are imported run with numpy here."""
    return numpy_columns


def same(data: bytes | bytearray, log_offset: int, check: bool, count_max: int) -> None:
    located = load_kernel("twin").locate(data, log_offset, check, count_max)
    assert numpy_columns.locate(data, log_offset, check, count_max) == located
    assert load_kernel("native").locate(data, log_offset, check, count_max) == located


@given(
    st.lists(records(), max_size=6),
    st.lists(st.tuples(st.integers(0), st.integers(0, 255)), max_size=4),
    st.sampled_from([b"", b"\0", bytes(200), blank(40), b"garbage!" * 20]),
    st.integers(-1, 8),
    st.booleans(),
)
def test_all_three_agree(
    given_records: list[Record], flips: list[tuple[int, int]], tail: bytes, count_max: int, check: bool
) -> None:
    data = bytearray(b"".join(record.encode() for record in given_records) + tail)
    for position, value in flips if data else ():
        data[position % len(data)] = value
    same(data, -1, check, count_max)
    same(data, given_records[0].log_offset if given_records else 0, check, count_max)


@pytest.mark.parametrize("tail_crc", [False, True])
@pytest.mark.parametrize(("topic", "host"), [("tea", V4), ("grün", V6), ("x" * 128, V4)])
def test_every_byte_of_a_record_changed(topic: str, host: bytes, tail_crc: bool) -> None:
    """Lengths that lead outside, a sign bit, a topic that is no text, a lost separator: each byte once by a bit, once to 0, once to 255."""
    dice = random.Random(1)
    one = Record(
        topic=topic, body=b"cup", properties="a\1b\2", born_host=host, store_host=V4, tail_crc=tail_crc, log_offset=0
    ).encode()
    three = one * 3
    for at in range(len(one), 2 * len(one)):
        for value in (three[at] ^ 1 << dice.randrange(8), 0, 255):
            same(three[:at] + bytes([value]) + three[at + 1 :], -1, True, 9)


def test_records_cut_short_at_every_byte() -> None:
    data = Record(topic="tea", body=b"cup").encode() * 2
    for size in range(len(data)):
        same(data[:size], -1, True, 9)


def test_a_log_offset_that_grows() -> None:
    size = len(Record(topic="tea", body=b"cup").encode())
    data = b"".join(Record(topic="tea", body=b"cup", log_offset=1000 + n * size).encode() for n in range(4))
    same(data, 1000, True, 9)
    same(data[size:], 1000, True, 9)
    same(data + data, 1000, True, 9)
    assert numpy_columns.locate(data, 1000, True, 9)[1] == 4


def test_any_buffer_will_do() -> None:
    data = Record(topic="tea", body=b"cup", tail_crc=True).encode() * 2
    expected = load_kernel("twin").locate(data, -1, True, 9)
    mapped = mmap.mmap(-1, len(data))
    mapped.write(data)
    for buffer in (data, bytearray(data), memoryview(data), mapped):
        assert numpy_columns.locate(buffer, -1, True, 9) == expected
    mapped.close()
    assert [place[0] for place in PLACE.iter_unpack(expected[0])] == [0, len(data) // 2]
