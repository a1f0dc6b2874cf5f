"""Chunks of batch transactions that are staged on this broker, and how much of the decided ones is published.

A chunk is one record of a system topic; its place is its offset in that topic's only queue. The record of a chunk and the change
to this table are appended as one group, and so are the messages of a published chunk and the change that says so.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, NamedTuple

KINDS: Final = (
    "chunk-staged",
    "chunk-copied",
    "chunks-decided",
    "chunk-part",
    "chunk-published",
    "chunks-dropped",
    "chunks-finished",
)

CHUNK_EXTRA_BYTES: Final = 4096
"""Overhead that is charged for a chunk besides its body: there may be many small ones."""
_GONE_MAX: Final = 64
"""How many offsets of removed chunks may remain, in addition to as many as there are chunks."""
LOST_CHUNKS: Final = "(lost chunks)"
"""The name under which chunks are counted that this broker no longer has."""


class Chunk(NamedTuple):
    place: int
    log_offset: int  # its record is at this log offset or behind it
    crc: int  # of its body
    rows: int
    size: int
    topic: str
    queue_id: int
    copied_to: int = -1  # queue offset of the copy of its record that replaces it; -1: none

    @property
    def at(self) -> int:
        """The queue offset of its record; `place` remains the name by which it is decided."""
        return self.place if self.copied_to < 0 else self.copied_to


@dataclass(slots=True)
class Staged:
    """One transaction's chunks on this broker."""

    transaction: str
    scope: str
    number: int
    since_ms: int
    chunks: dict[int, Chunk] = field(default_factory=dict)  # the unpublished ones, by place
    waiting: list[int] | None = None  # decided: places to publish, in order; None: not decided
    # place -> how many messages of a partly published chunk are published
    parts: dict[int, int] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)  # topic -> messages that it could no longer take

    @property
    def is_published(self) -> bool:
        return self.waiting is not None and not self.waiting

    def copy(self) -> Staged:
        waiting = None if self.waiting is None else self.waiting.copy()
        return replace(
            self, chunks=self.chunks.copy(), waiting=waiting, parts=self.parts.copy(), dropped=self.dropped.copy()
        )


class StagedChunks:
    """Clients may stage many transactions with many chunks: only making a snapshot looks at all of them."""

    file = "kappamq.staged.json"
    kinds = KINDS

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self.table: dict[str, Staged] = {}  # by transaction, in the order of their first chunk
        self._scopes: dict[str, dict[str, Staged]] = {}  # the same, by scope
        self._undecided: dict[str, int] = {}
        self._decided: dict[
            str, list[tuple[int, str]]
        ] = {}  # scope -> heap of (number, transaction), some of them done
        # Queue offset of each chunk's record -> (its log offset, which grows with it, transaction, place).
        self._offsets: dict[int, tuple[int, str, int]] = {}
        self._places: deque[int] = deque()  # the same queue offsets, ascending; some are gone
        self.bytes = self.count = 0
        self.dirty = False

    # -- asking ------------------------------------------------------------------------------------------------------------

    def get(self, transaction: str) -> Staged | None:
        return self.table.get(transaction)

    def scopes(self) -> list[str]:
        """The scopes that have staged chunks."""
        return list(self._scopes)

    def of_scope(self, scope: str) -> list[Staged]:
        return list(self._scopes.get(scope, {}).values())

    def undecided(self, scope: str) -> int:
        """How many transactions of a scope wait for a decision."""
        return self._undecided.get(scope, 0)

    def next_to_publish(self) -> Staged | None:
        """A decided transaction with unpublished chunks; within a scope the one of the smallest batch."""
        for scope in self._decided:
            first = self._first_decided(scope)
            if first is not None:
                return first
        return None

    def _first_decided(self, scope: str) -> Staged | None:
        heap = self._decided[scope]
        while heap:
            staged = self.table.get(heap[0][1])
            if staged is not None and staged.waiting:
                return staged
            heapq.heappop(heap)
        return None

    def runtime(self) -> dict[str, str]:
        """For the runtime info."""
        since = min((staged.since_ms for staged in self.table.values()), default=0)
        return {
            "kappamqStagedChunks": str(self.count),
            "kappamqStagedBytes": str(self.bytes),
            "kappamqStagedSince": str(since),
        }

    @property
    def charged_bytes(self) -> int:
        """How many bytes the chunks count for in the limit of staged bytes."""
        return self.bytes + self.count * CHUNK_EXTRA_BYTES

    def needed_from(self) -> int | None:
        """Log offset of the oldest chunk that may still be published; None if there is none."""
        first = self._first()
        return None if first is None else first[0]

    def first_below(self, log_offset: int) -> tuple[Staged, Chunk] | None:
        """The oldest chunk, if its record may lie below `log_offset`."""
        first = self._first()
        if first is None or first[0] >= log_offset:
            return None
        staged = self.table[first[1]]
        return staged, staged.chunks[first[2]]

    def _first(self) -> tuple[int, str, int] | None:
        while self._places and self._places[0] not in self._offsets:
            self._places.popleft()
        return self._offsets[self._places[0]] if self._places else None

    # -- fold --------------------------------------------------------------------------------------------------------------

    def apply(self, kind: str, change: Any) -> None:
        transaction = str(change[0])
        if kind == "chunk-staged":
            scope, number, row = change[1:]
            staged = self.table.get(transaction)
            if staged is None:
                staged = self._begin(Staged(transaction, str(scope), int(number), self._now_ms()))
            self._add(staged, row)
            return
        staged = self.table[transaction]
        if kind == "chunk-copied":
            self._copied(staged, *map(int, change[1:]))
        elif kind == "chunks-decided":
            self._decide(staged, [int(place) for place in change[1]])
            if lost := sum(map(int, change[2:])):
                staged.dropped[LOST_CHUNKS] = lost
            listed = set(staged.waiting or ())
            for place in [place for place in staged.chunks if place not in listed]:
                self._take(staged, place)
        elif kind == "chunk-part":
            staged.parts[int(change[1])] = int(change[2])
        elif kind == "chunk-published":
            place, dropped = int(change[1]), int(change[2])
            chunk = self._take(staged, place)
            assert staged.waiting is not None
            staged.waiting.remove(place)
            if not staged.waiting and self._first_decided(staged.scope) is None:
                self._decided.pop(staged.scope)
            if dropped:
                staged.dropped[chunk.topic] = staged.dropped.get(chunk.topic, 0) + dropped
        else:  # chunks-dropped, chunks-finished
            for place in list(staged.chunks):
                self._take(staged, place)
            self._end(staged)

    def _begin(self, staged: Staged) -> Staged:
        self.table[staged.transaction] = staged
        self._scopes.setdefault(staged.scope, {})[staged.transaction] = staged
        self._undecided[staged.scope] = self._undecided.get(staged.scope, 0) + 1
        return staged

    def _decide(self, staged: Staged, places: list[int]) -> None:
        staged.waiting = places
        self._undecided[staged.scope] -= 1
        if places:
            heapq.heappush(self._decided.setdefault(staged.scope, []), (staged.number, staged.transaction))

    def _end(self, staged: Staged) -> None:
        del self.table[staged.transaction]
        if staged.waiting is None:
            self._undecided[staged.scope] -= 1
        scope = self._scopes[staged.scope]
        del scope[staged.transaction]
        if not scope:
            del self._scopes[staged.scope], self._undecided[staged.scope]
            self._decided.pop(staged.scope, None)

    def _add(self, staged: Staged, row: Any) -> None:
        place, log_offset, crc, rows, size, topic, queue_id, *copied = row
        chunk = Chunk(
            int(place), int(log_offset), int(crc), int(rows), int(size), str(topic), int(queue_id), *map(int, copied)
        )
        self._put(staged, chunk)
        self.bytes += chunk.size
        self.count += 1

    def _copied(self, staged: Staged, place: int, log_offset: int, copied_to: int) -> None:
        chunk = staged.chunks.get(place)
        if chunk is not None:
            del self._offsets[chunk.at]
            self._put(staged, chunk._replace(log_offset=log_offset, copied_to=copied_to))

    def _put(self, staged: Staged, chunk: Chunk) -> None:
        staged.chunks[chunk.place] = chunk
        self._offsets[chunk.at] = chunk.log_offset, staged.transaction, chunk.place
        self._places.append(chunk.at)
        if len(self._places) > 2 * len(self._offsets) + _GONE_MAX:  # the first may stay long while others go
            self._places = deque(place for place in self._places if place in self._offsets)

    def _take(self, staged: Staged, place: int) -> Chunk:
        chunk = staged.chunks.pop(place)
        del self._offsets[chunk.at]
        staged.parts.pop(place, None)
        self.bytes -= chunk.size
        self.count -= 1
        return chunk

    def to_snapshot(self) -> dict[str, Any]:
        return self.freeze()()

    def freeze(self) -> Callable[[], dict[str, Any]]:
        # Chunks are immutable: copying the collections is enough.
        return partial(_snapshot, [staged.copy() for staged in self.table.values()])

    def from_snapshot(self, table: dict[str, Any]) -> None:
        self.reset()
        for found in table.get("transactions") or []:
            staged = Staged(str(found["transaction"]), str(found["scope"]), int(found["number"]), int(found["since"]))
            self._begin(staged)
            for one in found["chunks"]:
                self._add(staged, one)
            waiting = found.get("waiting")
            if waiting is not None:
                self._decide(staged, [int(place) for place in waiting])
            staged.parts = {int(place): int(rows) for place, rows in (found.get("parts") or {}).items()}
            staged.dropped = {str(topic): int(count) for topic, count in found["dropped"].items()}
        self._places = deque(sorted(self._places))

    def reset(self) -> None:
        for kept in (self.table, self._scopes, self._undecided, self._decided, self._offsets, self._places):
            kept.clear()
        self.bytes = self.count = 0


def row(chunk: Chunk) -> list[Any]:
    """A chunk as it appears in records of changes and in the snapshot."""
    return list(chunk)


def _snapshot(table: list[Staged]) -> dict[str, Any]:
    return {
        "transactions": [
            {
                "transaction": staged.transaction,
                "scope": staged.scope,
                "number": staged.number,
                "since": staged.since_ms,
                "chunks": [row(chunk) for chunk in staged.chunks.values()],
                "waiting": staged.waiting,
                "parts": {str(place): rows for place, rows in staged.parts.items()},
                "dropped": staged.dropped,
            }
            for staged in table
        ]
    }
