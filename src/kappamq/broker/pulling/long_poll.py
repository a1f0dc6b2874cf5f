"""Pulls that found nothing yet: parked per queue, woken by growth or by the clock. Pure: given the time, it returns those that are due."""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

from kappamq.native.interface import Kernel

Parked = TypeVar("Parked")
_Queue = tuple[str, int]

OWNER_QUEUE_MAX: Final = 256
"""The most pulls one peer may park for one queue. A client parks one for each of its groups; each is answered with the same messages."""


class LongPoll(Generic[Parked]):
    """Tells the kernel which queues are watched; the kernel tells which of them grew."""

    def __init__(self, kernel: Kernel, parked_max: int, owner_max: int, owner_queue_max: int = OWNER_QUEUE_MAX) -> None:
        self._kernel = kernel
        self._parked_max = parked_max
        self._owner_max = owner_max
        self._owner_queue_max = owner_queue_max
        self._queues: dict[_Queue, dict[int, tuple[Parked, Hashable]]] = {}  # by ticket
        self._owners: dict[Hashable, dict[int, _Queue]] = {}  # the tickets of each, and where they are
        self._of_owner: dict[tuple[Hashable, _Queue], int] = {}  # how many each has in a queue
        self._due: list[tuple[float, int, _Queue]] = []
        self._ticket = 0
        self.count = 0

    def park(self, topic: str, queue_id: int, until: float, request: Parked, owner: Hashable) -> bool:
        """Keep `request` until its queue grows, liveness time reaches `until` or its owner leaves; False if there are too
        many already, of all, of this owner or of this owner for the queue."""
        tickets = self._owners.get(owner)
        queue = (topic, queue_id)
        of_owner = self._of_owner.get((owner, queue), 0)
        if self.count >= self._parked_max or (tickets is not None and len(tickets) >= self._owner_max):
            return False
        if of_owner >= self._owner_queue_max:
            return False
        self._of_owner[owner, queue] = of_owner + 1
        self._ticket += 1
        if tickets is None:
            tickets = self._owners[owner] = {}
        tickets[self._ticket] = queue
        waiting = self._queues.get(queue)
        if waiting is None:
            waiting = self._queues[queue] = {}
        waiting[self._ticket] = (request, owner)
        heapq.heappush(self._due, (until, self._ticket, queue))
        self.count += 1
        self._kernel.watch(topic, queue_id, True)
        return True

    def waits_for(self, topic: str, queue_id: int, owner: Hashable) -> int:
        """How many requests of the owner wait for this queue."""
        return self._of_owner.get((owner, (topic, queue_id)), 0)

    def grown(self, topic: str, queue_id: int) -> list[Parked]:
        """All pulls that wait for this queue. One that has to wait on is parked again."""
        waiting = self._queues.pop((topic, queue_id), None)
        if waiting is None:
            return []
        self.count -= len(waiting)
        woken: list[Parked] = []
        for ticket, (request, owner) in waiting.items():
            self._disown(owner, ticket, (topic, queue_id))
            woken.append(request)
        return woken

    def expired(self, now: float) -> list[Parked]:
        """Those whose time is up, in the order of their deadlines."""
        late: list[Parked] = []
        while self._due and self._due[0][0] <= now:
            _until, ticket, queue = heapq.heappop(self._due)
            if ticket in self._queues.get(queue, ()):
                request, owner = self._remove(queue, ticket)
                self._disown(owner, ticket, queue)
                late.append(request)
        self._compact()
        return late

    def take(self, owner: Hashable, topic: str) -> list[Parked]:
        """What a peer has parked in the queues of a topic; it is not parked any more."""
        taken: list[Parked] = []
        for ticket, queue in [item for item in self._owners.get(owner, {}).items() if item[1][0] == topic]:
            taken.append(self._remove(queue, ticket)[0])
            self._disown(owner, ticket, queue)
        return taken

    def drop(self, owner: Hashable) -> int:
        """Forget the parked pulls of a peer that has left; returns how many there were."""
        tickets = self._owners.pop(owner, {})
        for ticket, queue in tickets.items():
            self._remove(queue, ticket)
            self._of_owner.pop((owner, queue), None)
        return len(tickets)

    def _remove(self, queue: _Queue, ticket: int) -> tuple[Parked, Hashable]:
        waiting = self._queues[queue]
        found = waiting.pop(ticket)
        self.count -= 1
        if not waiting:
            del self._queues[queue]
            self._kernel.watch(queue[0], queue[1], False)
        return found

    def _disown(self, owner: Hashable, ticket: int, queue: _Queue) -> None:
        tickets = self._owners[owner]
        del tickets[ticket]
        left = self._of_owner[owner, queue] - 1
        if left:
            self._of_owner[owner, queue] = left
        else:
            del self._of_owner[owner, queue]
        if not tickets:
            del self._owners[owner]

    def _compact(self) -> None:
        """Tickets of woken pulls stay in the heap until their time: on a busy queue they must not pile up."""
        if len(self._due) > 2 * self.count + 1024:
            self._due = [entry for entry in self._due if entry[1] in self._queues.get(entry[2], ())]
            heapq.heapify(self._due)
