"""Offset ids and unique ids."""

from __future__ import annotations

import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kappamq.errors import ProtocolError
from kappamq.protocol.records.ids import OffsetId, UniqueIds, could_be_id, offset_id, parse_offset_id

hosts = st.binary(min_size=4, max_size=4) | st.binary(min_size=16, max_size=16)


def test_golden_offset_id() -> None:
    text = "C0A8010200002A9F0000011F71FB04CB"
    assert offset_id(bytes([192, 168, 1, 2]), 10911, 1234567890123) == text
    assert parse_offset_id(text) == OffsetId(bytes([192, 168, 1, 2]), 10911, 1234567890123)


@given(hosts, st.integers(0, 65535), st.integers(0, (1 << 63) - 1))
def test_offset_id_there_and_back(host: bytes, port: int, log_offset: int) -> None:
    text = offset_id(host, port, log_offset)
    assert len(text) == 2 * len(host) + 24
    assert parse_offset_id(text) == parse_offset_id(text.lower()) == OffsetId(host, port, log_offset)


@pytest.mark.parametrize(
    "text", ["", "00", "x" * 32, "0" * 33, "  " * 16, "00 " * 10 + "00", "F" * 32, "00000000" + "7" * 24]
)
def test_not_an_offset_id(text: str) -> None:
    with pytest.raises(ProtocolError):
        parse_offset_id(text)


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        parse_offset_id(text)
    except ProtocolError:
        pass


def test_unique_id_parts() -> None:
    now = datetime.datetime(2024, 5, 2, 0, 0, 1)
    ids = UniqueIds(bytes([10, 0, 0, 1]), process_id=0x12345, constant=0xCAFEBABE)
    now_ms = int(now.timestamp() * 1000)
    elapsed = 86_401_000
    assert ids.next(now_ms) == f"0A0000012345CAFEBABE{elapsed:08X}0000"
    assert ids.next(now_ms) == f"0A0000012345CAFEBABE{elapsed:08X}0001"


def test_month_changes_and_the_clock_goes_back_a_little() -> None:
    ids = UniqueIds(bytes(4), 1, 1)
    june = int(datetime.datetime(2024, 6, 1).timestamp() * 1000)
    assert ids.next(june - 1000)[20:28] != "00000000"
    assert ids.next(june)[20:28] == "00000000"
    assert ids.next(june - 999_999)[20:28] == "00000000"
    may = int(datetime.datetime(2024, 5, 1).timestamp() * 1000)
    assert ids.next(may + 5)[20:28] == "00000005"


def test_counter_wraps_without_two_equal_ids() -> None:
    ids = UniqueIds(bytes(16), 1, 1)
    seen = {ids.next(1_700_000_000_000) for _ in range(65536)}
    assert len(seen) == 65536
    assert all(len(one) == 56 for one in seen)
    assert ids.next(1_700_000_000_000) in seen
    assert ids.next(1_700_000_000_001) not in seen


@pytest.mark.parametrize("host", [b"", b"123", bytes(17)])
def test_wrong_hosts(host: bytes) -> None:
    with pytest.raises(ProtocolError, match="4 or 16 bytes"):
        offset_id(host, 1, 1)
    with pytest.raises(ProtocolError, match="4 or 16 bytes"):
        UniqueIds(host, 1, 1)


def test_what_has_the_form_of_an_id() -> None:
    assert could_be_id("0aF" + "0" * 29)
    assert could_be_id("0" * 56)
    for text in ("", "zzz", "0" * 31, "0" * 33, "z" * 32, " 0" * 16):
        assert not could_be_id(text)


@pytest.mark.parametrize("host", [bytes(4), bytes(16)])
def test_several_ids_at_once_are_those_that_would_come_one_by_one(host: bytes) -> None:
    together, alone = UniqueIds(host, 7, 9), UniqueIds(host, 7, 9)
    for count in (0, 1, 5, 40_000, 40_000):
        assert together.several(1_700_000_000_000, count) == [alone.next(1_700_000_000_000) for _ in range(count)]
