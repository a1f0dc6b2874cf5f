"""Data that waits for a follower's next report, so that many turns of a leader share one piece of its log and one report.

A leader with many small turns would pay a write to the connection and a report for each, which costs more than the turn itself.
So while the report for what was sent before is outstanding, new data is gathered and leaves when the report arrives; if no report is
outstanding, nothing waits. If reports take long, because the follower is far away, each turn is sent at once: waiting for a report
would double the time until a message has its copy, which is worth more than the savings.
"""

from __future__ import annotations

from typing import Final

GATHERED_BYTES_MAX: Final = 256 << 10
_NEAR_S: Final = 0.001
_FORGET: Final = 1.02  # how quickly the estimate of the shortest round trip grows, per round trip


class Gathering:
    """The data that waits on one connection, and how far away the follower is."""

    def __init__(self) -> None:
        self.size = 0
        self._parts: list[bytes] = []
        # Roughly the shortest recent round trip: a nearby follower that is slow now and then still counts as near.
        self._round_trip_s = float("inf")
        self._sent_at = 0.0
        self._asked_for = -1  # the report of this end completes the round trip that is measured

    @property
    def is_near(self) -> bool:
        return self._round_trip_s < _NEAR_S

    def sent(self, end: int, now: float) -> None:
        """A piece up to `end` was sent while no report was outstanding."""
        self._asked_for, self._sent_at = end, now

    def reported(self, end: int, now: float) -> None:
        if 0 <= self._asked_for <= end:
            self._round_trip_s = min(now - self._sent_at, self._round_trip_s * _FORGET)
            self._asked_for = -1

    def add(self, data: bytes) -> None:
        self._parts.append(data)
        self.size += len(data)

    def take(self) -> bytes:
        """Return everything that waits, in order."""
        data = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self.clear()
        return data

    def clear(self) -> None:
        """Drop what waits: it will be read from the log later."""
        self._parts.clear()
        self.size = 0
