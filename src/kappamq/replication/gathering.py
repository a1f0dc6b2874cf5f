"""What waits for a follower's next report, so that many turns of a leader share one piece of its log and one report.

A leader of many small turns would pay a write to the connection and a report for each of them, which is more than the turn itself costs.
So what is written while a follower has not reported yet what it was sent before is gathered and leaves behind the report: nothing
waits while nothing is under way. Where a report takes long, because the follower is far away, each turn leaves at once: waiting
for a report would double the time until a message has its copy, and there is nothing to be saved that would be worth that.
"""

from __future__ import annotations

from typing import Final

GATHERED_BYTES_MAX: Final = 256 << 10
_NEAR_S: Final = 0.001
_FORGET: Final = 1.02  # by how much the shortest round trip is believed less with each later one


class Gathering:
    """The bytes of one connection that wait, and how far away the follower is."""

    def __init__(self) -> None:
        self.size = 0
        self._parts: list[bytes] = []
        # about the shortest lately: a follower that is late now and then is still near
        self._round_trip_s = float("inf")
        self._sent_at = 0.0
        self._asked_for = -1  # the report of this end completes a round trip

    @property
    def is_near(self) -> bool:
        return self._round_trip_s < _NEAR_S

    def sent(self, end: int, now: float) -> None:
        """A piece up to `end` has left while nothing else was under way."""
        self._asked_for, self._sent_at = end, now

    def reported(self, end: int, now: float) -> None:
        if 0 <= self._asked_for <= end:
            self._round_trip_s = min(now - self._sent_at, self._round_trip_s * _FORGET)
            self._asked_for = -1

    def add(self, data: bytes) -> None:
        self._parts.append(data)
        self.size += len(data)

    def take(self) -> bytes:
        """Everything that waits, in order."""
        data = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self.clear()
        return data

    def clear(self) -> None:
        """It is read from the log later."""
        self._parts.clear()
        self.size = 0
