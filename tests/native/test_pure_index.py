"""The key index: entries and slots as reference/store.md 4 has them."""

from __future__ import annotations

import struct
from types import ModuleType

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kappamq.native.layout import INDEX_PENDING
from kappamq.native.pure_index import ENTRY, index_apply, index_link
from tests.native.conftest import load_kernel


def pending(*rows: tuple[int, int, int]) -> bytes:
    return b"".join(INDEX_PENDING.pack(*row) for row in rows)


def test_entries_are_chained(module: ModuleType) -> None:
    slots = bytearray(4 * 10)
    data = pending((3, 100, 5000), (13, 200, 7999), (3, 300, 8000), (4, 400, 4000))
    entries, position, count, fresh = module.index_apply(slots, data, 0, 1, 100, 0)
    assert [ENTRY.unpack_from(entries, at) for at in range(0, len(entries), 20)] == [
        (3, 100, 0, 0),  # sets the file's begin time
        (13, 200, 2, 1),
        (3, 300, 3, 2),
        (4, 400, 0, 0),  # before the begin time: clipped
    ]
    assert (position, count, fresh) == (len(data), 5, 2)
    assert struct.unpack(">10i", slots) == (0, 0, 0, 3, 4, 0, 0, 0, 0, 0)


def test_a_full_file_stops(module: ModuleType) -> None:
    slots = bytearray(4 * 10)
    data = pending(*[(key, key, 1000) for key in range(5)])
    entries, position, count, _fresh = module.index_apply(slots, data, 0, 1, 3, 1000)
    assert (len(entries), position, count) == (40, 40, 3)
    assert module.index_apply(slots, data, position, count, 3, 1000) == (b"", 40, 3, 0)
    entries, position, count, _fresh = module.index_apply(bytearray(40), data, position, 1, 100, 1000)
    assert (len(entries), position, count) == (60, 100, 4)


def test_slots_that_point_nowhere_count_as_empty(module: ModuleType) -> None:
    for value in (-1, 8, 1 << 30):
        slots = bytearray(struct.pack(">i", value))
        entries, _position, _count, fresh = module.index_apply(slots, pending((5, 1, 1)), 0, 7, 100, 1)
        assert ENTRY.unpack(entries)[3] == 0
        assert fresh == 1
    entries, _position, _count, fresh = module.index_apply(
        bytearray(struct.pack(">i", 7)), pending((5, 1, 1)), 0, 7, 100, 1
    )
    assert ENTRY.unpack(entries)[3] == 7
    assert fresh == 0


def test_time_is_clipped(module: ModuleType) -> None:
    entries, *_ = module.index_apply(bytearray(4), pending((1, 1, (1 << 62)), (1, 1, -5)), 0, 1, 9, 1)
    assert [ENTRY.unpack_from(entries, at)[2] for at in (0, 20)] == [(1 << 31) - 1, 0]


@pytest.mark.parametrize(
    ("slots", "data", "position", "count", "capacity"),
    [
        (bytearray(), b"", 0, 1, 9), (bytearray(3), b"", 0, 1, 9), (bytearray(4), b"x", 0, 1, 9), (bytearray(4), b"x" * 20, 7, 1, 9),
        (bytearray(4), b"x" * 20, 40, 1, 9), (bytearray(4), b"x" * 20, -20, 1, 9), (bytearray(4), b"", 0, 0, 9),
        (bytearray(4), b"", 0, 1, 1 << 31),
    ],
)  # fmt: skip
def test_nonsense_is_refused(
    module: ModuleType, slots: bytearray, data: bytes, position: int, count: int, capacity: int
) -> None:
    with pytest.raises(ValueError):
        module.index_apply(slots, data, position, count, capacity, 0)


ROWS = st.lists(
    st.tuples(
        st.integers(0, (1 << 31) - 1),
        st.integers(0, 1 << 40),
        st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(0, 10**6),
    ),
    max_size=30,
)


@given(
    ROWS,
    st.lists(st.integers(-3, 40), min_size=1, max_size=9),
    st.integers(1, 20),
    st.integers(0, 40),
    st.integers(-5, 10**6),
)
def test_both_do_the_same(
    rows: list[tuple[int, int, int]], slots: list[int], count: int, capacity: int, begin: int
) -> None:
    data = pending(*rows)
    tables = [bytearray(struct.pack(f">{len(slots)}i", *slots)) for _ in range(2)]
    results = [
        apply(table, data, 0, count, capacity, begin)
        for apply, table in zip((index_apply, load_kernel("native").index_apply), tables, strict=True)
    ]
    assert results[0] == results[1]
    assert tables[0] == tables[1]


# -- from entries to slots -------------------------------------------------------------------------------------------------


def entries(*rows: tuple[int, int, int]) -> bytes:
    """(key hash, log offset, previous) of each."""
    return b"".join(ENTRY.pack(key, log_offset, 0, previous) for key, log_offset, previous in rows)


def test_slots_follow_from_entries(module: ModuleType) -> None:
    slots = bytearray(4 * 10)
    data = entries((3, 100, 0), (13, 200, 1), (4, 200, 0), (3, 300, 2))
    assert module.index_link(slots, data, 1, 0) == (5, 300, 2)
    assert struct.unpack(">10i", slots) == (0, 0, 0, 4, 3, 0, 0, 0, 0, 0)
    assert module.index_link(slots, entries((5, 300, 0)), 5, 300) == (6, 300, 1)
    assert module.index_link(slots, b"", 6, 300) == (6, 300, 0)


@pytest.mark.parametrize("bad", [(1, 150, 0), (-1, 250, 0), (1, 250, 3), (1, 250, -1), (1, -5, 0)])
def test_it_ends_at_an_entry_that_cannot_be(module: ModuleType, bad: tuple[int, int, int]) -> None:
    slots = bytearray(4 * 10)
    data = entries((3, 100, 0), (4, 200, 0), bad, (5, 300, 0))
    assert module.index_link(slots, data, 1, 0) == (3, 200, 2)
    assert struct.unpack(">10i", slots) == (0, 0, 0, 1, 2, 0, 0, 0, 0, 0)
    assert module.index_link(slots, bytes(40), 1, 0) == (1, 0, 0), "zeros are nothing that was written"
    assert module.index_link(slots, entries((1, 7, 0)), 1, 8) == (1, 8, 0)


def test_many_at_once(module: ModuleType) -> None:
    rows = [(number * 7919 % 1_000_003, number * 10, 0) for number in range(1, 8193)]
    slots = bytearray(4 * 101)
    assert module.index_link(slots, entries(*rows), 1, 0) == (8193, 81_920, 101)
    expected = [0] * 101
    for number, (key, _offset, _previous) in enumerate(rows, 1):
        expected[key % 101] = number
    assert struct.unpack(">101i", slots) == tuple(expected)


@pytest.mark.parametrize(
    ("slots", "data", "number"),
    [
        (bytearray(), b"", 1), (bytearray(3), b"", 1), (bytearray(4), b"x", 1), (bytearray(4), b"", 0),
        (bytearray(4), b"", (1 << 31) - 1 + 1), (bytearray(4), bytes(20), (1 << 31) - 1),
    ],
)  # fmt: skip
def test_nonsense_is_not_linked(module: ModuleType, slots: bytearray, data: bytes, number: int) -> None:
    with pytest.raises(ValueError):
        module.index_link(slots, data, number, 0)


@example(steps=[(1, 0, 0), (0, 0, 0)], slots=[0], number=1, last=0)
@given(
    st.lists(
        st.tuples(st.integers(-2, (1 << 31) - 1), st.integers(-1, 3), st.integers(-1, 12) | st.just(0)), max_size=30
    ),
    st.lists(st.integers(-3, 40), min_size=1, max_size=9),
    st.integers(1, 20),
    st.integers(-5, 5),
)
def test_both_link_the_same(steps: list[tuple[int, int, int]], slots: list[int], number: int, last: int) -> None:
    at, rows = last, []
    for key, step, previous in steps:
        at += step
        rows.append((key, at, previous))
    tables = [bytearray(struct.pack(f">{len(slots)}i", *slots)) for _ in range(2)]
    results = [
        link(table, entries(*rows), number, last)
        for link, table in zip((index_link, load_kernel("native").index_link), tables, strict=True)
    ]
    assert results[0] == results[1]
    assert tables[0] == tables[1]
