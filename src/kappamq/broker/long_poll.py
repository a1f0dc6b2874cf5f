"""Pulls that found nothing yet: parked per queue, woken by growth or by the clock. Pure: told the time, returns who is due."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any, Generic, TypeVar

Parked = TypeVar("Parked")


class LongPoll(Generic[Parked]):
    """Tells the kernel which queues are watched; the kernel tells which of them grew."""

    def __init__(self, kernel: Any, parked_max: int) -> None:
        self._kernel = kernel
        self._parked_max = parked_max
        self._queues: dict[tuple[str, int], dict[int, Parked]] = {}
        self._due: list[tuple[float, int, tuple[str, int]]] = []
        self._ticket = 0
        self.count = 0

    def park(self, topic: str, queue_id: int, until: float, request: Parked) -> bool:
        """Keep `request` until its queue grows or liveness time reaches `until`; False if there are too many already."""
        if self.count >= self._parked_max:
            return False
        self._ticket += 1
        key = (topic, queue_id)
        waiting = self._queues.get(key)
        if waiting is None:
            waiting = self._queues[key] = {}
        waiting[self._ticket] = request
        heapq.heappush(self._due, (until, self._ticket, key))
        self.count += 1
        self._kernel.watch(topic, queue_id, True)
        return True

    def grown(self, topic: str, queue_id: int) -> list[Parked]:
        """Everybody who waits for this queue. Whoever has to wait on parks again."""
        waiting = self._queues.pop((topic, queue_id), None)
        if waiting is None:
            return []
        self.count -= len(waiting)
        return list(waiting.values())

    def expired(self, now: float) -> list[Parked]:
        """Those whose time is up, in the order of their deadlines."""
        late: list[Parked] = []
        while self._due and self._due[0][0] <= now:
            _until, ticket, key = heapq.heappop(self._due)
            waiting = self._queues.get(key)
            if waiting is not None and ticket in waiting:
                late.append(waiting.pop(ticket))
                self.count -= 1
                if not waiting:
                    del self._queues[key]
                    self._kernel.watch(key[0], key[1], False)
        self._compact()
        return late

    def drop(self, gone: Callable[[Parked], bool]) -> int:
        """Forget requests of peers that have left; how many there were."""
        dropped = 0
        for key, waiting in list(self._queues.items()):
            for ticket in [ticket for ticket, request in waiting.items() if gone(request)]:
                del waiting[ticket]
                dropped += 1
            if not waiting:
                del self._queues[key]
                self._kernel.watch(key[0], key[1], False)
        self.count -= dropped
        return dropped

    def _compact(self) -> None:
        """Tickets of woken pulls stay in the heap until their time: on a busy queue they must not pile up."""
        if len(self._due) > 2 * self.count + 1024:
            self._due = [entry for entry in self._due if entry[1] in self._queues.get(entry[2], ())]
            heapq.heapify(self._due)
