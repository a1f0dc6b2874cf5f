"""The clocks, injected so that tests and the simulator control them, and the handling of wall clock jumps.

*Message time* (milliseconds since 1970) is stored in records and decides delays, retries, transaction checks and retention. It
follows the wall clock, and moves back only when the wall clock was set back, which is always detected: see `WatchedClock`.
*Liveness time* (seconds, monotonic, any origin) decides heartbeats, locks, idle connections and timeouts.
*Uptime* (milliseconds since boot, sleep included) is the reference: setting the wall clock does not move it. A clock that is
slewed (NTP, adjtime) moves both alike, so any difference between them is a jump.
"""

from __future__ import annotations

import threading
import time
from typing import Final, NamedTuple, Protocol

TOLERANCE_MS: Final = 1000
"""Smaller differences are not a jump: message time follows them forward, and stands still until it is caught up."""
STALL_MS: Final = 2000
"""A wall clock that shows the same millisecond for this long has stalled."""
SETTLE_MS: Final = 600_000
"""A jump forward counts for the deletion of old files only after the wall clock has kept it for this long."""
_QUICK_MS = 10
_READ_TRIES = 5
_UPTIME_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock(Protocol):
    def message_ms(self) -> int:
        """Milliseconds since 1970."""
        ...

    def liveness(self) -> float:
        """Seconds since an arbitrary fixed point; unaffected by setting the wall clock."""
        ...

    def uptime_ms(self) -> int:
        """Milliseconds since an arbitrary fixed point of this boot, sleep included; unaffected by setting the wall clock."""
        ...


class SystemClock:
    """The machine's clocks, unmodified."""

    __slots__ = ()

    def message_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def liveness(self) -> float:
        return time.monotonic()

    def uptime_ms(self) -> int:
        return time.clock_gettime_ns(_UPTIME_CLOCK) // 1_000_000


class Jump(NamedTuple):
    """The wall clock was set: message time moved from `from_ms` to `to_ms` at once."""

    from_ms: int
    to_ms: int

    @property
    def step_ms(self) -> int:
        return self.to_ms - self.from_ms


class Discipline:
    """Computes message time from readings of the wall clock and the uptime. Pure.

    While the two agree, message time is the wall clock's. When they differ, the wall clock was set: message time continues by the
    uptime until the owner accepts the jump with `adopt`. If the wall clock is right again before that, nothing happens.
    While the wall clock is stalled, message time continues by the uptime until the wall clock moves again."""

    def __init__(self, wall_ms: int, uptime_ms: int) -> None:
        self._agreed = wall_ms, uptime_ms  # the last readings that agreed
        self._moved = wall_ms, uptime_ms  # when the wall clock last changed
        self._last_ms = wall_ms
        self._ahead_ms = 0  # how much of message time only the wall clock attests,
        self._settled_at = uptime_ms  # and when it is accepted
        self.is_stalled = False
        self.pending_ms = 0  # the jump that waits for `adopt`

    @property
    def offset_ms(self) -> int:
        """Wall clock minus uptime when they last agreed: constant until the wall clock is set or the machine reboots."""
        return self._agreed[0] - self._agreed[1]

    def read(self, wall_ms: int, uptime_ms: int) -> int:
        """Return message time. Never less than before, except after `adopt`."""
        self._watch_movement(wall_ms, uptime_ms)
        agreed_wall, agreed_uptime = self._agreed
        expected_ms = agreed_wall + uptime_ms - agreed_uptime
        jumped = abs(wall_ms - expected_ms) > TOLERANCE_MS or self._last_ms - wall_ms > TOLERANCE_MS
        if jumped or self.is_stalled:
            self._last_ms = max(self._last_ms, expected_ms)
            self.pending_ms = 0 if self.is_stalled else wall_ms - self._last_ms
        else:
            self._agreed = wall_ms, uptime_ms
            self._last_ms = max(self._last_ms, wall_ms)
            self.pending_ms = 0
        return self._last_ms

    def _watch_movement(self, wall_ms: int, uptime_ms: int) -> None:
        if wall_ms != self._moved[0]:
            self._moved = wall_ms, uptime_ms
            self.is_stalled = False
        elif not self.is_stalled and uptime_ms - self._moved[1] > STALL_MS:
            self.is_stalled = True
            if not self.pending_ms:
                self._agreed = self._moved

    def adopt(self, wall_ms: int, uptime_ms: int) -> Jump | None:
        """Accept a jump of the wall clock. Returns how message time moved, None if there was no jump."""
        before_ms = self.read(wall_ms, uptime_ms)
        if not self.pending_ms:
            return None
        step_ms, self.pending_ms = self.pending_ms, 0
        self._agreed = wall_ms, uptime_ms
        self._last_ms = wall_ms
        self._lead(step_ms, uptime_ms)
        return Jump(before_ms, wall_ms)

    def unwitnessed(self, ms: int, uptime_ms: int) -> None:
        """Note that this much time passed unobserved, if the wall clock is right."""
        self._lead(max(0, ms), uptime_ms)

    def _lead(self, step_ms: int, uptime_ms: int) -> None:
        ahead_ms = self._ahead_ms if uptime_ms < self._settled_at else 0
        self._ahead_ms = max(0, ahead_ms + step_ms)
        if step_ms > 0:
            self._settled_at = uptime_ms + SETTLE_MS

    def settled_ms(self, uptime_ms: int) -> int:
        """Message time without recent jumps forward, which may still be reverted: for decisions that cannot be undone."""
        return self._last_ms - (self._ahead_ms if uptime_ms < self._settled_at else 0)


class WatchedClock:
    """Message time of a store: a clock under `Discipline`. The owner of the store calls `adopt` often and records each jump.

    Thread-safe: readings reach the discipline in the order in which they were taken."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._discipline = Discipline(clock.message_ms(), clock.uptime_ms())

    def message_ms(self) -> int:
        with self._lock:
            now_ms = self._discipline.read(self._clock.message_ms(), self._clock.uptime_ms())
            return self._discipline.read(*self._read_together()) if self._discipline.pending_ms else now_ms

    def liveness(self) -> float:
        return self._clock.liveness()

    def uptime_ms(self) -> int:
        return self._clock.uptime_ms()

    def adopt(self) -> Jump | None:
        """Accept a jump of the wall clock, if there is one."""
        with self._lock:
            return self._discipline.adopt(*self._read_together())

    def unwitnessed(self, ms: int) -> None:
        """Note that this much time passed unobserved, if the wall clock is right."""
        self._discipline.unwitnessed(ms, self._clock.uptime_ms())

    @property
    def is_stalled(self) -> bool:
        """Whether the wall clock has stalled."""
        return self._discipline.is_stalled

    @property
    def offset_ms(self) -> int:
        return self._discipline.offset_ms

    def settled_ms(self) -> int:
        """The message time to use for deleting files."""
        self.message_ms()
        return self._discipline.settled_ms(self._clock.uptime_ms())

    def _read_together(self) -> tuple[int, int]:
        """Read both clocks at the same moment: a process suspended between two readings must not see a jump."""
        for _ in range(_READ_TRIES):
            before_ms = self._clock.uptime_ms()
            wall_ms = self._clock.message_ms()
            uptime_ms = self._clock.uptime_ms()
            if uptime_ms - before_ms <= _QUICK_MS:
                break
        return wall_ms, uptime_ms


class VirtualClock:
    """A clock that stands still until a test moves it; all times move together unless one is named."""

    __slots__ = ("_jumped_ms", "_liveness", "_message_ms")

    def __init__(self, *, message_ms: int = 1_700_000_000_000, liveness: float = 1000.0) -> None:
        self._message_ms = message_ms
        self._liveness = liveness
        self._jumped_ms = 0

    def message_ms(self) -> int:
        return self._message_ms

    def liveness(self) -> float:
        return self._liveness

    def uptime_ms(self) -> int:
        return self._message_ms - self._jumped_ms

    def not_before(self, ms: int) -> None:
        """Advance message time to `ms`, if that is in the future; liveness time stands still."""
        if ms > self._message_ms:
            self._message_ms = ms

    def jump(self, seconds: float = 0.0, *, ms: int = 0) -> None:
        """Set the wall clock forward or back; no other clock moves."""
        step_ms = round(seconds * 1000) + ms
        self._message_ms += step_ms
        self._jumped_ms += step_ms

    def stand_still(self, seconds: float) -> None:
        """Let time pass while the wall clock is stalled."""
        self._jumped_ms -= round(seconds * 1000)
        self._liveness += seconds

    def advance(self, seconds: float = 0.0, *, ms: int = 0) -> None:
        """Advance all clocks by `seconds` plus `ms`."""
        passed_ms = round(seconds * 1000) + ms
        if passed_ms < 0:
            raise ValueError(f"cannot advance by {passed_ms} ms; `jump` sets the wall clock back")
        self._message_ms += passed_ms
        self._liveness += passed_ms / 1000

    def advance_liveness(self, seconds: float) -> None:
        """Advance liveness time only."""
        if seconds < 0:
            raise ValueError(f"cannot advance by {seconds} s")
        self._liveness += seconds
