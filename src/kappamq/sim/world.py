"""Time and dice of one simulated history. Every event is in this one queue, so a seed replays the history exactly."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from random import Random
from typing import Any


class World:
    __slots__ = ("_count", "_events", "dice", "events", "now", "seed")

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.dice = Random(seed)
        self.now = 0.0  # milliseconds
        self.events = 0
        self._events: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._count = 0

    def after(self, delay: float, action: Callable[..., object], *arguments: object) -> None:
        self._count += 1
        heapq.heappush(self._events, (self.now + delay, self._count, action, arguments))

    def run_until(self, when: float) -> None:
        events = self._events
        while events and events[0][0] <= when:
            self.now, _, action, arguments = heapq.heappop(events)
            self.events += 1
            action(*arguments)
        self.now = when

    def happens(self, probability: float) -> bool:
        return self.dice.random() < probability

    def between(self, low: float, high: float) -> float:
        return low + (high - low) * self.dice.random()
