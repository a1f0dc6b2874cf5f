"""Messages and held queues for tests of single parts of a consumer."""

from __future__ import annotations

from typing import Any

from kappamq.client.pulling.process_queue import Limits, ProcessQueue
from kappamq.message import MessageQueue, ReceivedMessage

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


def held(count: int, queue: MessageQueue = QUEUE) -> ProcessQueue:
    """A queue that holds `count` messages, from offset 0 on."""
    made = ProcessQueue(queue, 0, Limits())
    made.add([message(n, queue) for n in range(count)], count)
    return made
