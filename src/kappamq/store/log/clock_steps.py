"""Where in the log the wall clock was set. Store times before and after such an offset are not comparable.

A step has a log offset. Records below it were stamped before the clock was set, so their store times are off by `step_ms` compared
with records above it. `shift_ms` converts a time that was derived from a record's store time to the current clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple, Self

CLOCK_FILE: Final = "kappamq.clock.json"
"""The snapshot that holds them, in the config folder."""
STEPS_MAX: Final = 256
"""With more steps than this, the oldest are merged into one."""


class ClockStep(NamedTuple):
    log_offset: int  # records below were stamped before
    step_ms: int  # by how much the clock was set; 0: unknown
    to_ms: int  # no record from here to the next step has an earlier store time


class ClockSteps:
    """Immutable: changes return a new object, so any thread may read it."""

    def __init__(self, steps: tuple[ClockStep, ...] = ()) -> None:
        self.steps = steps

    @classmethod
    def of(cls, rows: Iterable[Any]) -> Self:
        """The inverse of `rows`."""
        return cls(tuple(ClockStep(*(int(number) for number in row)) for row in rows))

    def rows(self) -> list[list[int]]:
        return [list(step) for step in self.steps]

    def __bool__(self) -> bool:
        return bool(self.steps)

    def plus(self, step: ClockStep) -> ClockSteps:
        """With one more step, after all others. A known step changes nothing."""
        if self.steps and step.log_offset <= self.steps[-1].log_offset:
            return self
        steps = (*self.steps, step)
        if len(steps) > STEPS_MAX:
            first, second = steps[:2]
            merged = ClockStep(second.log_offset, first.step_ms + second.step_ms, min(first.to_ms, second.to_ms))
            steps = (merged, *steps[2:])
        return ClockSteps(steps)

    def up_to(self, log_end: int) -> ClockSteps:
        """Without the steps whose marker record is above `log_end`."""
        return ClockSteps(tuple(step for step in self.steps if step.log_offset < log_end))

    def from_on(self, log_min: int) -> ClockSteps:
        """Without the steps that have no record of the log before them."""
        return ClockSteps(tuple(step for step in self.steps if step.log_offset > log_min))

    def shift_ms(self, log_offset: int, below: int | None = None) -> int:
        """What to add to a time of the clock that stamped the record at `log_offset` to get the time of the current clock, or of the
        clock just before the step at `below`."""
        if not self.steps:
            return 0  # almost always: the clock was never set
        return sum(
            step.step_ms
            for step in self.steps
            if step.log_offset > log_offset and (below is None or step.log_offset < below)
        )

    def floor_ms(self, log_offset: int, stored_ms: int) -> int:
        """The lowest store time possible after the record at `log_offset`, which was stored at `stored_ms`."""
        if not self.steps:
            return stored_ms
        return min([stored_ms, *(step.to_ms for step in self.steps if step.log_offset > log_offset)])

    def within(self, log_offset: int, stored_ms: int, begin_ms: int, end_ms: int) -> bool:
        """Whether a record was stored in [begin_ms, end_ms], by the clock that stamped it or by the current clock."""
        return begin_ms <= stored_ms <= end_ms or begin_ms <= stored_ms + self.shift_ms(log_offset) <= end_ms


def likely_ms(stored_at: Callable[[int], int | None], offset: int) -> int | None:
    """When message `offset` was stored. Messages of a queue are stored in order, so a store time that contradicts both neighbours,
    which agree with each other, is ignored."""
    stored, before, after = stored_at(offset), stored_at(offset - 1), stored_at(offset + 1)
    if stored is None or before is None or after is None:
        return stored
    return sorted((before, stored, after))[1] if before <= after else stored
