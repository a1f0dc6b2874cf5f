"""When a parked timer acts, by the current clock: the wall clock may have been set since it was stored.

A timer for a point in time fires when the clock shows that time. A timer with a delay keeps its delay: its computed due time is
shifted when the clock is set.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from kappamq.protocol.timing import Parked
from kappamq.store.log.clock_steps import ClockSteps
from kappamq.store.timer.entries import PRECISION_MS, ROLL, ROLL_MS, Unit, roll_ms

OVERDUE_MS: Final = 86_400_000
"""Overdue timers are entered in a slot no further back than this."""


class Acts(NamedTuple):
    at_ms: int
    rolls: bool  # it is not due then but stored again
    stored_ms: int


def due_now(said: Parked, log_offset: int, steps: ClockSteps, below: int | None = None) -> int:
    """When a timer is due, by the current clock or by the one before the step at `below`."""
    return said.due_ms + steps.shift_ms(log_offset, below) if said.is_delay else said.due_ms


def acts(said: Parked, log_offset: int, steps: ClockSteps, below: int | None = None) -> Acts:
    """The same, and whether it has to be stored again before it is due."""
    stored_ms = said.stored_ms + steps.shift_ms(log_offset, below)
    due_ms = due_now(said, log_offset, steps, below)
    roll = roll_ms(due_ms, stored_ms)
    return Acts(due_ms, False, stored_ms) if roll is None else Acts(roll, True, stored_ms)


def not_after(said: Parked, log_offset: int, steps: ClockSteps, now_ms: int) -> Parked:
    """`said` with a store time no later than `now_ms`, whatever the record contains."""
    shift_ms = steps.shift_ms(log_offset)
    return said if said.stored_ms + shift_ms <= now_ms else said._replace(stored_ms=now_ms - shift_ms)


def not_before(at_ms: int, now_ms: int) -> int:
    """The time for which a timer is entered at `now_ms`. A slot far in the past, as after a clock that was years behind, would use
    the place of another slot in the wheel."""
    return max(at_ms, now_ms - OVERDUE_MS)


def fits(unit: Unit, said: Parked, steps: ClockSteps, now_ms: int) -> bool:
    """Whether the time of this unit is possible for the timer of a record, entered at `now_ms` or before.

    By the current clock or an earlier one: the files are rebuilt after the clock was set, but not at once."""
    clocks = [None, *(step.log_offset for step in steps.steps if step.log_offset > unit.log_offset)]
    return any(_fits(unit, said, steps, below, now_ms) for below in clocks)


def _fits(unit: Unit, said: Parked, steps: ClockSteps, below: int | None, now_ms: int) -> bool:
    act = acts(said, unit.log_offset, steps, below)
    rolls = bool(unit.kind & ROLL)
    if rolls == act.rolls and (unit.due_ms == act.at_ms or act.at_ms < unit.due_ms <= not_before(act.at_ms, now_ms)):
        return True
    # The store time is later than the time of entry: then it is stored again that much later.
    due_ms = due_now(said, unit.log_offset, steps, below)
    return rolls and any(
        seen_ms < act.stored_ms
        and seen_ms // PRECISION_MS * PRECISION_MS == unit.written_ms
        and roll_ms(due_ms, seen_ms) == unit.due_ms
        for seen_ms in (unit.due_ms - ROLL_MS, unit.due_ms - ROLL_MS // 2)
    )
