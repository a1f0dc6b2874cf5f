"""Consume statistics per topic over the last minute, shown to administrators in the running info.

The caller passes the time in, so tests control it. Called from the event loop and from listener threads.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from typing import Final

from kappamq.client.pulling.damage import DamageReports
from kappamq.protocol.bodies.admin import ConsumeStatus

STRETCH_S: Final = 10
STRETCHES_PER_MINUTE: Final = 6
STRETCHES_KEPT: Final = 360
"""One hour: the window over which failures are counted."""


@dataclass(slots=True)
class Stretch:
    """Statistics of one topic over ten seconds."""

    number: int
    pulls: int = 0
    pull_s: float = 0.0
    pulled: int = 0
    done: int = 0
    failed: int = 0
    calls: int = 0
    call_s: float = 0.0


class ConsumeStats:
    def __init__(self) -> None:
        self.damage = DamageReports()
        self._topics: dict[str, deque[Stretch]] = {}
        self._lock = threading.Lock()

    def pulled(self, topic: str, count: int, seconds: float, now: float) -> None:
        """Record a pull that returned `count` messages after `seconds`."""
        with self._lock:
            stretch = self._current(topic, now)
            stretch.pulls += 1
            stretch.pull_s += seconds
            stretch.pulled += count

    def consumed(self, topic: str, count: int, seconds: float, ok: bool, now: float, calls: int = 1) -> None:
        """Record that a listener spent `seconds` on `count` messages, in so many calls."""
        with self._lock:
            stretch = self._current(topic, now)
            stretch.calls += calls
            stretch.call_s += seconds
            if ok:
                stretch.done += count
            else:
                stretch.failed += count

    def status(self, topic: str, now: float) -> ConsumeStatus:
        """Return times in milliseconds and rates per second over the minute before `now`."""
        oldest = int(now // STRETCH_S) - STRETCHES_PER_MINUTE
        with self._lock:
            kept = list(self._topics.get(topic, ()))
        last = [stretch for stretch in kept if stretch.number > oldest]
        if not last:
            return ConsumeStatus(consume_failed=sum(stretch.failed for stretch in kept))
        seconds = max(1.0, now - last[0].number * STRETCH_S)
        pulls, calls = sum(s.pulls for s in last), sum(s.calls for s in last)
        return ConsumeStatus(
            pull_rt=sum(s.pull_s for s in last) * 1000 / pulls if pulls else 0.0,
            pull_tps=sum(s.pulled for s in last) / seconds,
            consume_rt=sum(s.call_s for s in last) * 1000 / calls if calls else 0.0,
            consume_ok_tps=sum(s.done for s in last) / seconds,
            consume_failed_tps=sum(s.failed for s in last) / seconds,
            consume_failed=sum(stretch.failed for stretch in kept),
        )

    def _current(self, topic: str, now: float) -> Stretch:
        stretches = self._topics.get(topic)
        if stretches is None:
            stretches = self._topics[topic] = deque(maxlen=STRETCHES_KEPT)
        number = int(now // STRETCH_S)
        if not stretches or stretches[-1].number != number:
            while stretches and stretches[0].number <= number - STRETCHES_KEPT:
                stretches.popleft()
            stretches.append(Stretch(number))
        return stretches[-1]
