from __future__ import annotations

import pytest

from kappamq.protocol.timing import Parked
from kappamq.store.log.clock_steps import ClockStep, ClockSteps
from kappamq.store.timer.acts import OVERDUE_MS, acts, due_now, fits, not_after, not_before
from kappamq.store.timer.entries import PLAIN, ROLL, ROLL_MS, Unit, slot_ms

DAY_MS = 86_400_000
GLITCH = ClockSteps((ClockStep(100, DAY_MS, 10_000 + DAY_MS), ClockStep(200, -DAY_MS, 11_000)))
NONE = ClockSteps()


def parked(due_ms: int, stored_ms: int, is_delay: bool) -> Parked:
    return Parked(due_ms, stored_ms, b"tea", b"", is_delay)


def unit(due_ms: int, log_offset: int = 150, kind: int = PLAIN, written_ms: int = 0) -> Unit:
    return Unit(0, -1, kind, written_ms, slot_ms(due_ms), log_offset, 100, 0, due_ms)


def test_a_delay_moves_with_the_clock_and_a_time_does_not() -> None:
    during = parked(15_000 + DAY_MS, 10_500 + DAY_MS, True)
    assert due_now(during, 150, GLITCH) == 15_000
    assert due_now(during, 150, GLITCH, below=200) == 15_000 + DAY_MS
    assert due_now(during._replace(is_delay=False), 150, GLITCH) == 15_000 + DAY_MS


def test_what_is_far_ahead_by_todays_clock_is_stored_again_on_the_way() -> None:
    """It was not far ahead when it was stored, by a clock that was ahead itself."""
    found = acts(parked(10_500 + ROLL_MS + DAY_MS - 1, 10_500 + DAY_MS, False), 150, GLITCH)
    assert found.rolls
    assert found.at_ms <= found.stored_ms + ROLL_MS == 10_500 + ROLL_MS


def test_no_record_was_stored_later_than_it_is_seen() -> None:
    during = parked(15_000 + DAY_MS, 10_500 + DAY_MS, True)
    assert not_after(during, 150, GLITCH, 10_500) == during
    assert not_after(during, 150, GLITCH, 10_400).stored_ms == 10_400 + DAY_MS


def test_what_is_long_overdue_is_entered_for_a_day_ago() -> None:
    assert not_before(5000, 6000) == 5000
    assert not_before(5000, 6000 + OVERDUE_MS) == 6000


def test_a_unit_fits_by_every_clock_since_its_record_was_stored() -> None:
    """A delay is due at other times by each; the files may not have been built again yet."""
    delay = parked(15_000, 10_000, True)
    fitting = [due for due in (15_000, 15_000 + DAY_MS, 15_000 - DAY_MS) if fits(unit(due, 50), delay, GLITCH, 0)]
    assert fitting == [15_000, 15_000 + DAY_MS]
    during = parked(15_000 + DAY_MS, 10_500 + DAY_MS, True)
    fitting = [due for due in (15_000, 15_000 + DAY_MS, 15_000 + 2 * DAY_MS) if fits(unit(due), during, GLITCH, 0)]
    assert fitting == [15_000, 15_000 + DAY_MS]
    after = parked(15_000, 12_000, True)
    assert [due for due in (15_000, 15_000 + DAY_MS) if fits(unit(due, 250), after, GLITCH, 0)] == [15_000]
    time = parked(15_000, 10_000, False)
    assert [due for due in (15_000, 15_000 + DAY_MS) if fits(unit(due, 50), time, GLITCH, 0)] == [15_000]


@pytest.mark.parametrize("now_ms", [0, 20_000, 20_000 + OVERDUE_MS])
def test_a_unit_of_what_is_long_overdue_fits(now_ms: int) -> None:
    said = parked(15_000, 10_000, False)
    fitting = [due for due in (14_999, 15_000, 15_001, 20_000, 20_001) if fits(unit(due), said, NONE, now_ms)]
    assert fitting == ([15_000, 15_001, 20_000] if now_ms > OVERDUE_MS else [15_000])


@pytest.mark.parametrize("far", [ROLL_MS + DAY_MS // 10, 9 * ROLL_MS])
def test_a_unit_of_a_record_stamped_later_than_it_was_entered_fits(far: int) -> None:
    seen_ms, stamped_ms = 50_500, 90_000
    said = parked(seen_ms + far, stamped_ms, False)
    act = acts(not_after(said, 150, NONE, seen_ms), 150, NONE)
    assert act.rolls
    assert act != acts(said, 150, NONE)
    assert fits(unit(act.at_ms, kind=PLAIN | ROLL, written_ms=50_000), said, NONE, 0)
    assert not fits(unit(act.at_ms, kind=PLAIN | ROLL, written_ms=49_000), said, NONE, 0)
    assert not fits(unit(act.at_ms + 1000, kind=PLAIN | ROLL, written_ms=50_000), said, NONE, 0)
    assert not fits(unit(act.at_ms, written_ms=50_000), said, NONE, 0)
