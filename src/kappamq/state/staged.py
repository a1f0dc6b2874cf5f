"""Chunks of batch transactions that are staged on this broker, and how far those that were decided are published.

A chunk is one record of a system topic; its place is its offset in that topic's only queue. The record of a chunk and the note
of it here are one group, and so are the messages of a published chunk and the note of that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

KINDS: Final = ("chunk-staged", "chunks-decided", "chunk-published", "chunks-dropped", "chunks-finished")


CHUNK_EXTRA_BYTES: Final = 1024
"""What a chunk costs besides its body: there may be many small ones."""
LOST_CHUNKS: Final = "(lost chunks)"
"""Stands for a topic where chunks are counted that this broker no longer has."""


@dataclass(frozen=True, slots=True)
class Chunk:
    place: int
    log_offset: int  # the record does not lie before it
    crc: int  # of its body
    rows: int
    size: int
    topic: str
    queue_id: int


@dataclass(slots=True)
class Staged:
    """What this broker has of one transaction."""

    transaction: str
    scope: str
    number: int
    since_ms: int
    chunks: dict[int, Chunk] = field(default_factory=dict)  # those that are not published, by place
    waiting: list[int] | None = None  # decided: places to publish, in order; None: not decided
    dropped: dict[str, int] = field(default_factory=dict)  # topic -> messages that it no longer could take

    @property
    def is_published(self) -> bool:
        return self.waiting is not None and not self.waiting


class StagedChunks:
    file = "kappamq.staged.json"
    kinds = KINDS

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self.table: dict[str, Staged] = {}  # by transaction, in the order of their first chunk
        self.bytes = self.count = 0
        self.dirty = False

    # -- asking ------------------------------------------------------------------------------------------------------------

    def get(self, transaction: str) -> Staged | None:
        return self.table.get(transaction)

    def of_scope(self, scope: str) -> list[Staged]:
        return [staged for staged in self.table.values() if staged.scope == scope]

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
        """What they count for where staged bytes are limited."""
        return self.bytes + self.count * CHUNK_EXTRA_BYTES

    def needed_from(self) -> int | None:
        """Log offset of the oldest chunk that may still be published, None if there is none."""
        return min(
            (chunk.log_offset for staged in self.table.values() for chunk in staged.chunks.values()), default=None
        )

    # -- fold --------------------------------------------------------------------------------------------------------------

    def apply(self, kind: str, change: Any) -> None:
        transaction = str(change[0])
        if kind == "chunk-staged":
            scope, number, row = change[1:]
            staged = self.table.get(transaction)
            if staged is None:
                staged = self.table[transaction] = Staged(transaction, str(scope), int(number), self._now_ms())
            self._add(staged, row)
            return
        staged = self.table[transaction]
        if kind == "chunks-decided":
            staged.waiting = [int(place) for place in change[1]]
            if lost := sum(map(int, change[2:])):
                staged.dropped[LOST_CHUNKS] = lost
            listed = set(staged.waiting)
            for place in [place for place in staged.chunks if place not in listed]:
                self._take(staged, place)
        elif kind == "chunk-published":
            place, dropped = int(change[1]), int(change[2])
            chunk = self._take(staged, place)
            assert staged.waiting is not None
            staged.waiting.remove(place)
            if dropped:
                staged.dropped[chunk.topic] = staged.dropped.get(chunk.topic, 0) + dropped
        else:  # chunks-dropped, chunks-finished
            for place in list(staged.chunks):
                self._take(staged, place)
            del self.table[transaction]

    def _add(self, staged: Staged, row: Any) -> None:
        place, log_offset, crc, rows, size, topic, queue_id = row
        chunk = Chunk(int(place), int(log_offset), int(crc), int(rows), int(size), str(topic), int(queue_id))
        staged.chunks[chunk.place] = chunk
        self.bytes += chunk.size
        self.count += 1

    def _take(self, staged: Staged, place: int) -> Chunk:
        chunk = staged.chunks.pop(place)
        self.bytes -= chunk.size
        self.count -= 1
        return chunk

    def to_snapshot(self) -> dict[str, Any]:
        return self.freeze()()

    def freeze(self) -> Callable[[], dict[str, Any]]:
        """There may be many thousands of chunks."""
        return partial(
            _snapshot,
            [
                (
                    staged,
                    list(staged.chunks.values()),
                    None if staged.waiting is None else list(staged.waiting),
                    dict(staged.dropped),
                )
                for staged in self.table.values()
            ],
        )

    def from_snapshot(self, table: dict[str, Any]) -> None:
        self.reset()
        for found in table.get("transactions") or []:
            staged = Staged(str(found["transaction"]), str(found["scope"]), int(found["number"]), int(found["since"]))
            self.table[staged.transaction] = staged
            for one in found["chunks"]:
                self._add(staged, one)
            waiting = found.get("waiting")
            staged.waiting = None if waiting is None else [int(place) for place in waiting]
            staged.dropped = {str(topic): int(count) for topic, count in found["dropped"].items()}

    def reset(self) -> None:
        self.table = {}
        self.bytes = self.count = 0


def _snapshot(frozen: Sequence[tuple[Staged, list[Chunk], list[int] | None, dict[str, int]]]) -> dict[str, Any]:
    """Of each transaction that which changes was copied."""
    return {
        "transactions": [
            {
                "transaction": staged.transaction,
                "scope": staged.scope,
                "number": staged.number,
                "since": staged.since_ms,
                "chunks": [row(chunk) for chunk in chunks],
                "waiting": waiting,
                "dropped": dropped,
            }
            for staged, chunks, waiting, dropped in frozen
        ]
    }


def row(chunk: Chunk) -> list[Any]:
    """A chunk as the records of changes and the snapshot have it."""
    return [chunk.place, chunk.log_offset, chunk.crc, chunk.rows, chunk.size, chunk.topic, chunk.queue_id]
