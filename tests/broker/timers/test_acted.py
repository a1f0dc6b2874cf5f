from __future__ import annotations

from kappamq.broker.timers.acted import is_done
from kappamq.broker.timers.progress import FOREVER, TimerProgress
from kappamq.protocol.timing import Parked
from kappamq.store.log.clock_steps import ClockStep, ClockSteps

DAY_MS = 86_400_000
GLITCH = ClockSteps((ClockStep(100, DAY_MS, 10_000 + DAY_MS), ClockStep(200, -DAY_MS, 11_000)))


def parked(due_ms: int, stored_ms: int, is_delay: bool) -> Parked:
    return Parked(due_ms, stored_ms, b"tea", b"", is_delay)


def test_what_was_delivered_before_the_clock_was_set_is_done() -> None:
    progress = TimerProgress()
    progress.apply("timer", {"due": [10_900 + DAY_MS, 170]})
    change = progress.stepped(GLITCH.steps[1])
    assert change == ("timer", {"step": [200, -DAY_MS, 11_000]})
    progress.apply(*change)
    assert progress.key == (10_900, 170)
    early = parked(20_000, 5_000, False)  # due within the jump: delivered early
    assert is_done(early, 50, 20_000, GLITCH, progress)
    beyond = parked(20_000 + DAY_MS, 5_000, False)
    assert not is_done(beyond, 50, 20_000 + DAY_MS, GLITCH, progress)
    after = parked(20_000, 11_500, False)  # the same time, but stored after the clock was set back
    assert not is_done(after, 250, 20_000, GLITCH, progress)


def test_the_same_step_found_again_changes_nothing() -> None:
    progress = TimerProgress()
    progress.apply("timer", {"due": [10_900 + DAY_MS, 170]})
    progress.apply("timer", {"step": list(GLITCH.steps[1])})
    before = progress.to_snapshot()
    progress.apply("timer", {"step": [200, -DAY_MS, 11_000]})
    assert progress.to_snapshot() == before
    again = TimerProgress()
    again.from_snapshot(before)
    assert again.to_snapshot() == before


def test_a_step_of_unknown_size() -> None:
    progress = TimerProgress()
    progress.apply("timer", {"due": [10_900 + DAY_MS, 170]})
    progress.apply("timer", {"step": [200, 0, 11_000]})
    assert progress.key == (11_000, FOREVER)


def test_without_timers_there_is_nothing_to_record() -> None:
    assert TimerProgress().stepped(GLITCH.steps[0]) is None
