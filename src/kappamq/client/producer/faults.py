"""Which brokers a producer avoids, and for how long. Pure: the time is passed in, in seconds.

`Failing` is always active: a broker that could not be reached gets no messages for a moment. `LatencyFaults`
(`latency_faults=True`, RocketMQ's sendLatencyFaultEnable) also avoids brokers that answer slowly.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from kappamq.message import MessageQueue

LATENCY_MS: Final = (50, 100, 550, 1800, 3000, 5000, 15_000)
AVOIDED_MS: Final = (0, 0, 2000, 5000, 6000, 10_000, 30_000)
"""A broker whose answer took LATENCY_MS[i] or more is avoided for AVOIDED_MS[i]."""
FAILED_MS: Final = 10_000
"""The latency that a failure counts as."""


class Faults(Protocol):
    def answered(self, broker: str, latency: float, now: float) -> None:
        """Record that the broker stored a message within `latency` seconds."""

    def failed(self, broker: str, now: float, *, reachable: bool) -> None:
        """Record that the broker refused a message or, if not `reachable`, could not be reached."""

    def usable(self, queues: Sequence[MessageQueue], avoid: str | None, now: float) -> Sequence[MessageQueue]:
        """Return the queues to choose from, at least one; `avoid` names the broker that has just failed."""
        ...


class Failing:
    """Avoids brokers that could not be reached for a moment, unless there is no other. Any thread may read, only one writes."""

    def __init__(self, seconds: float = 2.0) -> None:
        self._seconds = seconds
        self._until: dict[str, float] = {}

    @property
    def any_failed(self) -> bool:
        """Whether a broker may be avoided now."""
        return bool(self._until)

    def answered(self, broker: str, latency: float, now: float) -> None:
        pass

    def failed(self, broker: str, now: float, *, reachable: bool) -> None:
        if not reachable:
            self._until[broker] = now + self._seconds

    def usable(self, queues: Sequence[MessageQueue], avoid: str | None, now: float) -> Sequence[MessageQueue]:
        if not self._until:
            return queues
        bad = set()
        for broker, until in self._until.copy().items():
            if until > now:
                bad.add(broker)
            else:
                self._until.pop(broker, None)
        return [queue for queue in queues if queue.broker not in bad] or queues


@dataclass(slots=True)
class Fault:
    until: float  # avoided until then
    reachable: bool


class LatencyFaults:
    """Avoids slow and failing brokers; the slower they were, the longer.

    Chooses among brokers that are available and did not fail last; if there is none, among those that are at least
    reachable; if there is none, among all.
    """

    def __init__(self) -> None:
        self._known: dict[str, Fault] = {}

    def answered(self, broker: str, latency: float, now: float) -> None:
        avoided = avoided_ms(latency * 1000)
        if avoided or broker in self._known:
            self._known[broker] = Fault(now + avoided / 1000, reachable=True)

    def failed(self, broker: str, now: float, *, reachable: bool) -> None:
        self._known[broker] = Fault(now + avoided_ms(FAILED_MS) / 1000, reachable)

    def usable(self, queues: Sequence[MessageQueue], avoid: str | None, now: float) -> Sequence[MessageQueue]:
        if not self._known:
            return queues
        known = self._known
        bad = {broker for broker, fault in known.items() if fault.until > now}
        return (
            [queue for queue in queues if queue.broker not in bad and queue.broker != avoid]
            or [q for q in queues if q.broker != avoid and (q.broker not in known or known[q.broker].reachable)]
            or queues
        )


def avoided_ms(latency_ms: float) -> int:
    """Return for how long a broker that took `latency_ms` to answer is avoided."""
    index = bisect_right(LATENCY_MS, latency_ms) - 1
    return AVOIDED_MS[index] if index >= 0 else 0
