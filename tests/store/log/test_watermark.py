"""Any order of waiters and steps; the dialogue `waiters` beside test_marks.py has the rules one by one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kappamq.store.log.watermark import Watermark


@given(st.lists(st.integers(0, 50)), st.lists(st.integers(0, 60)))
def test_everybody_is_served_exactly_once(offsets: list[int], steps: list[int]) -> None:
    mark: Watermark[int] = Watermark()
    parked = [number for number, offset in enumerate(sorted(offsets)) if mark.wait(offset, number)]
    served = [waiter for step in sorted(steps) for waiter in mark.advance(step)]
    assert served + mark.advance(100) == parked


def test_a_cut_gives_back_who_waits_for_what_is_gone() -> None:
    mark: Watermark[str] = Watermark(90)
    mark.wait(100, "a")
    mark.wait(300, "b")
    mark.wait(150, "c")
    assert mark.cut(150) == ["b"]
    assert mark.offset == 90
    assert mark.advance(160) == ["a", "c"]
    assert mark.cut(150) == []
    assert mark.offset == 150
