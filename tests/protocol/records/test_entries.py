"""Sizes and positions in queue and index files."""

from __future__ import annotations

from hypothesis import given

from kappamq.protocol.records import entries
from kappamq.protocol.records.tags import java_hash
from tests.protocol.strategies import int32s, int64s, texts


@given(int64s, int32s, int64s)
def test_queue_entry(log_offset: int, size: int, code: int) -> None:
    data = entries.QUEUE_ENTRY.pack(log_offset, size, code)
    assert len(data) == 20
    assert data[:8] == log_offset.to_bytes(8, "big", signed=True)
    assert entries.QUEUE_ENTRY.unpack(data) == (log_offset, size, code)


def test_pre_blank() -> None:
    assert entries.PRE_BLANK.hex() == "00000000000000007fffffff0000000000000000"


def test_index_file_of_default_size() -> None:
    assert entries.index_file_bytes(5_000_000, 20_000_000) == 420_000_040
    assert entries.slot_position(2_746_024) == 40 + 2_746_024 * 4
    assert entries.entry_position(5_000_000, 1) == 40 + 20_000_000 + 20


def test_golden_key_hash() -> None:
    assert entries.key_hash("TopicTest", "k1") == 2746024


@given(texts, texts)
def test_key_hash_is_never_negative(topic: str, key: str) -> None:
    assert 0 <= entries.key_hash(topic, key) < 1 << 31


def test_key_hash_of_the_smallest_number() -> None:
    # Four more characters reach any hash: the digits of the distance, to the base 31, the first one large.
    for first in "abcdefgh":
        rest = (-(1 << 31) - java_hash("t#" + first) * 31**4) % (1 << 32)
        digits = []
        for power in (31**3, 31**2, 31, 1):
            digits.append(rest // power)
            rest %= power
        if digits[0] < 0xD800:
            key = first + "".join(map(chr, digits))
            assert java_hash("t#" + key) == -(1 << 31)
            assert entries.key_hash("t", key) == 0
            return
    raise AssertionError("no such text found")
