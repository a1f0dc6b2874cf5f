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
