"""One record: golden bytes, hashes, checks, and how far a scan trusts a log."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kappamq.native.layout import HEAD, MAGIC_BLANK, SCAN_BLANK, SCAN_DAMAGED, SCAN_EMPTY, SCAN_MORE
from kappamq.native.pure_record import (
    batch_bytes,
    encode,
    hash_on,
    index_hash,
    intact,
    java_hash,
    parse,
    property_values,
    scan,
    split_batch,
    topic_field,
)
from kappamq.protocol.records.record import Fault, RecordError, decode
from tests.native.conftest import NOW, load_kernel
from tests.native.requests import member

# reference/message.md 11, made by the original codec
GOLDEN = bytes.fromhex(
    "0000007edaa320a73610a686000000030000000700000000000000050000011f71fb04cb000000000000018bcfe568000a0000010000c350"
    "0000018bcfe5687bc0a8010200002a9f0000000100000000000000000000000568656c6c6f09546f70696354657374"
    "001554414753015461674102" + "4b455953016b31206b3202"
)
BORN = bytes([10, 0, 0, 1]) + (50000).to_bytes(4, "big")
STORE = bytes([192, 168, 1, 2]) + (10911).to_bytes(4, "big")


def golden(**changed: object) -> bytes | None:
    fields: dict[str, object] = {
        "topic": b"TopicTest", "queue_id": 3, "flag": 7, "sys_flag": 0, "born_ms": 1700000000000, "born": BORN, "reconsume_times": 1,
        "prepared": 0, "body": b"hello", "properties": b"TAGS\x01TagA\x02KEYS\x01k1 k2\x02", "now_ms": 1700000000123,
        "queue_offset": 5, "log_offset": 1234567890123, "store_host": STORE, "tail_crc": False,
    }  # fmt: skip
    fields |= changed
    magic, topic = topic_field(fields.pop("topic"))  # type: ignore[arg-type]
    return encode(magic=magic, **{**fields, "topic": topic})  # type: ignore[arg-type]


def test_golden_record() -> None:
    assert golden() == GOLDEN
    fields = parse(GOLDEN, 0, len(GOLDEN))
    assert fields == (
        126,
        3,
        5,
        1234567890123,
        0,
        1700000000123,
        88,
        5,
        b"TopicTest",
        b"TAGS\x01TagA\x02KEYS\x01k1 k2\x02",
    )


def test_both_kernels_accept_the_golden_record(module: ModuleType) -> None:
    assert module.scan(GOLDEN, 1234567890123, True) == (126, SCAN_MORE, 1, 1700000000123)
    assert module.scan(GOLDEN, 1234567890124, True)[:2] == (0, SCAN_DAMAGED)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", 0),
        ("TagA", 2598919),
        ("中文", 646394),
        ("😀", 1772899),
        ("TopicTest#k1", 2746024),
        ("polygenelubricants", -(1 << 31)),
    ],
)
def test_java_hash(native: ModuleType, text: str, value: int) -> None:
    assert java_hash(text.encode()) == native.java_hash(text.encode()) == value
    assert index_hash(value & 0xFFFFFFFF) == (0 if value == -(1 << 31) else abs(value))


@given(
    st.binary(max_size=60)
    | st.lists(
        st.sampled_from([b"a", b"\xe4", b"\xb8", b"\xad", b"\xf0\x9f", b"\xed\xa0\x80", b"\xc3\xa9", b"12345678"])
    ).map(b"".join)
)
def test_hash_of_any_bytes(data: bytes) -> None:
    units = data.decode("utf-8", "replace").encode("utf-16-be")
    value = 0
    for at in range(0, len(units), 2):
        value = (value * 31 + int.from_bytes(units[at : at + 2], "big")) & 0xFFFFFFFF
    assert java_hash(data) & 0xFFFFFFFF == value
    assert load_kernel("native").java_hash(data) & 0xFFFFFFFF == value


@given(st.text(max_size=3000), st.text(st.characters(codec="ascii"), max_size=200))
def test_a_hash_can_go_on(first: str, second: str) -> None:
    assert hash_on(hash_on(0, first.encode()), second.encode()) == hash_on(0, (first + second).encode())


def test_crc_of_every_length(native: ModuleType) -> None:
    data = bytes(range(256)) * 3
    for start in (0, 1, 7):
        for size in range(600):
            piece = data[start : start + size]
            assert native.crc32(piece) == native.crc32(piece, portable=True) == zlib.crc32(piece), size
    assert native.crc32(b"hello") & 0x7FFFFFFF == 907060870


def test_tail_crc_is_written_backwards() -> None:
    record = golden(tail_crc=True)
    assert record is not None
    assert record[-20:-11] == b"__CRC32#\x01"
    assert record[-1] == 2
    assert int(record[-11:-1][::-1]) == zlib.crc32(record[:-20]) & 0x7FFFFFFF


def test_properties_are_closed_before_the_tail() -> None:
    record = golden(tail_crc=True, properties=b"a\x01b")
    assert record is not None
    assert b"a\x01b\x02__CRC32#" in record
    assert golden(properties=b"a\x01b").endswith(b"a\x01b\x02")  # type: ignore[union-attr]


def test_properties_have_a_limit() -> None:
    assert golden(properties=b"x" * 32766) is not None
    assert golden(properties=b"x" * 32767) is None
    assert golden(properties=b"x" * 32766 + b"\x02") is not None
    assert golden(properties=b"x" * 32746, tail_crc=True) is not None
    assert golden(properties=b"x" * 32747, tail_crc=True) is None


@pytest.mark.parametrize("born", [BORN, bytes(20)])
@pytest.mark.parametrize("store", [STORE, bytes(20)])
@pytest.mark.parametrize("topic", [b"t", b"t" * 127, b"t" * 128, b"t" * 300])
@pytest.mark.parametrize("tail", [True, False])
def test_every_shape_is_read_back(module: ModuleType, born: bytes, store: bytes, topic: bytes, tail: bool) -> None:
    record = golden(born=born, store_host=store, topic=topic, tail_crc=tail, log_offset=77)
    assert record is not None
    assert module.scan(record, 77, True) == (len(record), SCAN_MORE, 1, 1700000000123)
    fields = parse(record, 0, len(record))
    assert not isinstance(fields, int)
    assert fields[8] == topic
    assert fields[0] == len(record)


def test_any_flipped_bit_is_found(module: ModuleType) -> None:
    record = golden(tail_crc=True, log_offset=0)
    assert record is not None
    # Without its name the tail is no tail: no CRC covers that.
    for at in (*range(len(record) - 20), *range(len(record) - 11, len(record))):
        damaged = bytearray(record)
        damaged[at] ^= 4
        assert module.scan(damaged, 0, True)[0] == 0, at
        with pytest.raises(RecordError):
            record_at_zero(bytes(damaged))
    assert scan(record, 0, True)[0] == len(record)


def record_at_zero(data: bytes) -> None:
    """What the protocol's reader makes of it: it must agree with the scan."""
    if decode(data).log_offset != 0:
        raise RecordError(Fault.FIELDS, 0)


def test_every_cut_asks_for_more(module: ModuleType) -> None:
    record = golden(tail_crc=True, log_offset=0)
    assert record is not None
    for end in range(len(record)):
        assert module.scan(record[:end], 0, True)[:2] == (0, SCAN_MORE)
    following = golden(tail_crc=True, log_offset=len(record))
    assert following is not None
    assert module.scan(record + following[:-1], 0, True)[:3] == (len(record), SCAN_MORE, 1)


def test_ends(module: ModuleType) -> None:
    record = golden(log_offset=0)
    assert record is not None
    blank = (100).to_bytes(4, "big") + (MAGIC_BLANK & 0xFFFFFFFF).to_bytes(4, "big")
    assert module.scan(record + blank, 0, True)[:3] == (len(record), SCAN_BLANK, 1)
    assert module.scan(record + bytes(100), 0, True)[:3] == (len(record), SCAN_EMPTY, 1)
    assert module.scan(record + b"x" * 100, 0, True)[:3] == (len(record), SCAN_DAMAGED, 1)
    assert module.scan(b"", 0, True) == (0, SCAN_MORE, 0, 0)


def batch(*, count: int = 3) -> list[bytes]:
    """Records of a batch whose first member says how long it is."""
    records: list[bytes] = []
    for total in (0, None):
        if total is None:
            total = sum(map(len, records))
            records = []
        at = 0
        for number in range(count):
            text = b"__BATCH#\x01%010d\x02" % total if number == 0 else b""
            record = golden(properties=text, log_offset=at, tail_crc=True)
            assert record is not None
            records.append(record)
            at += len(record)
    return records


def test_half_a_batch_is_nothing(module: ModuleType) -> None:
    records = batch()
    whole = b"".join(records)
    assert module.scan(whole, 0, True)[:3] == (len(whole), SCAN_MORE, 3)
    for end in range(1, len(whole)):
        assert module.scan(whole[:end], 0, True)[:3] == (0, SCAN_MORE, 0)
    two = b"".join(records[:2])
    blank = (100).to_bytes(4, "big") + (MAGIC_BLANK & 0xFFFFFFFF).to_bytes(4, "big")
    assert module.scan(two + bytes(200), 0, True)[:3] == (0, SCAN_DAMAGED, 0)
    assert module.scan(two + blank, 0, True)[:3] == (0, SCAN_DAMAGED, 0)


@pytest.mark.parametrize(
    ("text", "length"),
    [
        (b"", 0), (b"__BATCH#\x010000000042\x02", 42), (b"a\x01b\x02__BATCH#\x010000000042\x02", 42), (b"a__BATCH#\x010000000042\x02", 0),
        (b"__BATCH#\x01000000042\x02", 0), (b"__BATCH#\x01-000000042\x02", 0), (b"__BATCH#\x010000000042", 0),
        (b"__BATCH#\x010000000042\x02a\x01b\x02", 0), (b"__BATCH#\x010000000042\x02__CRC32#\x010000000000\x02", 42),
        (b"__BATCH#\x010000000042\x02x__CRC32#\x010000000000\x02", 0), (b"__CRC32#\x010000000000\x02__BATCH#\x010000000042\x02", 42),
    ],
)  # fmt: skip
def test_batch_mark(text: bytes, length: int) -> None:
    assert batch_bytes(text) == length


@pytest.mark.parametrize(
    "properties", [b"x__CRC32#\x010123456789\x02", b"a\x01b\x02x__CRC32#\x010123456789\x02", b"a\x01__CRC32#\x010123456789\x02"]
)  # fmt: skip
def test_a_name_that_ends_like_the_tail_crc_is_none(module: ModuleType, properties: bytes) -> None:
    record = golden(properties=properties, log_offset=0)
    assert record is not None
    assert module.scan(record, 0, True)[:3] == (len(record), SCAN_MORE, 1)


@pytest.mark.parametrize("at", range(1, 12))
def test_every_byte_of_the_tail_crc_counts(module: ModuleType, at: int) -> None:
    record = bytearray(golden(tail_crc=True, log_offset=0) or b"")
    record[-at] ^= 0x04
    assert module.scan(record, 0, True)[:2] == (0, SCAN_DAMAGED)


@pytest.mark.parametrize("claim", [1, 200, 10_000, 9_999_999_999])
def test_a_length_that_never_was_that_of_a_batch_hides_nothing(module: ModuleType, claim: int) -> None:
    """A Java broker stores `__BATCH#` as a producer sent it, or as a copy of our record carried it along."""
    mark = b"__BATCH#\x01%010d\x02" % claim
    log = b""
    for number in range(6):
        record = golden(properties=mark if number == 2 else b"", log_offset=len(log), now_ms=1000 + number)
        assert record is not None
        log += record
    assert module.scan(log, 0, True)[:3] == (len(log), SCAN_MORE, 6)
    assert module.scan(log + bytes(200), 0, True) == (len(log), SCAN_EMPTY, 6, 1005)


def test_parse_says_why_not() -> None:
    assert parse(GOLDEN, 0, 7) == SCAN_MORE
    assert parse(GOLDEN, 0, 125) == SCAN_MORE
    assert parse(bytes(8), 0, 8) == SCAN_EMPTY
    for at, value in (
        (0, b"\x00\x00\x00\x5a"),
        (12, b"\xff"),
        (20, b"\x7f"),
        (84, b"\xff"),
        (84, b"\x00\x00\x00\x25"),
        (93, b"\xff"),
    ):
        damaged = GOLDEN[:at] + value + GOLDEN[at + len(value) :]
        assert parse(damaged, 0, len(damaged)) == SCAN_DAMAGED, at
    assert not intact(GOLDEN[:90] + b"x" + GOLDEN[91:], 0, 126, 88, 5, b"")


@given(st.binary(max_size=300), st.integers(0, 200))
def test_scan_of_anything(data: bytes, at: int) -> None:
    damaged = (GOLDEN * 3)[:at] + data
    for check in (True, False):
        assert load_kernel("native").scan(damaged, 1234567890123, check) == scan(damaged, 1234567890123, check)


def test_property_text_as_java_reads_it() -> None:
    text = b"a\x01\x02\x01b\x02k\x01v\x02x\x01y\x01z\x02last\x01q"
    assert property_values(text) == {b"k": b"v", b"x": b"y\x01z", b"last": b"q"}


def test_golden_batch_member(module: ModuleType) -> None:
    data = bytes.fromhex("0000001c 00000000 00000000 00000000 00000002 6231 0004 6b017602")
    assert member(b"b1", b"k\x01v\x02") == data
    assert module.split_batch(data, True) == [(0, b"b1", b"k\x01v\x02")]
    assert module.split_batch(data * 2, False) == [(0, b"b1", b"k\x01v\x02")] * 2


def test_batches_that_do_not_add_up(module: ModuleType) -> None:
    data = member(b"b1", b"k\x01v\x02")
    assert module.split_batch(b"", False) is None
    for end in range(1, len(data)):
        assert module.split_batch(data[:end], False) is None
    for at in (0, 3, 16, 19, 22):
        assert module.split_batch(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :], False) is None, at
    assert module.split_batch(member(b""), False) is None
    special = member(b"x", b"DELAY\x013\x02")
    assert module.split_batch(special, True) is None
    assert module.split_batch(special, False) == [(0, b"x", b"DELAY\x013\x02")]
    assert split_batch(member(b"x", b"a\x01\xff\x02"), True) is None
    assert module.split_batch(member(b"x") * 8192, True) is not None
    assert module.split_batch(member(b"x") * 8193, True) is None
    assert module.plain_batch(member(b"x") * 8192) == (8192, 0)
    assert module.plain_batch(data + member(b"x", b"long\x01value\x02") + data) == (3, 11)
    for wrong in (b"", special, data[:-1], data + special, member(b"x", b"a\x01\xff\x02"), member(b"x") * 8193):
        assert module.plain_batch(wrong) is None


def test_head_sizes() -> None:
    assert {hosts: head.size for hosts, head in HEAD.items()} == {(8, 8): 88, (20, 8): 100, (8, 20): 100, (20, 20): 112}


@pytest.mark.parametrize("size", [(32 << 10) - 1, 32 << 10, (32 << 10) + 1, 100_003, 256 << 10])
def test_checksums_of_large_bodies(make: Callable[..., Any], module: ModuleType, size: int) -> None:
    """The compiled kernel joins them from those of the parts."""
    body = bytes(range(251)) * (size // 251 + 1)
    body = body[:size]
    kernel = make(tail_crc=True)
    kernel.append("TopicTest", 3, 7, 0, NOW, BORN, 1, 0, body, b"TAGS\x01TagA\x02", NOW)
    start, data = kernel.take()
    record = decode(bytes(data))  # zlib's CRCs
    assert (record.body, record.tail_crc) == (body, True)
    whole = golden(body=body, tail_crc=True, log_offset=start, now_ms=NOW)
    assert whole is not None
    for good in (bytes(data), whole):
        assert module.scan(good, start, True)[:3:2] == (len(good), 1)
        for at in (9, 21, 100, 100 + size // 2, len(good) - 60):  # body CRC, queue offset, body, behind it
            bad = bytearray(good)
            bad[at] ^= 0x40
            assert module.scan(bad, start, True)[0] == 0, at
