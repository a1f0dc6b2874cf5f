"""Where in the log the wall clock was set: across such a place store times are not in order, and mean something else.

Each step has a place in the log. Records below it were stamped before the clock was set, by `step_ms` too low or too high as seen
from behind it. With that, any time that was counted from a record's store time can be told in today's time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple, Self

CLOCK_FILE: Final = "kappamq.clock.json"
"""The snapshot that holds them, in the config folder."""
STEPS_MAX: Final = 256
"""A clock that is set again and again: the oldest steps become one."""


class ClockStep(NamedTuple):
    log_offset: int  # records below were stamped before
    step_ms: int  # by how much the clock was set; 0 if nobody knows
    to_ms: int  # nothing behind it is stamped earlier, up to the next step


class ClockSteps:
    """Replaced as a whole and never changed, so that any thread may look."""

    def __init__(self, steps: tuple[ClockStep, ...] = ()) -> None:
        self.steps = steps

    @classmethod
    def of(cls, rows: Iterable[Any]) -> Self:
        """From what `rows` once returned."""
        return cls(tuple(ClockStep(*(int(number) for number in row)) for row in rows))

    def rows(self) -> list[list[int]]:
        return [list(step) for step in self.steps]

    def __bool__(self) -> bool:
        return bool(self.steps)

    def plus(self, step: ClockStep) -> ClockSteps:
        """One more, behind all others. A step that is known already changes nothing."""
        if self.steps and step.log_offset <= self.steps[-1].log_offset:
            return self
        steps = (*self.steps, step)
        if len(steps) > STEPS_MAX:
            first, second = steps[:2]
            merged = ClockStep(second.log_offset, first.step_ms + second.step_ms, min(first.to_ms, second.to_ms))
            steps = (merged, *steps[2:])
        return ClockSteps(steps)

    def up_to(self, log_end: int) -> ClockSteps:
        """Without those whose mark a log ending at `log_end` does not hold."""
        return ClockSteps(tuple(step for step in self.steps if step.log_offset < log_end))

    def from_on(self, log_min: int) -> ClockSteps:
        """Without those that no record of a log beginning at `log_min` lies before."""
        return ClockSteps(tuple(step for step in self.steps if step.log_offset > log_min))

    def shift_ms(self, log_offset: int, below: int | None = None) -> int:
        """What to add to a time counted by the clock that stamped the record at `log_offset`, to have it by today's clock; or by
        the clock just before the step at `below`."""
        return sum(
            step.step_ms
            for step in self.steps
            if step.log_offset > log_offset and (below is None or step.log_offset < below)
        )

    def floor_ms(self, log_offset: int, stored_ms: int) -> int:
        """No record behind the one at `log_offset`, which was stored at `stored_ms`, is stamped earlier than this."""
        return min([stored_ms, *(step.to_ms for step in self.steps if step.log_offset > log_offset)])

    def within(self, log_offset: int, stored_ms: int, begin_ms: int, end_ms: int) -> bool:
        """Whether a record was stored in [begin_ms, end_ms], by the clock that stamped it or by today's."""
        return begin_ms <= stored_ms <= end_ms or begin_ms <= stored_ms + self.shift_ms(log_offset) <= end_ms


def likely_ms(stored_at: Callable[[int], int | None], offset: int) -> int | None:
    """When message `offset` was stored. Messages of a queue are stored one after the other: a stamp that contradicts both of its
    neighbours, while these agree, is not believed."""
    stored, before, after = stored_at(offset), stored_at(offset - 1), stored_at(offset + 1)
    if stored is None or before is None or after is None:
        return stored
    return sorted((before, stored, after))[1] if before <= after else stored
