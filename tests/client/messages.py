"""Messages and held queues for tests of single parts of a client."""

from __future__ import annotations

from typing import Any

from kappamq.client.pulling.process_queue import Limits, ProcessQueue
from kappamq.message import Message, MessageQueue, ReceivedMessage
from kappamq.protocol.records.messages import MessageBlock, messages_in_place
from kappamq.protocol.records.record import Record

QUEUE = MessageQueue("tea", "broker-0", 0)


def message(offset: int, queue: MessageQueue = QUEUE, **changes: Any) -> ReceivedMessage:
    values: dict[str, Any] = {
        "topic": queue.topic,
        "body": b"%d" % offset,
        "queue": queue,
        "queue_offset": offset,
        "log_offset": offset * 1000,
        "message_id": f"id-{offset}",
        "offset_id": f"at-{offset}",
    }
    return ReceivedMessage(**(values | changes))


def block(first: int, count: int) -> MessageBlock:
    """Messages that lie in the bytes of an answer, from this offset on."""
    listed = [Record(topic=QUEUE.topic, body=b"%d" % n, queue_offset=n) for n in range(first, first + count)]
    stored = messages_in_place(b"".join(one.encode() for one in listed), QUEUE.broker, first, first + count)
    assert stored is not None
    return MessageBlock(stored, 0, stored.count)


def held(count: int, queue: MessageQueue = QUEUE) -> ProcessQueue:
    """A queue that holds `count` messages, from offset 0 on."""
    made = ProcessQueue(queue, 0, Limits())
    made.add([message(n, queue) for n in range(count)], count)
    return made


class Unreadable(Message):
    """A message to send whose class, of the application, fails when it is asked for a field."""

    @property
    def flag(self) -> int:  # type: ignore[override]
        raise RuntimeError("unreadable")
