"""The key index: entries and slots as reference/store.md 4 has them."""

from __future__ import annotations

import struct
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kappamq.native.layout import INDEX_PENDING
from kappamq.native.pure_index import ENTRY, index_apply
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
