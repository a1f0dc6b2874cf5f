"""Whether a parked timer has acted, also by a clock that was set since. When it acts is in `store/timer/acts.py`."""

from __future__ import annotations

from kappamq.broker.timers.progress import TimerProgress
from kappamq.protocol.timing import Parked
from kappamq.store.log.clock_steps import ClockSteps
from kappamq.store.timer.acts import acts


def is_done(said: Parked, log_offset: int, at_ms: int, steps: ClockSteps, progress: TimerProgress) -> bool:
    """Whether a timer that acts at `at_ms` has done so, now or before the clock was set."""
    if progress.is_done(at_ms, log_offset):
        return True
    if not progress.passed:
        return False
    return any(
        log_offset < below and (acts(said, log_offset, steps, below).at_ms, log_offset) <= (due_ms, last)
        for below, due_ms, last in progress.passed
    )
