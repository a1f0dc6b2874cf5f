"""Which queue a message goes to. Pure: randomness is passed in."""

from __future__ import annotations

import random
import threading
import zlib
from collections.abc import Callable, Sequence
from typing import Protocol

from kappamq.errors import ConfigError
from kappamq.message import MessageQueue
from kappamq.protocol.records.tags import java_hash


class Selection(Protocol):
    """Chooses a queue. `queues` is never empty; `avoid` names a broker that has just failed."""

    def choose(self, queues: Sequence[MessageQueue], avoid: str | None = None) -> MessageQueue: ...


def _elsewhere(queues: Sequence[MessageQueue], start: int, avoid: str | None) -> int:
    """Return the first index from `start` on, wrapping, whose broker is not `avoid`; else `start` itself."""
    count = len(queues)
    if avoid is None:
        return start % count
    for step in range(count):
        index = (start + step) % count
        if queues[index].broker != avoid:
            return index
    return start % count


class RoundRobin:
    """Each queue in turn, starting at a random one, so that producers do not all start with the same queue."""

    def __init__(self, start: int | None = None) -> None:
        self._next = random.randrange(1 << 16) if start is None else start

    def choose(self, queues: Sequence[MessageQueue], avoid: str | None = None) -> MessageQueue:
        # Two threads may get the same number; then one queue gets two messages in a row, which does no harm.
        index = _elsewhere(queues, self._next, avoid)
        self._next = index + 1
        return queues[index]

    def first_of(self, count: int, queues: int) -> int:
        """Choose for this many messages at once: return the index of the first one's queue; the others follow in turn."""
        first = self._next % queues
        self._next = first + count
        return first


class Sticky:
    """Stay with one queue for `messages_max` messages, then move to the next, so that neighbours share a queue.

    Moves on at once if the broker of its queue is to be avoided, or the queue has disappeared.
    """

    def __init__(self, messages_max: int = 64, start: int | None = None) -> None:
        if messages_max < 1:
            raise ConfigError(f"{messages_max=}: must be at least 1")
        self._messages_max = messages_max
        self._turn = RoundRobin(start)
        self._queue: MessageQueue | None = None
        self._left = 0
        self._lock = threading.Lock()

    def choose(self, queues: Sequence[MessageQueue], avoid: str | None = None) -> MessageQueue:
        with self._lock:
            queue = self._queue
            if queue is None or self._left == 0 or queue.broker == avoid or queue not in queues:
                queue = self._queue = self._turn.choose(queues, avoid)
                self._left = self._messages_max
            self._left -= 1
            return queue


def by_key(queues: Sequence[MessageQueue], key: str | int | bytes) -> MessageQueue:
    """Return the queue of a sharding key. The same key gives the same queue as long as the number of queues is the same.

    A text or number gives the same queue as Java's SelectMessageQueueByHash, so producers of both languages agree.
    """
    return queues[abs(key_hash(key)) % len(queues)]


def key_hash(key: str | int | bytes) -> int:
    """Return what `hashCode()` gives for a Java String or Long (for an Integer too, unless it is negative)."""
    if isinstance(key, bytes):
        return zlib.crc32(key)
    if isinstance(key, str):
        return java_hash(key)
    folded = (key ^ (key >> 32)) & 0xFFFFFFFF
    return folded - (1 << 32) if folded & 0x80000000 else folded


SELECTIONS: dict[str, Callable[[], Selection]] = {"round-robin": RoundRobin, "sticky": Sticky}


def selection(chosen: str | Selection) -> Selection:
    """Return a new selection by name, or `chosen` itself if it is a Selection."""
    if not isinstance(chosen, str):
        return chosen
    try:
        return SELECTIONS[chosen]()
    except KeyError:
        raise ConfigError(
            f"unknown queue selection {chosen!r}: use one of {', '.join(SELECTIONS)}, or an object with choose()"
        ) from None
