"""Stored records that are about to be copied, read so that the loop never waits for the disk."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from kappamq.native.layout import ENTRY, PLACE
from kappamq.store.message_store import MessageStore

Place = tuple[int, int, int]
"""An entry of a queue: log offset, record bytes, tag code."""


class Sources:
    def __init__(self, store: MessageStore) -> None:
        self._store = store

    def entries(self, topic: str, queue_id: int, first: int, count: int) -> list[Place] | None:
        """Return up to `count` entries of a queue from `first` on that consumers may see; None if they must be read from disk."""
        _low, end, _next, _stored = self._store.queue_state(topic, queue_id)
        count = min(count, end - first)
        if count <= 0:
            return []
        data: bytes | None = self._store.tail_entries(topic, queue_id, first, count)
        if not data:
            data = self._store.queues.read_resident(topic, queue_id, first, count)
        return None if data is None else _places(data)

    def read_entries(self, topic: str, queue_id: int, first: int, count: int) -> list[Place]:
        """Worker: the same from the queue's files, however long the disk takes, as far as they have got there."""
        return list(
            takewhile(lambda place: place[1] > 0, _places(self._store.queues.read(topic, queue_id, first, count)))
        )

    def are_warm(self, places: Sequence[Place]) -> bool:
        """Return whether the records are certainly in memory."""
        hot_from = self._store.hot_from
        return all(place[0] >= hot_from for place in places)

    def read(self, places: Sequence[Place]) -> list[bytes | None]:
        """The records' bytes, None for each that is gone or damaged. May wait for the disk unless they are warm."""
        locate, view = self._store.kernel_module.locate, self._store.log.slice
        low, end = self._store.log.min, self._store.marks.dispatched.offset
        found: list[bytes | None] = []
        for log_offset, size, _code in places:
            data = bytes(view(log_offset, size)) if low <= log_offset < end else b""
            # Read it alone, since it may be the first of a group: a record with a readable entry is complete.
            noted, _count, read, _why = locate(data, log_offset, True, 1)
            good = read == len(data) == size > 0 and not PLACE.unpack(noted)[-1]
            found.append(data if good else self._store.record(log_offset))
        return found


def _places(data: bytes) -> list[Place]:
    return list(ENTRY.iter_unpack(data[: len(data) - len(data) % ENTRY.size]))
