"""What is due next, from two sides, in one order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kappamq.broker.timers.upcoming import PACKED, Bucket, Timer, Upcoming

T = 1_700_000_000_000
TIMERS = st.builds(Timer, st.integers(T, T + 30), st.integers(0, 50), st.just(100), st.just(1))


def buckets(timers: list[Timer]) -> list[Bucket]:
    """As a chain is read: within a millisecond the last one first."""
    found = []
    for due in sorted({timer.due_ms for timer in timers}):
        data = bytearray()
        for timer in sorted((timer for timer in timers if timer.due_ms == due), reverse=True):
            data += PACKED.pack(*timer[1:])
        found.append(Bucket(due, data))
    return found


@given(st.lists(TIMERS, max_size=40), st.lists(TIMERS, max_size=40))
def test_in_order_wherever_they_come_from(loaded: list[Timer], added: list[Timer]) -> None:
    near = Upcoming()
    near.load(buckets(loaded))
    for timer in added:
        near.add(timer)
    assert len(near) == len(loaded) + len(added)
    assert sorted(near) == sorted(loaded + added)
    out = []
    while near.first is not None:
        first = near.first
        assert near.pop() == first
        out.append(first)
    assert out == sorted(loaded + added)
    assert len(near) == 0


def test_a_second_with_many() -> None:
    near = Upcoming()
    many = [Timer(T + 1, number, 100, 1) for number in range(5000)]
    near.load(buckets(many))
    assert [near.pop() for _ in range(2500)] == many[:2500]
    assert len(near) == 2500
    assert near.of_slot(T) == many[2500:]
    assert near.of_slot(T + 1000) == []
    near.clear()
    assert near.first is None


def test_slots_come_in_order() -> None:
    near = Upcoming()
    near.load(buckets([Timer(T + 5, 1, 1, 1)]))
    with pytest.raises(AssertionError):
        near.load(buckets([Timer(T + 5, 1, 1, 1)]))
