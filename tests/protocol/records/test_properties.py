"""Property texts as Java reads and writes them, and the two properties of our own making."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kappamq.errors import ProtocolError
from kappamq.protocol.records import properties

parts = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1, max_size=10)


def test_golden_text() -> None:
    text = "a\x01\x02\x01b\x02k\x01v\x02x\x01y\x01z\x02last\x01q"
    assert properties.decode(text) == {"k": "v", "x": "y\x01z", "last": "q"}


@given(st.dictionaries(parts, parts))
def test_there_and_back(pairs: dict[str, str]) -> None:
    text = properties.encode(pairs)
    assert properties.decode(text) == pairs
    assert properties.decode(text.removesuffix("\x02")) == pairs
    for name, value in pairs.items():
        assert properties.get(text, name) == value


@given(st.text(st.sampled_from("ab\x01\x02")))
def test_any_text_is_read(text: str) -> None:
    pairs = properties.decode(text)
    assert all(name and value for name, value in pairs.items())
    assert properties.decode(properties.encode(pairs)) == pairs
    assert properties.get(text, "nothing") is None


def test_last_of_equal_names_wins() -> None:
    assert properties.decode("a\x011\x02a\x012\x02") == {"a": "2"}


@pytest.mark.parametrize("pair", [{"a\x01": "b"}, {"a\x02": "b"}, {"a": "b\x02"}])
def test_separators_inside_are_refused(pair: dict[str, str]) -> None:
    with pytest.raises(ProtocolError, match="contains a separator"):
        properties.encode(pair)


def test_tail_crc_digits_are_turned_round() -> None:
    assert properties.tail_crc(907060870) == b"__CRC32#\x010780607090\x02"
    assert properties.tail_crc(12) == b"__CRC32#\x012100000000\x02"
    assert properties.TAIL_CRC_BYTES == 20


@given(st.integers(0, 0x7FFFFFFF), st.binary(max_size=30))
def test_tail_crc_there_and_back(crc: int, before: bytes) -> None:
    assert properties.has_tail_crc(properties.tail_crc(crc))
    assert properties.has_tail_crc(before + b"\x02" + properties.tail_crc(crc))
    assert properties.has_tail_crc(before + properties.tail_crc(crc)) == (not before or before.endswith(b"\x02"))


@pytest.mark.parametrize(
    "data", [b"", b"__CRC32#\x01123456789\x02", b"x__CRC32#\x010123456789\x02", b"a\x01__CRC32#\x010123456789\x02"]
)
def test_not_a_tail_crc(data: bytes) -> None:
    assert not properties.has_tail_crc(data)


@pytest.mark.parametrize(
    ("text", "length"),
    [
        ("", None),
        ("__BATCH#\x010000000042\x02", 42),
        ("a\x01b\x02__BATCH#\x010000000042\x02", 42),
        ("a__BATCH#\x010000000042\x02", None),
        ("__BATCH#\x010000000042", None),
        ("__BATCH#\x01000000042\x02", None),
        ("__BATCH#\x01000000004x\x02", None),
        ("__BATCH#\x010000000042\x02a\x01b\x02", None),
    ],
)
def test_the_mark_of_a_batch_is_the_last_property(text: str, length: int | None) -> None:
    assert properties.opens_batch(text) == length


def test_batch_length_has_a_fixed_width() -> None:
    assert properties.batch_bytes(1234) == "0000001234"
    for wrong in (-1, 10**10):
        with pytest.raises(ProtocolError):
            properties.batch_bytes(wrong)


def test_reserved_names() -> None:
    assert {"KEYS", "TAGS", "__CRC32#", "__BATCH#", "UNIQ_KEY", "1ST_POP_TIME"} <= properties.RESERVED
    assert not {"\x01", "\x02", "__RMQ.TRANSIENT."} & properties.RESERVED
