"""The messages of one queue that a consumer has pulled and not yet acknowledged.

The pull loop adds on the event loop's thread, readers acknowledge on any thread; a lock protects both.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kappamq.message import MessageQueue, ReceivedMessage


@dataclass(frozen=True, slots=True)
class Limits:
    """How much of one queue may be held before pulling pauses."""

    messages_max: int = 1000
    bytes_max: int = 100 << 20
    span_max: int = 2000  # between the lowest and the highest offset held, so that one stuck message stops us


class ProcessQueue:
    """Messages of one queue between pull and acknowledgement.

    `next_offset` is where the next pull starts; `committable` is the offset to commit: everything below it is
    acknowledged. Once `dropped` (the queue moved to another consumer), nothing more is delivered or acknowledged.
    """

    def __init__(self, queue: MessageQueue, next_offset: int, limits: Limits) -> None:
        self.queue = queue
        self.next_offset = next_offset
        self.dropped = False
        self.paused = False
        """Paused by the application: nothing is pulled or handed out."""
        self.suspended = False
        """Ordered consumption only: its first message failed and is retried after a pause."""
        self.resting = 0
        """How many of its messages wait for a local retry, because no broker took them back."""
        self.lease_until = math.inf
        """Ordered consumption only: liveness time until which we hold the broker's lock."""
        self.limits = limits
        self.pulled_ms = 0
        self.consumed_ms = 0
        self._order: deque[int] = deque()  # offsets as pulled, ascending; acknowledged ones are removed from the front
        self._sizes: dict[int, int] = {}  # offset -> bytes, of those not acknowledged
        self._bytes = 0
        self._on_room: Callable[[], None] | None = None
        self._lock = threading.Lock()

    def add(self, messages: Sequence[ReceivedMessage], next_offset: int) -> list[ReceivedMessage]:
        """Add the result of a pull and return the new messages in it. `next_offset` also covers filtered messages."""
        with self._lock:
            fresh = []
            for message in messages:
                offset = message.queue_offset
                # A broker may repeat messages below the requested offset that belong to a batch.
                if offset < self.next_offset or (self._order and offset <= self._order[-1]):
                    continue
                size = len(message.body)
                self._order.append(offset)
                self._sizes[offset] = size
                self._bytes += size
                fresh.append(message)
            self.next_offset = max(self.next_offset, next_offset)
            return fresh

    def acknowledge(self, offset: int) -> bool:
        """Mark one message as done. Returns False if it is not held: acknowledged before, or from an earlier assignment."""
        with self._lock:
            size = self._sizes.pop(offset, None)
            if size is None:
                return False
            self._bytes -= size
            while self._order and self._order[0] not in self._sizes:
                self._order.popleft()
            wake = None
            if self._on_room is not None and self._full() is None:
                wake, self._on_room = self._on_room, None
        if wake is not None:
            wake()
        return True

    @property
    def committable(self) -> int:
        with self._lock:
            return self._order[0] if self._order else self.next_offset

    @property
    def range(self) -> tuple[int, int]:
        """The lowest and the highest offset held, (0, 0) if there are none."""
        with self._lock:
            return (self._order[0], self._order[-1]) if self._order else (0, 0)

    @property
    def count(self) -> int:
        return len(self._sizes)

    @property
    def bytes(self) -> int:
        return self._bytes

    def full(self) -> str | None:
        """Return why pulling should pause now, or None."""
        with self._lock:
            return self._full()

    def woken(self) -> None:
        """Check again whether pulling may continue."""
        with self._lock:
            wake, self._on_room = self._on_room, None
        if wake is not None:
            wake()

    def when_room(self, callback: Callable[[], None]) -> bool:
        """Call `callback` once, from the thread that makes room. Returns False, without registering it, if there is room."""
        with self._lock:
            if self._full() is None:
                return False
            self._on_room = callback
            return True

    def _full(self) -> str | None:
        if self.paused:
            return "it is paused"
        limits = self.limits
        if len(self._sizes) >= limits.messages_max:
            return f"{len(self._sizes)} messages are not yet acknowledged, the limit is {limits.messages_max}"
        if self._bytes >= limits.bytes_max:
            return f"{self._bytes} bytes are not yet acknowledged, the limit is {limits.bytes_max}"
        span = self._order[-1] - self._order[0] if self._order else 0
        if span >= limits.span_max:
            return (
                f"the oldest unacknowledged message is {span} offsets behind the newest, the limit is {limits.span_max}"
            )
        return None
