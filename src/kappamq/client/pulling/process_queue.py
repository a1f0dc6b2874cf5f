"""The messages of one queue that a consumer has pulled and not yet acknowledged.

The pull loop adds on the event loop's thread, readers acknowledge on any thread; a lock protects both.
"""

from __future__ import annotations

import math
import threading
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kappamq.message import MessageQueue, ReceivedMessage
from kappamq.protocol.records.messages import MessageBlock


@dataclass(frozen=True, slots=True)
class Limits:
    """How much of one queue may be held before pulling pauses."""

    messages_max: int = 1000
    bytes_max: int = 100 << 20
    span_max: int = 2000  # between the lowest and the highest offset held, so that one stuck message stops us


class _Run:
    """What one pull has added: offsets, ascending, the bytes of their bodies, and which are acknowledged."""

    __slots__ = ("_done", "first", "left", "offsets", "sizes")

    def __init__(self, offsets: Sequence[int], sizes: Sequence[int]) -> None:
        self.offsets = offsets
        self.sizes = sizes
        self.first = 0  # the number of the lowest that is not acknowledged
        self.left = len(offsets)
        self._done = bytearray(len(offsets))

    def find(self, offset: int) -> int:
        """The number of an offset that is held, -1 if it is not."""
        number = offset - self.offsets[0]  # there is rarely a gap
        if not (0 <= number < len(self.offsets) and self.offsets[number] == offset):
            number = bisect_left(self.offsets, offset)
            if number == len(self.offsets) or self.offsets[number] != offset:
                return -1
        return -1 if self._done[number] else number

    def follow(self, number: int, offsets: Sequence[int]) -> int:
        """Count how many of `offsets`, the first of which has this number, match the following offsets here and are held."""
        count = min(len(offsets), len(self.offsets) - number)
        if any(self._done[number : number + count]) or list(self.offsets[number : number + count]) != offsets[:count]:
            return 1
        return count

    def acknowledge_one(self, number: int) -> int:
        """Mark one as done. Returns the bytes of its body."""
        self._done[number] = 1
        self.left -= 1
        if number == self.first and self.left:
            self.first = self._done.index(0, number)
        return self.sizes[number]

    def acknowledge(self, number: int, count: int) -> int:
        """Mark these as done. Returns the bytes of their bodies."""
        self._done[number : number + count] = b"\1" * count
        self.left -= count
        if number == self.first and self.left:
            self.first = self._done.index(0, number)
        return sum(self.sizes[number : number + count])


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
        self._runs: list[_Run] = []  # ascending; those at the beginning that are done are removed
        self._lasts: list[int] = []  # the last offset of each
        self._count = 0  # of those not acknowledged
        self._bytes = 0
        self._on_room: Callable[[], None] | None = None
        self._lock = threading.Lock()

    def add(self, messages: Sequence[ReceivedMessage], next_offset: int) -> Sequence[ReceivedMessage]:
        """Add the result of a pull and return the new messages in it. `next_offset` also covers filtered messages."""
        with self._lock:
            # A broker may repeat messages below the requested offset that belong to a batch.
            floor = max(self.next_offset, self._lasts[-1] + 1) if self._lasts else self.next_offset
            self.next_offset = max(self.next_offset, next_offset)
            if isinstance(messages, MessageBlock):
                fresh: Sequence[ReceivedMessage] = messages[bisect_left(messages.offsets, floor) :]
            else:
                fresh = _ascending(messages, floor)
            if fresh:
                if isinstance(fresh, MessageBlock):
                    run = _Run(fresh.offsets, fresh.body_sizes)
                else:
                    run = _Run([message.queue_offset for message in fresh], [len(message.body) for message in fresh])
                self._runs.append(run)
                self._lasts.append(run.offsets[-1])
                self._count += run.left
                self._bytes += sum(run.sizes)
            return fresh

    def acknowledge(self, offset: int) -> bool:
        """Mark one message as done. Returns False if it is not held: acknowledged before, or from an earlier assignment."""
        with self._lock:
            index = bisect_left(self._lasts, offset) if len(self._lasts) > 1 else 0
            run = self._runs[index] if index < len(self._runs) else None
            number = run.find(offset) if run is not None else -1
            if run is None or number < 0:
                return False
            self._bytes -= run.acknowledge_one(number)
            self._count -= 1
            wake = self._settled()
        if wake is not None:
            wake()
        return True

    def acknowledge_all(self, offsets: Sequence[int]) -> int:
        """Mark messages as done, in one go if they follow each other. Returns how many of them were held."""
        with self._lock:
            before, at = self._count, 0
            while at < len(offsets):
                index = bisect_left(self._lasts, offsets[at])
                number = self._runs[index].find(offsets[at]) if index < len(self._runs) else -1
                if number < 0:
                    at += 1
                    continue
                run = self._runs[index]
                count = run.follow(number, offsets[at:]) if len(offsets) > at + 1 else 1
                self._bytes -= run.acknowledge(number, count)
                self._count -= count
                at += count
            done = before - self._count
            wake = self._settled() if done else None
        if wake is not None:
            wake()
        return done

    def _settled(self) -> Callable[[], None] | None:
        """Forget pulls that are acknowledged completely. Returns the callback to call when there is room again, if any."""
        while self._runs and not self._runs[0].left:
            del self._runs[0], self._lasts[0]
        if self._on_room is None or self._full() is not None:
            return None
        wake, self._on_room = self._on_room, None
        return wake

    @property
    def committable(self) -> int:
        with self._lock:
            return self._lowest() if self._runs else self.next_offset

    @property
    def range(self) -> tuple[int, int]:
        """The lowest and the highest offset held, (0, 0) if there are none."""
        with self._lock:
            return (self._lowest(), self._lasts[-1]) if self._runs else (0, 0)

    @property
    def count(self) -> int:
        return self._count

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
        if self._count >= limits.messages_max:
            return f"{self._count} messages are not yet acknowledged, the limit is {limits.messages_max}"
        if self._bytes >= limits.bytes_max:
            return f"{self._bytes} bytes are not yet acknowledged, the limit is {limits.bytes_max}"
        span = self._lasts[-1] - self._lowest() if self._runs else 0
        if span >= limits.span_max:
            return (
                f"the oldest unacknowledged message is {span} offsets behind the newest, the limit is {limits.span_max}"
            )
        return None

    def _lowest(self) -> int:
        run = self._runs[0]
        return run.offsets[run.first]


def _ascending(messages: Sequence[ReceivedMessage], floor: int) -> list[ReceivedMessage]:
    """The messages from `floor` on, without those that repeat or go back."""
    found: list[ReceivedMessage] = []
    for message in messages:
        if message.queue_offset >= floor:
            found.append(message)
            floor = message.queue_offset + 1
    return found
