"""The ends of queues whose messages have all expired.

The end of any other queue can be read from the log. Before the log loses the last message of a queue, its end becomes a record, and
part of a snapshot: even if the queue files are gone, numbering goes on from there and never starts again at 0. Only such queues are
listed, so this costs nothing for active queues.

A deleted topic is another matter: once its last message has left the log, `Topics` forgets where it ended, and so does this table.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from kappamq.broker.upkeep.slices import Worker
from kappamq.state.events import TopicForgotten
from kappamq.state.metadata import Commit
from kappamq.store.message_store import MessageStore

Ends = dict[str, dict[int, int]]
"""Topic -> queue id -> one past the last number that was given."""

_QUEUES_PER_RECORD = 500


class QueueEnds:
    """A fold over the log."""

    file = "kappamq.queues.json"
    kinds = ("queue-ends", "queue-ends-forgotten")

    def __init__(self, store: MessageStore, commit: Commit) -> None:
        self._store = store
        self._commit = commit
        self._ends: Ends = {}
        self.dirty = False

    def get(self, topic: str, queue_id: int) -> int:
        return self._ends.get(topic, {}).get(queue_id, 0)

    def restore(self) -> Ends:
        """After loading: queues of which neither log nor files know anything go on where they ended.
        Returns the topics of which all queues are so."""
        store = self._store
        bare: Ends = {}
        for topic, ends in self._ends.items():
            # What is in the log and not known to be confirmed has numbers, though it is not in its queue yet.
            if all(store.queue_state(topic, queue_id).next == 0 for queue_id in store.queue_ids(topic)):
                bare[topic] = dict(ends)
            for queue_id, end in ends.items():
                self._go_on_at(topic, queue_id, end)
        return bare

    def followed(self, ends: dict[str, dict[str, Any]]) -> None:
        """Another node has recorded this, and the table has applied it. What the record speaks of lies before it: a queue that has nothing
        here, and ends before that, had its last messages in front of our log, and goes on where they ended."""
        for topic, queues in _ends(ends).items():
            for queue_id, end in queues.items():
                self._go_on_at(topic, queue_id, end)

    def _go_on_at(self, topic: str, queue_id: int, end: int) -> None:
        """A queue that has messages, also such as are in the log and not known to be confirmed, is what the log says."""
        state = self._store.queue_state(topic, queue_id)
        if state.first == state.end == state.next < end:
            self._store.restart_queue(topic, queue_id, end)

    def topic_forgotten(self, event: TopicForgotten) -> None:
        self.forget(event.name)

    def forget(self, topic: str) -> None:
        """A deleted topic is forgotten: if it is made again, its numbering starts at 0."""
        if topic in self._ends:
            # Not recorded: the next snapshot leaves it out, or the next start finds a topic that does not exist.
            self._commit("queue-ends-forgotten", topic, anyway=True)

    def record(self, ends: Ends) -> int:
        """Note ends that neither log nor files will know for long; returns the log offset at which that is safe."""
        return self._commit("queue-ends", ends)

    # -- fold --------------------------------------------------------------------------------------------------------------

    def to_snapshot(self) -> dict[str, Any]:
        return self.freeze()()

    def freeze(self) -> Callable[[], dict[str, Any]]:
        return partial(_snapshot, dict(self._ends))  # the ends of a topic are replaced and never changed

    def from_snapshot(self, table: dict[str, Any]) -> None:
        self._ends = {}
        self._add(_ends(table.get("ends") or {}))

    def apply(self, kind: str, change: Any) -> None:
        if kind == "queue-ends-forgotten":
            self._ends.pop(str(change), None)
        else:
            self._add(_ends(change))

    def reset(self) -> None:
        self._ends = {}

    def _add(self, ends: Ends) -> None:
        for topic, queues in ends.items():
            self._ends[topic] = self._ends.get(topic, {}) | queues


class QueueEndsKeeper:
    """Asked before the log loses its beginning."""

    def __init__(
        self,
        ends: QueueEnds,
        store: MessageStore,
        worker: Worker,
        write_derived: Callable[[], Awaitable[None]],
        confirmed: Callable[[int], Awaitable[None]],
    ) -> None:
        self._ends = ends
        self._store = store
        self._worker = worker
        self._write_derived = write_derived
        self._confirmed = confirmed
        self._needed_from = 0
        self._recorded_to = 0  # where the log ended with the last record of ends

    @property
    def needed_from(self) -> int:
        return self._needed_from

    async def renew_below(self, log_min: int) -> None:
        """Record, durably, where queues ended that have no message at or behind `log_min`."""
        await self._write_derived()  # a queue has its folder then
        found = await self._worker(self._expired, log_min)
        for at in range(0, len(found), _QUEUES_PER_RECORD):
            ends: Ends = {}
            for topic, queue_id, end in found[at : at + _QUEUES_PER_RECORD]:
                ends.setdefault(topic, {})[queue_id] = end
            self._recorded_to = self._ends.record(ends)
        await self._confirmed(self._recorded_to)  # also of a round before that did not wait long enough
        self._needed_from = log_min

    def _expired(self, log_min: int) -> list[tuple[str, int, int]]:
        """Worker: queues without a message at or behind `log_min` whose end is not recorded."""
        store = self._store
        ahead = log_min > store.log.min
        found = []
        for topic, queue_id in store.queues.queues():
            low, end, _next, _stored = store.queue_state(topic, queue_id)
            if not end or end == self._ends.get(topic, queue_id):
                continue
            last = store.entry(topic, queue_id, end - 1) if ahead and low < end else None
            if low == end or (last is not None and last[0] < log_min):
                found.append((topic, queue_id, end))
        return found


def _ends(table: dict[str, dict[str, Any]]) -> Ends:
    return {topic: {int(queue_id): int(end) for queue_id, end in queues.items()} for topic, queues in table.items()}


def _snapshot(ends: Ends) -> dict[str, Any]:
    return {"ends": {topic: {str(queue_id): end for queue_id, end in queues.items()} for topic, queues in ends.items()}}
