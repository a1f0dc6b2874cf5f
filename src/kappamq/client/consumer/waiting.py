"""The messages of one queue that wait for a reader, as pulled, and those that a reader has taken."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from kappamq.client.pulling.process_queue import ProcessQueue
from kappamq.message import ReceivedMessage
from kappamq.protocol.records.messages import MessageBlock


@dataclass(slots=True, eq=False)
class Delivery:
    """Messages of one queue that one reader has taken."""

    queue: ProcessQueue
    messages: list[ReceivedMessage]
    offsets: list[int] = field(default_factory=list)
    """Their queue offsets: reading them from the messages would decode each."""

    def __post_init__(self) -> None:
        if not self.offsets:
            self.offsets = [message.queue_offset for message in self.messages]

    @property
    def message(self) -> ReceivedMessage:
        return self.messages[0]

    def part(self, first: int, end: int) -> Delivery:
        """The messages [first, end)."""
        if not first and end == len(self.messages):
            return self
        return Delivery(self.queue, self.messages[first:end], self.offsets[first:end])

    def acknowledge(self, first: int = 0, end: int | None = None) -> None:
        """Acknowledge the messages [first, end), by default all."""
        if not first and end is None and len(self.offsets) == 1:
            self.queue.acknowledge(self.offsets[0])
            return
        self.queue.acknowledge_all(self.offsets[first:end])


class Hand:
    """Messages that a thread processes one after the other, each with the time at which its listener was called.

    The thread takes from the front of `left`, and others from the end, if it is stuck. Each step is a single operation of a deque, and
    these
    are atomic: no lock is needed. `whole`: the listener gets all messages at once."""

    __slots__ = ("_finished", "current", "delivery", "left", "whole")

    def __init__(self, delivery: Delivery, *, whole: bool) -> None:
        self.delivery = delivery
        self.whole = whole
        self.left: deque[int] = deque((0,) if whole else range(len(delivery.messages)))
        self.current: deque[tuple[int, float]] = deque()  # at most one
        self._finished: deque[int] = deque()

    def one(self, number: int) -> Delivery:
        """The listener's argument for this number."""
        return self.delivery if self.whole else self.delivery.part(number, number + 1)

    def finish(self, number: int) -> None:
        self._finished.append(number)

    def begun(self) -> tuple[int, float] | None:
        """The number of the message that is being processed, and when that began."""
        try:
            return self.current[0]
        except IndexError:
            return None

    def give_up(self, begun: tuple[int, float]) -> bool:
        """Take the message from its thread. Returns False if the thread has come back with it a moment ago."""
        try:
            self.current.remove(begun)
        except (ValueError, IndexError):
            return False
        return True

    def take_left(self) -> list[Delivery]:
        """Take the messages that the thread has not begun with. If two callers take them at once, each gets a part."""
        return self._parts(sorted(_all_of(self.left.pop)))

    def take_finished(self) -> list[Delivery]:
        """Take the messages that were processed since the last call."""
        return self._parts(_all_of(self._finished.popleft))

    def _parts(self, numbers: Iterable[int]) -> list[Delivery]:
        """Group consecutive messages."""
        found: list[Delivery] = []
        first = end = 0
        for number in numbers:
            if number != end:
                if end > first:
                    found.append(self.delivery.part(first, end))
                first = number
            end = number + 1
        if end > first:
            found.append(self.delivery if self.whole else self.delivery.part(first, end))
        return found


def _all_of(take: Callable[[], int]) -> Iterator[int]:
    while True:
        try:
            yield take()
        except IndexError:
            return


class Waiting:
    """Objects are made when messages are taken, by the reader's thread: until then only the bytes of an answer and the places of the
    messages are kept."""

    __slots__ = ("_at", "_count", "_parts")

    def __init__(self) -> None:
        self._parts: deque[tuple[Sequence[ReceivedMessage], Sequence[int]]] = deque()  # with their offsets
        self._at = 0  # how many of the first part are taken
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def append(self, messages: Iterable[ReceivedMessage]) -> int:
        """Return how many there were."""
        part = _part(messages)
        if part[0]:
            self._parts.append(part)
            self._count += len(part[0])
        return len(part[0])

    def put_first(self, messages: Iterable[ReceivedMessage], offsets: Sequence[int] | None = None) -> None:
        part = _part(messages) if offsets is None else (list(messages), offsets)
        if self._at:
            first, offsets = self._parts.popleft()
            self._parts.appendleft((first[self._at :], offsets[self._at :]))
            self._at = 0
        if part[0]:
            self._parts.appendleft(part)
            self._count += len(part[0])

    def take(self, queue: ProcessQueue, count_max: int) -> Delivery:
        """Take up to `count_max` messages, at least one. There must be one."""
        if count_max == 1:
            return self._take_one(queue)
        messages: list[ReceivedMessage] = []
        taken: list[int] = []
        while self._parts and len(messages) < count_max:
            part, offsets = self._parts[0]
            at = self._at
            end = min(len(part), at + count_max - len(messages))
            if end == at + 1:
                messages.append(part[at])
                taken.append(offsets[at])
            else:
                messages += part[at:end]
                taken += offsets[at:end]
            if end == len(part):
                self._parts.popleft()
                self._at = 0
            else:
                self._at = end
        self._count -= len(messages)
        return Delivery(queue, messages, taken)

    def _take_one(self, queue: ProcessQueue) -> Delivery:
        part, offsets = self._parts[0]
        at = self._at
        message, offset = part[at], offsets[at]
        self._count -= 1
        self._at = at + 1
        if self._at == len(offsets):
            self._parts.popleft()
            self._at = 0
        return Delivery(queue, [message], [offset])


def _part(messages: Iterable[ReceivedMessage]) -> tuple[Sequence[ReceivedMessage], Sequence[int]]:
    if isinstance(messages, MessageBlock):
        return messages, messages.offsets
    listed = list(messages)
    return listed, [message.queue_offset for message in listed]
