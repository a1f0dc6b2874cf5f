"""Records: golden bytes of the Java codec, there and back, and every kind of damage named."""

from __future__ import annotations

import struct
import zlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kappamq.errors import ProtocolError
from kappamq.message import MessageQueue
from kappamq.protocol.records import properties, record
from kappamq.protocol.records.compression import Compression, compress
from kappamq.protocol.records.record import Fault, Record, RecordError, decode, iter_records
from tests.protocol.strategies import int32s, int64s, texts

GOLDEN = bytes.fromhex(
    "0000007e daa320a7 3610a686 00000003 00000007 0000000000000005 0000011f71fb04cb 00000000 0000018bcfe56800"
    "0a000001 0000c350 0000018bcfe5687b c0a80102 00002a9f 00000001 0000000000000000"
    "00000005 68656c6c6f  09 546f70696354657374  0015 5441475301 5461674102 4b45595301 6b31206b3202"
)
SAMPLE = Record(
    topic="TopicTest",
    body=b"hello",
    queue_id=3,
    flag=7,
    queue_offset=5,
    log_offset=1234567890123,
    born_ms=1700000000000,
    born_host=bytes([10, 0, 0, 1]),
    born_port=50000,
    stored_ms=1700000000123,
    store_host=bytes([192, 168, 1, 2]),
    store_port=10911,
    reconsume_times=1,
    properties="TAGS\x01TagA\x02KEYS\x01k1 k2\x02",
)

hosts = st.binary(min_size=4, max_size=4) | st.binary(min_size=16, max_size=16)
property_texts = st.dictionaries(texts.filter(bool), texts.filter(bool), max_size=3).map(
    lambda pairs: "".join(f"{name}\x01{value}\x02" for name, value in pairs.items())
)


@st.composite
def records(draw: st.DrawFn) -> Record:
    result = Record(
        topic=draw(texts | st.just("t" * 127) | st.just("t" * 128) | st.just("%RETRY%" + "t" * 240)),
        body=draw(st.binary(max_size=60)),
        properties=draw(property_texts),
        queue_id=draw(int32s),
        flag=draw(int32s),
        queue_offset=draw(int64s),
        log_offset=draw(int64s),
        sys_flag=draw(int32s) & ~0x30,
        born_ms=draw(int64s),
        born_host=draw(hosts),
        born_port=draw(int32s),
        stored_ms=draw(int64s),
        store_host=draw(hosts),
        store_port=draw(int32s),
        reconsume_times=draw(int32s),
        prepared_offset=draw(int64s),
        tail_crc=draw(st.booleans()),
    )
    result.sys_flag |= 0x10 * (len(result.born_host) == 16) | 0x20 * (len(result.store_host) == 16)
    return result


def test_golden_record() -> None:
    assert SAMPLE.encode() == GOLDEN
    assert decode(GOLDEN) == SAMPLE
    assert SAMPLE.size == len(GOLDEN) == 126
    assert SAMPLE.body_crc == 907060870
    assert SAMPLE.offset_id == "C0A8010200002A9F0000011F71FB04CB"


def test_field_positions() -> None:
    def at(position: int, size: int) -> int:
        return int.from_bytes(GOLDEN[position : position + size], "big")

    assert at(record.QUEUE_OFFSET_AT, 8) == 5
    assert at(record.LOG_OFFSET_AT, 8) == 1234567890123
    assert at(record.STORED_MS_AT, 8) == 1700000000123
    assert at(record.BODY_AT, 4) == 5
    assert len(Record(topic="", body=b"").encode()) == record.FIXED_BYTES


@given(records())
def test_there_and_back(one: Record) -> None:
    encoded = one.encode()
    assert len(encoded) == one.size == record.size_at(encoded)
    assert decode(encoded) == one
    magic = int.from_bytes(encoded[4:8], "big", signed=True)
    assert magic == (record.MAGIC_V2 if len(one.topic.encode()) > 127 else record.MAGIC_V1)


@given(st.lists(records(), max_size=4))
def test_back_to_back(many: list[Record]) -> None:
    assert list(iter_records(b"".join(one.encode() for one in many))) == many


def test_good_records_come_before_the_bad_one() -> None:
    found = iter_records(GOLDEN + GOLDEN[:50])
    assert next(found) == SAMPLE
    with pytest.raises(RecordError) as caught:
        next(found)
    assert (caught.value.fault, caught.value.position) == (Fault.SHORT, 126)


@given(records(), st.data())
def test_tail_crc_finds_every_changed_byte(one: Record, data: st.DataObject) -> None:
    encoded = bytearray(replace(one, tail_crc=True).encode())
    position = data.draw(st.integers(0, len(encoded) - 1))
    encoded[position] ^= data.draw(st.integers(1, 255))
    try:
        found = decode(encoded)
    except ProtocolError:
        return
    # Only damage to the property that holds the checksum can hide it; the rest is then untouched.
    assert not found.tail_crc
    assert position >= len(encoded) - properties.TAIL_CRC_BYTES


def test_tail_crc_covers_what_stands_before_it() -> None:
    one = replace(SAMPLE, properties="a\x01b", tail_crc=True)
    encoded = one.encode()
    assert encoded.endswith(b"a\x01b\x02" + properties.tail_crc(zlib.crc32(encoded[:-20])))
    assert one.size == len(encoded)
    assert decode(encoded).properties == "a\x01b\x02"
    empty = replace(SAMPLE, properties="", tail_crc=True).encode()
    assert empty[-22:-20] == struct.pack(">h", 20)


def patched(position: int, data: bytes) -> bytes:
    return GOLDEN[:position] + data + GOLDEN[position + len(data) :]


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"", Fault.SHORT),
        (GOLDEN[:7], Fault.SHORT),
        (GOLDEN[:-1], Fault.SHORT),
        (record.blank(500), Fault.BLANK),
        (bytes(100), Fault.MAGIC),
        (patched(0, struct.pack(">i", 90)), Fault.FIELDS),
        (patched(0, struct.pack(">i", -1)), Fault.FIELDS),
        (patched(0, struct.pack(">i", 125)), Fault.FIELDS),
        (patched(record.BODY_AT, struct.pack(">i", -1)), Fault.FIELDS),
        (patched(record.BODY_AT, struct.pack(">i", 1 << 30)), Fault.FIELDS),
        (patched(record.BODY_AT, struct.pack(">i", 4)), Fault.FIELDS),
        (patched(93, b"\xff"), Fault.FIELDS),
        (patched(93, b"\x7f"), Fault.FIELDS),
        (patched(103, b"\xff\xff"), Fault.FIELDS),
        (patched(record.SYS_FLAG_AT, struct.pack(">i", 0x30)), Fault.FIELDS),
        (patched(88, b"j"), Fault.BODY_CRC),
        (patched(record.BODY_CRC_AT, bytes(4)), Fault.BODY_CRC),
    ],
)
def test_damage_is_named(data: bytes, fault: Fault) -> None:
    with pytest.raises(RecordError) as caught:
        decode(data)
    assert caught.value.fault is fault
    if fault is Fault.BODY_CRC:
        decode(data, check_crc=False)


def test_damaged_tail_is_named() -> None:
    encoded = bytearray(replace(SAMPLE, tail_crc=True).encode())
    encoded[record.QUEUE_ID_AT] ^= 1
    with pytest.raises(RecordError) as caught:
        decode(bytes(3) + encoded, 3)
    assert (caught.value.fault, caught.value.position) == (Fault.TAIL_CRC, 3)


@given(st.binary(max_size=300), st.sampled_from([record.MAGIC_V1, record.MAGIC_V2]))
def test_any_bytes_are_read_or_refused(data: bytes, magic: int) -> None:
    for candidate in (data, struct.pack(">ii", len(data) + 8, magic) + data):
        try:
            list(iter_records(candidate, check_crc=False))
        except RecordError:
            pass


@given(records(), st.data())
def test_damaged_records_are_read_or_refused(one: Record, data: st.DataObject) -> None:
    encoded = bytearray(one.encode())
    for _ in range(data.draw(st.integers(1, 4))):
        encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = decode(encoded, check_crc=False)
        found.to_message(bytes_max=1000)
    except ProtocolError:
        pass


def test_bytes_that_are_no_text_do_not_lose_the_record() -> None:
    assert decode(patched(94, b"\xff")).topic == "\ufffdopicTest"


@pytest.mark.parametrize(
    "wrong",
    [
        {"properties": "a\x01" + "b" * 32767},
        {"properties": "a\x01" + "b" * 32750, "tail_crc": True},
        {"born_host": b"12345"},
        {"queue_id": 1 << 31},
        {"log_offset": 1 << 63},
        {"topic": "t" * 40_000},
    ],
)
def test_what_does_not_fit_cannot_be_encoded(wrong: dict[str, object]) -> None:
    with pytest.raises(ProtocolError):
        replace(SAMPLE, **wrong).encode()  # type: ignore[arg-type]


def test_to_message() -> None:
    message = SAMPLE.to_message("b-a")
    assert message.queue == MessageQueue("TopicTest", "b-a", 3)
    assert (message.tags, message.keys, message.body) == ("TagA", ("k1", "k2"), b"hello")
    assert message.message_id == message.offset_id == "C0A8010200002A9F0000011F71FB04CB"
    assert (message.born_host, message.store_host) == ("10.0.0.1:50000", "192.168.1.2:10911")
    assert (message.stored_bytes, message.body_crc, message.log_offset) == (126, 907060870, 1234567890123)
    assert replace(SAMPLE, properties="UNIQ_KEY\x01U\x02").to_message().message_id == "U"


@pytest.mark.parametrize("method", Compression)
def test_to_message_unpacks(method: Compression) -> None:
    packed = replace(SAMPLE, body=compress(b"x" * 5000, method), sys_flag=record.SYS_COMPRESSED | method.value)
    message = packed.to_message()
    assert message.body == b"x" * 5000
    assert message.sys_flag == method.value
    with pytest.raises(ProtocolError, match="longer than"):
        packed.to_message(bytes_max=4999)


def test_length_of_a_batch() -> None:
    assert record.batch_bytes(SAMPLE) is None
    assert record.batch_bytes(replace(SAMPLE, properties="__BATCH#\x010000000300\x02")) == 300
    assert record.batch_bytes(replace(SAMPLE, properties="__BATCH#\x01300\x02")) is None
    assert record.batch_bytes(replace(SAMPLE, properties="a\x01__BATCH#\x02")) is None


def test_a_message_does_not_show_private_properties() -> None:
    stored = Record(
        topic="T", body=b"x", properties="a\x011\x02__HALF_MS#\x015\x02__BATCH#\x010000000100\x02", tail_crc=True
    )
    read = decode(stored.encode())
    assert dict(read.to_message().properties) == {"a": "1"}
    assert read.property_map() == {"a": "1", "__HALF_MS#": "5", "__BATCH#": "0000000100"}
