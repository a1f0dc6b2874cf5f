"""The messages of one queue that wait for a reader, as the pulls brought them, and what a reader has taken of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
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
    """Their queue offsets: reading them off the messages would decode each."""

    def __post_init__(self) -> None:
        if not self.offsets:
            self.offsets = [message.queue_offset for message in self.messages]

    @property
    def message(self) -> ReceivedMessage:
        return self.messages[0]

    def acknowledge(self, first: int = 0, end: int | None = None) -> None:
        """Acknowledge the messages [first, end), by default all."""
        if not first and end is None and len(self.offsets) == 1:
            self.queue.acknowledge(self.offsets[0])
            return
        self.queue.acknowledge_all(self.offsets[first:end])


class Waiting:
    """Objects are made when messages are taken, by the reader's thread: what waits are the bytes of an answer, and where they begin."""

    __slots__ = ("_at", "_count", "_parts")

    def __init__(self) -> None:
        self._parts: deque[tuple[Sequence[ReceivedMessage], Sequence[int]]] = deque()  # with their offsets
        self._at = 0  # how many of the first part are taken
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def append(self, messages: Iterable[ReceivedMessage]) -> int:
        """Returns how many there were."""
        part = _part(messages)
        if part[0]:
            self._parts.append(part)
            self._count += len(part[0])
        return len(part[0])

    def put_first(self, messages: Iterable[ReceivedMessage]) -> None:
        part = _part(messages)
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
