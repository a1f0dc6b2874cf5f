"""Batches on the wire and in the log."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kappamq.errors import ProtocolError
from kappamq.protocol.records import batch, record
from kappamq.protocol.records.batch import Member
from kappamq.protocol.records.compression import Compression, compress
from kappamq.protocol.records.record import Record
from tests.protocol.records.test_record import records
from tests.protocol.strategies import int32s, texts

GOLDEN = bytes.fromhex("0000001c 00000000 00000000 00000000 00000002 6231 0004 6b017602")
members = st.lists(st.builds(Member, st.binary(max_size=30), texts, int32s), max_size=5)


def test_golden_member() -> None:
    assert batch.encode([Member(b"b1", "k\x01v\x02")]) == GOLDEN
    assert batch.split(GOLDEN) == [Member(b"b1", "k\x01v\x02", 0)]


@given(members)
def test_there_and_back(many: list[Member]) -> None:
    assert batch.split(batch.encode(many)) == many


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (GOLDEN[:10], "ends within member 0"),
        (GOLDEN + GOLDEN[:-1], "member 1 of the batch: size 28"),
        (struct.pack(">i", 0) + GOLDEN[4:], "size 0"),
        (struct.pack(">i", -1) + GOLDEN[4:], "size -1"),
        (struct.pack(">i", 27) + GOLDEN[4:], "properties of 4 bytes do not end it"),
        (GOLDEN[:16] + struct.pack(">i", -1) + GOLDEN[20:], "body length -1"),
        (GOLDEN[:16] + struct.pack(">i", 1 << 30) + GOLDEN[20:], "body length 1073741824"),
        (GOLDEN[:22] + b"\xff\xff" + GOLDEN[24:], "properties of -1 bytes"),
        (GOLDEN[:-4] + b"\xff\xff\xff\xff", "not UTF-8"),
    ],
)
def test_wrong_batches(data: bytes, reason: str) -> None:
    with pytest.raises(ProtocolError, match=reason):
        batch.split(data)


@given(members, st.data())
def test_damaged_batches_are_read_or_refused(many: list[Member], data: st.DataObject) -> None:
    damaged = bytearray(batch.encode(many)) + data.draw(st.binary(max_size=5))
    if damaged:
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    try:
        batch.split(damaged)
    except ProtocolError:
        pass


def test_member_that_does_not_fit() -> None:
    with pytest.raises(ProtocolError, match="does not fit"):
        batch.encode([Member(b"", "x" * 40_000)])


@given(st.lists(records(), min_size=1, max_size=4), st.integers(0, 1 << 40))
def test_laid_out_in_the_log(many: list[Record], log_offset: int) -> None:
    data = batch.lay_out(many, log_offset)
    found = list(record.iter_records(data))
    assert found == many
    position = log_offset
    for one in found:
        assert one.log_offset == position
        position += one.size
    assert record.batch_bytes(found[0]) == (len(data) if len(many) > 1 else None)


def test_length_comes_last_and_open_text_is_closed() -> None:
    first = Record(topic="t", body=b"", properties="a\x01b", tail_crc=True)
    batch.lay_out([first, Record(topic="t", body=b"")], 0)
    assert first.properties == f"a\x01b\x02__BATCH#\x01{first.size + 92:010}\x02"


@pytest.mark.parametrize("packed", [False, True])
def test_unwrap(packed: bool) -> None:
    body = batch.encode([Member(b"x", "k\x01v\x02", 4), Member(b"y")])
    flags = record.SYS_NEED_UNWRAP | record.SYS_INNER_BATCH
    if packed:
        body, flags = compress(body), flags | record.SYS_COMPRESSED | Compression.ZLIB.value
    one = Record(topic="t", body=body, properties="INNER_BASE\x0140\x02", sys_flag=flags, queue_offset=3)
    first, second = batch.unwrap(one)
    assert (first.body, first.properties, first.flag, first.queue_offset) == (b"x", "k\x01v\x02", 4, 40)
    assert (second.body, second.queue_offset) == (b"y", 41)
    assert not second.sys_flag & (flags & 0xFF)
    assert batch.unwrap(first) == [first]


@pytest.mark.parametrize(
    ("count", "promised", "text"),
    [
        (batch.INNER_MEMBERS_MAX, "", None),
        (batch.INNER_MEMBERS_MAX + 1, "", "more than 262144 messages, more than a record may hold"),
        (batch.INNER_MEMBERS_MAX + 1, "1000000", "more than 262144 messages, more than a record may hold"),
        (3, "3", None),
        (3, "three", None),
        (3, "2", "more than 2 messages, which is the number in its record"),
        (1, "0", "more than 0 messages"),
    ],
)
def test_a_record_holds_no_more_messages_than_it_promises_and_brokers_take(
    count: int, promised: str, text: str | None
) -> None:
    flags = record.SYS_NEED_UNWRAP | record.SYS_INNER_BATCH | record.SYS_COMPRESSED
    told = f"INNER_NUM\x01{promised}\x02" if promised else ""
    one = Record(topic="t", body=compress(batch.encode([Member(b"")]) * count), properties=told, sys_flag=flags)
    if text is None:
        assert len(batch.unwrap(one)) == count
    else:
        with pytest.raises(ProtocolError, match=text):
            batch.unwrap(one)
