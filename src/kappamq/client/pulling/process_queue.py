"""What a consumer holds of one queue: pulled from the broker, not yet acknowledged.

The pull loop adds on the event loop's thread, readers acknowledge on any thread; one short lock keeps both honest.
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
    """How much one queue may hold before pulling pauses."""

    messages_max: int = 1000
    bytes_max: int = 100 << 20
    span_max: int = 2000  # between the lowest and the highest offset held: one stuck message must not let us run on


class ProcessQueue:
    """Messages of one queue between pull and acknowledgement.

    `next_offset` is where the next pull starts; `committable` is the offset to store at the broker: everything below
    it is done. Once `dropped` (the queue went to another consumer), nothing is delivered or acknowledged any more.
    """

    def __init__(self, queue: MessageQueue, next_offset: int, limits: Limits) -> None:
        self.queue = queue
        self.next_offset = next_offset
        self.dropped = False
        self.paused = False
        """By the application: nothing is pulled or handed out."""
        self.suspended = False
        """Ordered consumption only: its first message failed and comes again after a moment."""
        self.resting = 0
        """How many of its messages wait to be tried again here, because no broker took them back."""
        self.lease_until = math.inf
        """Ordered consumption only: liveness time up to which the broker's lock counts as ours."""
        self.limits = limits
        self.pulled_ms = 0
        self.consumed_ms = 0
        self._order: deque[int] = deque()  # offsets as pulled, ascending; acknowledged ones leave when they are first
        self._sizes: dict[int, int] = {}  # offset -> bytes, of those not acknowledged
        self._bytes = 0
        self._on_room: Callable[[], None] | None = None
        self._lock = threading.Lock()

    def add(self, messages: Sequence[ReceivedMessage], next_offset: int) -> list[ReceivedMessage]:
        """Take what a pull brought and return what of it is new. `next_offset` also covers what was filtered away."""
        with self._lock:
            fresh = []
            for message in messages:
                offset = message.queue_offset
                # A broker may repeat what lies below the offset asked for, as a part of a batch.
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
        """Mark one message as done. Returns False if it is not held: done before, or from an earlier assignment."""
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
        """The lowest and the highest offset held, (0, 0) if there is none."""
        with self._lock:
            return (self._order[0], self._order[-1]) if self._order else (0, 0)

    @property
    def count(self) -> int:
        return len(self._sizes)

    @property
    def bytes(self) -> int:
        return self._bytes

    def full(self) -> str | None:
        """Return why no more should be pulled now, or None."""
        with self._lock:
            return self._full()

    def woken(self) -> None:
        """What kept the queue from being pulled may be over."""
        with self._lock:
            wake, self._on_room = self._on_room, None
        if wake is not None:
            wake()

    def when_room(self, callback: Callable[[], None]) -> bool:
        """Call `callback` once, from whichever thread makes room. Returns False, and forgets it, if there is some."""
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
            return f"{len(self._sizes)} messages wait to be consumed, the limit is {limits.messages_max}"
        if self._bytes >= limits.bytes_max:
            return f"{self._bytes} bytes wait to be consumed, the limit is {limits.bytes_max}"
        span = self._order[-1] - self._order[0] if self._order else 0
        if span >= limits.span_max:
            return f"the oldest message not consumed lies {span} behind the newest, the limit is {limits.span_max}"
        return None
