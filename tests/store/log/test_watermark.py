from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kappamq.store.log.watermark import Watermark


def test_waiters_are_served_in_log_order_when_their_offset_is_reached() -> None:
    mark: Watermark[str] = Watermark(10)
    assert not mark.wait(10, "already there")
    assert mark.wait(20, "a")
    assert mark.wait(20, "b")
    assert mark.wait(30, "c")
    assert mark.advance(19) == []
    assert mark.advance(25) == ["a", "b"]
    assert mark.advance(30) == ["c"]


def test_never_goes_back() -> None:
    mark: Watermark[str] = Watermark(10)
    with pytest.raises(AssertionError):
        mark.advance(9)


def test_giving_up_takes_from_the_front_only() -> None:
    mark: Watermark[int] = Watermark()
    for waiter in (1, 2, 9, 3):
        mark.wait(waiter if waiter < 9 else 9, waiter) if waiter != 3 else mark.wait(9, 3)
    assert mark.give_up(lambda waiter: waiter < 5) == [1, 2]
    assert mark.give_up() == [9, 3]
    assert mark.advance(100) == []


@given(st.lists(st.integers(0, 50)), st.lists(st.integers(0, 60)))
def test_everybody_is_served_exactly_once(offsets: list[int], steps: list[int]) -> None:
    mark: Watermark[int] = Watermark()
    parked = [number for number, offset in enumerate(sorted(offsets)) if mark.wait(offset, number)]
    served = [waiter for step in sorted(steps) for waiter in mark.advance(step)]
    assert served + mark.advance(100) == parked
