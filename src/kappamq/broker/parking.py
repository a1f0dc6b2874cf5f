"""Messages that wait: parked in a system topic under their real address, and taken out again as a copy that goes there."""

from __future__ import annotations

import logging

from kappamq.broker.appending import Draft
from kappamq.broker.topics import Topics
from kappamq.errors import IllegalMessage
from kappamq.protocol import names, properties
from kappamq.protocol.record import Record

log = logging.getLogger(__name__)

_DIGITS_MAX = 18  # what fits into 64 bits for sure


def park(draft: Draft, topic: str, queue_id: int) -> None:
    """Have `draft` stored in a queue where it waits; it carries its address along."""
    draft.properties[properties.REAL_TOPIC] = draft.topic
    draft.properties[properties.REAL_QUEUE_ID] = str(draft.queue_id)
    draft.topic, draft.queue_id = topic, queue_id


def delivered(record: Record, topics: Topics) -> Draft | None:
    """The copy of a parked record for its real address; None if it has none (any more), which is logged.

    As with RocketMQ, what was noted while it was parked stays readable in its properties."""
    draft = Draft.of(record)
    draft.waited = True
    name = draft.properties.get(properties.REAL_TOPIC, "")
    queue_id = draft.properties.get(properties.REAL_QUEUE_ID, "")
    topic = topics.get(name)
    if not name or not names.is_sendable(name) or not queue_id.isdecimal():
        log.error(
            "the message parked at %d names no topic that it could go to (%r): passed over", record.log_offset, name
        )
        return None
    if topic is None:
        log.warning("the message parked at %d is for topic %s, which was deleted: passed over", record.log_offset, name)
        return None
    draft.topic, draft.queue_id = name, int(queue_id)
    if draft.queue_id >= max(topic.read_queues, topic.write_queues) and topic.write_queues:
        draft.queue_id %= topic.write_queues  # the topic has shrunk meanwhile: nobody would look there
    return draft


def number(draft: Draft, name: str) -> int | None:
    """A property that is to be a whole number, None if it is missing. Raises IllegalMessage for anything else."""
    text = draft.properties.get(name)
    if text is None:
        return None
    digits = text[1:] if text[:1] in ("-", "+") else text
    if not (digits.isascii() and digits.isdigit() and len(digits) <= _DIGITS_MAX):
        raise IllegalMessage(f"the property {name} must be a whole number, got {text[:40]!r}")
    return int(text)
