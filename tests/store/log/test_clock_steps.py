from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kappamq.store.log.clock_steps import STEPS_MAX, ClockStep, ClockSteps, likely_ms

DAY_MS = 86_400_000
GLITCH = ClockSteps((ClockStep(100, DAY_MS, 10 + DAY_MS), ClockStep(200, -DAY_MS, 20)))
"""Records below 100 are stamped rightly, those below 200 a day too late, the others rightly again."""


def test_times_by_todays_clock() -> None:
    assert [GLITCH.shift_ms(at) for at in (0, 99, 100, 199, 200, 5000)] == [0, 0, -DAY_MS, -DAY_MS, 0, 0]


def test_times_by_the_clock_before_a_step() -> None:
    assert GLITCH.shift_ms(50, below=100) == 0
    assert GLITCH.shift_ms(50, below=200) == DAY_MS
    assert GLITCH.shift_ms(150, below=200) == 0


def test_nothing_behind_is_stamped_earlier() -> None:
    assert GLITCH.floor_ms(50, 9) == 9
    assert GLITCH.floor_ms(150, 15 + DAY_MS) == 20
    assert GLITCH.floor_ms(300, 30) == 30


def test_within_a_time_by_either_clock() -> None:
    stamped = 15 + DAY_MS
    assert GLITCH.within(150, stamped, 10, 20)
    assert GLITCH.within(150, stamped, DAY_MS, 2 * DAY_MS)
    assert not GLITCH.within(150, stamped, 16, 20)


def test_steps_are_kept_in_order_and_once() -> None:
    steps = ClockSteps().plus(ClockStep(5, 1, 1)).plus(ClockStep(9, -1, 1))
    assert steps.plus(ClockStep(9, -1, 1)) is steps
    assert ClockSteps.of(steps.rows()).steps == steps.steps
    assert not ClockSteps()
    assert steps


def test_steps_before_the_whole_log_are_forgotten() -> None:
    assert GLITCH.from_on(100).steps == GLITCH.steps[1:]
    assert not GLITCH.from_on(200)


def test_steps_whose_mark_was_lost_are_forgotten() -> None:
    assert GLITCH.up_to(200).steps == GLITCH.steps[:1]
    assert GLITCH.up_to(201).steps == GLITCH.steps


def test_a_clock_that_is_set_all_the_time_does_not_fill_the_memory() -> None:
    steps = ClockSteps()
    for number in range(3 * STEPS_MAX):
        steps = steps.plus(ClockStep(10 * number + 1, 1, number))
    assert len(steps.steps) == STEPS_MAX
    assert steps.shift_ms(0) == 3 * STEPS_MAX
    assert steps.floor_ms(0, 1 << 62) == 0


@given(st.lists(st.integers(0, 1000), min_size=3, max_size=30), st.data())
def test_one_liar_is_outvoted_by_its_neighbours(times: list[int], data: st.DataObject) -> None:
    times.sort()
    place = data.draw(st.integers(1, len(times) - 2))
    lying = list(times)
    lying[place] = data.draw(st.sampled_from([-(1 << 40), 1 << 40]))

    def stored_at(offset: int) -> int | None:
        return lying[offset] if 0 <= offset < len(lying) else None

    found = likely_ms(stored_at, place)
    assert found is not None
    assert times[place - 1] <= found <= times[place + 1]
    honest = [likely_ms(lambda at: times[at] if 0 <= at < len(times) else None, at) for at in range(len(times))]
    assert honest == times
