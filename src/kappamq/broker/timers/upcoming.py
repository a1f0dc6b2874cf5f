"""The timers that are due next, in due order: those read from the files, and those added since."""

from __future__ import annotations

import heapq
import struct
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from kappamq.store.timer.entries import slot_ms

PACKED = struct.Struct(">qiB")  # log offset, size, kind: a second may hold millions
_UNPACK_COUNT = 1000


class Timer(NamedTuple):
    """Sorts by when it is due, and then as it was stored."""

    due_ms: int
    log_offset: int
    size: int
    kind: int


class Bucket:
    """Timers of one millisecond, packed, the last one first: as a chain of the timer log is read."""

    __slots__ = ("data", "due_ms")

    def __init__(self, due_ms: int, data: bytearray) -> None:
        self.due_ms = due_ms
        self.data = data

    def take(self) -> list[Timer]:
        """The next ones, the first of them at the end."""
        cut = max(0, len(self.data) - _UNPACK_COUNT * PACKED.size)
        taken = [Timer(self.due_ms, *fields) for fields in PACKED.iter_unpack(self.data[cut:])]
        del self.data[cut:]
        return taken


class Upcoming:
    def __init__(self) -> None:
        self._added: list[Timer] = []  # a heap
        self._buckets: deque[Bucket] = deque()  # ascending
        self._current: list[Timer] = []  # of the first bucket, the next one at the end
        self._packed = 0

    def __len__(self) -> int:
        return len(self._added) + len(self._current) + self._packed

    def add(self, timer: Timer) -> None:
        heapq.heappush(self._added, timer)

    def load(self, buckets: list[Bucket]) -> None:
        """Later than everything loaded before."""
        for bucket in buckets:
            assert not self._buckets or bucket.due_ms > self._buckets[-1].due_ms, "slots are loaded in their order"
            self._buckets.append(bucket)
            self._packed += len(bucket.data) // PACKED.size

    @property
    def first(self) -> Timer | None:
        if not self._current and self._buckets:
            bucket = self._buckets[0]
            self._current = bucket.take()
            self._packed -= len(self._current)
            if not bucket.data:
                self._buckets.popleft()
        if self._added and (not self._current or self._added[0] < self._current[-1]):
            return self._added[0]
        return self._current[-1] if self._current else None

    def pop(self) -> Timer:
        first = self.first
        assert first is not None, "nothing is there"
        if self._current and self._current[-1] is first:
            return self._current.pop()
        return heapq.heappop(self._added)

    def of_slot(self, start_ms: int) -> list[Timer]:
        """What is there of the second that begins at `start_ms`, in order."""
        return sorted({timer for timer in self if slot_ms(timer.due_ms) == start_ms})

    def __iter__(self) -> Iterator[Timer]:
        """Everything, in any order."""
        yield from self._added
        yield from self._current
        for bucket in self._buckets:
            for fields in PACKED.iter_unpack(bucket.data):
                yield Timer(bucket.due_ms, *fields)

    def clear(self) -> None:
        self._added.clear()
        self._buckets.clear()
        self._current.clear()
        self._packed = 0
