"""Rows of a table as batches: the same for both kernels, and what the protocol's own encoder makes."""

from __future__ import annotations

import itertools
import struct
import zlib
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kappamq.native.layout import PROPERTIES_BYTES_MAX, BadRow, Column, MapInput
from kappamq.protocol.records import batch, properties
from tests.native.conftest import load_kernel

values = st.none() | st.text("aß\2 \1", max_size=5)
PREFIX = bytes(range(10))


def column(texts: list[bytes | None]) -> Column:
    """Texts as Arrow keeps them; a null need not be empty in the data."""
    ends, data = [0], b""
    for text in texts:
        data += b"??" if text is None else text
        ends.append(len(data))
    valid = bytearray(-(-len(texts) // 8))
    for row, text in enumerate(texts):
        valid[row // 8] |= (text is not None) << row % 8
    return (None if None not in texts else bytes(valid)), struct.pack(f"={len(ends)}i", *ends), data


def map_column(rows: list[dict[bytes, bytes | None] | None]) -> MapInput:
    ends, names, found = [0], [], []
    for row in rows:
        names += list(row or {})
        found += list((row or {}).values())
        ends.append(len(names))
    valid = sum((row is not None) << number for number, row in enumerate(rows))
    bits = valid.to_bytes(-(-len(rows) // 8), "little")
    return (bits if None in rows else None), struct.pack(f"={len(ends)}i", *ends), column(list(names)), column(found)


def encoded(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def unpacked(made: Column) -> list[bytes]:
    ends = struct.unpack(f"={len(made[1]) // 4}i", made[1])
    return [made[2][start:end] for start, end in itertools.pairwise(ends)]


def rows(*numbers: int) -> bytes:
    return struct.pack(f"={len(numbers)}i", *numbers)


@given(
    st.lists(
        st.tuples(values, values, st.none() | st.dictionaries(st.text("ab\1", max_size=2), values, max_size=3)),
        max_size=10,
    )
)
def test_both_kernels_agree(
    table: list[tuple[str | None, str | None, dict[str, str | None] | None]],
) -> None:
    named = [
        (b"KEYS", column([encoded(row[0]) for row in table])),
        (b"TAGS", column([encoded(row[1]) for row in table])),
    ]
    mapped = map_column(
        [None if row[2] is None else {name.encode(): encoded(value) for name, value in row[2].items()} for row in table]
    )

    def made(kind: str) -> object:
        try:
            return load_kernel(kind).property_texts(len(table), named, mapped, [b"a"])
        except BadRow as error:
            return str(error), error.row

    found = made("native")
    assert found == made("twin")
    if isinstance(found, tuple) and len(found) == 3:
        for row, text in zip(table, unpacked(found), strict=True):
            wanted = {name: value for name, value in (("KEYS", row[0]), ("TAGS", row[1])) if value}
            wanted |= {name: value for name, value in (row[2] or {}).items() if name != "a" and value}
            assert properties.decode(text.decode()) == {name: value for name, value in wanted.items() if value}


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ([{b"x": b"y"}, {b"x": b""}], "row 1 cannot be a message: a property has an empty name or value"),
        ([{b"x": None}], "row 0 .* empty name or value"),
        ([{b"": b"y"}], "row 0 .* empty name or value"),
        ([None, {b"x\1": b"y"}], "row 1 .* separator"),
        ([{b"x\2": b"y"}], "row 0 .* separator"),
        ([{b"x": b"y\2"}], "row 0 .* separator"),
        ([{}, {b"x": b"y" * PROPERTIES_BYTES_MAX}], f"row 1 .* more than {PROPERTIES_BYTES_MAX} bytes"),
    ],
)
def test_a_row_that_cannot_be_a_message_is_named(
    module: ModuleType, table: list[dict[bytes, bytes | None] | None], told: str
) -> None:
    with pytest.raises(BadRow, match=told):
        module.property_texts(len(table), [], map_column(table), [])


def test_a_batch_is_what_the_protocol_reads(module: ModuleType) -> None:
    bodies, texts = column([b"a", b"bb", b"ccc"]), column([b"x\1y\2", b"", b"z\1z\2"])
    body, taken = module.batch_body(bodies, texts, rows(2, 0), 0, 1000, 10, PREFIX, 5)
    assert taken == 2
    first, second = batch.split(body)
    assert (first.body, second.body) == (b"ccc", b"a")
    unique = (PREFIX + (7).to_bytes(6, "big")).hex().upper()
    assert properties.decode(first.properties) == {"UNIQ_KEY": unique, "z": "z"}
    plain, _ = module.batch_body(bodies, texts, rows(0, 1, 2), 0, 1000, 10, b"", 0)
    assert plain == batch.encode([batch.Member(b"a", "x\1y\2"), batch.Member(b"bb"), batch.Member(b"ccc", "z\1z\2")])


def test_a_batch_ends_where_it_is_full(module: ModuleType) -> None:
    bodies, texts = column([b"x" * 100] * 5), column([b""] * 5)
    everything = rows(0, 1, 2, 3, 4)
    assert module.batch_body(bodies, texts, everything, 0, 122 * 2, 10, b"", 0)[1] == 2
    assert module.batch_body(bodies, texts, everything, 2, 122 * 2 + 121, 10, b"", 0)[1] == 4
    assert module.batch_body(bodies, texts, everything, 0, 1, 10, b"", 0)[1] == 1, "at least one, however large"
    assert module.batch_body(bodies, texts, everything, 1, 10_000, 3, b"", 0)[1] == 4
    assert module.batch_body(bodies, texts, everything, 5, 10_000, 3, b"", 0) == (b"", 5)


def test_ids_count_on_over_six_bytes(module: ModuleType) -> None:
    bodies, texts = column([b"x"] * 2), column([b""] * 2)
    body, _ = module.batch_body(bodies, texts, rows(0, 1), 0, 1000, 10, PREFIX, (1 << 48) - 1)
    found = [properties.decode(member.properties)["UNIQ_KEY"][20:] for member in batch.split(body)]
    assert found == ["F" * 12, "0" * 12]


def test_columns_that_cannot_be_are_refused(module: ModuleType) -> None:
    good = column([b"a"])
    outside = (None, struct.pack("=2i", 0, 9), b"abc")
    backwards = (None, struct.pack("=2i", 2, 1), b"abc")
    for wrong in (outside, backwards):
        with pytest.raises(ValueError, match="does not lie within the data"):
            module.property_texts(1, [(b"x", wrong)], None, [])
        with pytest.raises(ValueError, match="does not lie within the data"):
            module.batch_body(wrong, good, rows(0), 0, 100, 10, b"", 0)
    for row in (-1, 1):
        with pytest.raises(ValueError, match="does not lie within the data"):
            module.batch_body(good, good, rows(row), 0, 100, 10, b"", 0)
    empty = (None, b"", b"")
    for bodies, texts in ((empty, empty), (empty, good), (good, empty)):
        with pytest.raises(ValueError, match="has 0 offsets"):
            module.batch_body(bodies, texts, rows(), 0, 100, 10, b"", 0)
    with pytest.raises(ValueError, match="a column of 3 rows has 2 offsets"):
        module.property_texts(3, [(b"x", good)], None, [])
    with pytest.raises(ValueError, match="validity bits"):
        module.property_texts(1, [(b"x", (b"", good[1], good[2]))], None, [])
    with pytest.raises(ValueError, match="validity bits"):
        module.property_texts(2, [], (None, rows(0), good, good), [])
    with pytest.raises(ValueError, match="does not lie within the data"):
        module.property_texts(1, [], (None, rows(0, 2), good, good), [])
    with pytest.raises(ValueError, match="10 bytes, or none"):
        module.batch_body(good, good, rows(0), 0, 100, 10, b"123", 0)
    with pytest.raises(BadRow, match=r"row 0 .* more than"):
        module.batch_body(good, column([b"x" * PROPERTIES_BYTES_MAX]), rows(0), 0, 100, 10, PREFIX, 0)


@given(
    st.lists(st.tuples(st.binary(min_size=1, max_size=40), st.sampled_from(["", "x\1y\2"])), min_size=1, max_size=20)
)
def test_a_checksum_is_the_sum_over_all_bodies(members: list[tuple[bytes, str]]) -> None:
    body = batch.encode([batch.Member(*member) for member in members])
    for kind in ("native", "twin"):
        assert load_kernel(kind).batch_checksum(body) == sum(zlib.crc32(content) for content, _ in members)


def test_what_is_no_batch_has_no_checksum(module: ModuleType) -> None:
    body = batch.encode([batch.Member(b"abc", "x\1y\2")])
    for wrong in (b"", body[:-1], body + b"x", b"\xff" * 40):
        with pytest.raises(ValueError, match="the lengths of a batch do not fit"):
            module.batch_checksum(wrong)


@given(st.lists(st.text() | st.binary(), max_size=20))
def test_texts_and_bytes_become_a_column(given_values: list[str | bytes]) -> None:
    made = load_kernel("native").column_of(given_values)
    assert made == load_kernel("twin").column_of(given_values)
    assert made[0] is None
    assert unpacked(made) == [value if isinstance(value, bytes) else value.encode() for value in given_values]


def test_a_text_that_is_no_text_is_no_column(module: ModuleType) -> None:
    assert module.column_of(()) == (None, struct.pack("=i", 0), b"")
    with pytest.raises(UnicodeEncodeError):
        module.column_of(["fine", "\ud800"])
    with pytest.raises((TypeError, AttributeError)):
        module.column_of([7])
