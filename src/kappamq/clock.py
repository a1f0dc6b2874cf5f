"""The two kinds of time, both handed in so that tests and the simulator can hold them.

*Message time* (milliseconds since 1970) goes into records and decides delay, retry, checks and retention. It never goes
back: a wall clock that is set back stands still until it has caught up.
*Liveness time* (seconds, monotonic, any origin) decides heartbeats, locks, idle connections and timeouts.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def message_ms(self) -> int:
        """Milliseconds since 1970; never less than any value returned before."""
        ...

    def liveness(self) -> float:
        """Seconds since some fixed moment; unaffected by setting the wall clock."""
        ...

    def not_before(self, ms: int) -> None:
        """Message time is never less than `ms` from now on: a store says how far it had come."""
        ...


class SystemClock:
    """The machine's clocks."""

    __slots__ = ("_last_ms",)

    def __init__(self, *, not_before_ms: int = 0) -> None:
        # A store hands in the time of its last record, so that a restart cannot take message time back either.
        self._last_ms = not_before_ms

    def message_ms(self) -> int:
        now = time.time_ns() // 1_000_000
        if now > self._last_ms:
            self._last_ms = now
        return self._last_ms

    def not_before(self, ms: int) -> None:
        """Never answer less than `ms` from now on."""
        if ms > self._last_ms:
            self._last_ms = ms

    def liveness(self) -> float:
        return time.monotonic()


class VirtualClock:
    """A clock that stands still until it is told to move; both times move together unless one is named."""

    __slots__ = ("_liveness", "_message_ms")

    def __init__(self, *, message_ms: int = 1_700_000_000_000, liveness: float = 1000.0) -> None:
        self._message_ms = message_ms
        self._liveness = liveness

    def message_ms(self) -> int:
        return self._message_ms

    def liveness(self) -> float:
        return self._liveness

    def not_before(self, ms: int) -> None:
        if ms > self._message_ms:
            self._message_ms = ms

    def advance(self, seconds: float = 0.0, *, ms: int = 0) -> None:
        """Let `seconds` and `ms` pass, added together, on both clocks."""
        passed_ms = round(seconds * 1000) + ms
        if passed_ms < 0:
            raise ValueError(f"time does not go back: {passed_ms} ms")
        self._message_ms += passed_ms
        self._liveness += passed_ms / 1000

    def advance_liveness(self, seconds: float) -> None:
        """Let liveness time pass while message time stands still, as when the wall clock was set back."""
        if seconds < 0:
            raise ValueError(f"time does not go back: {seconds} s")
        self._liveness += seconds
