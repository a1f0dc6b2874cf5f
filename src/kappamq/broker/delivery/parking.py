"""Messages that wait: parked in a system topic with their real topic and queue, and later delivered there as a copy.

Copies are made from the bytes of the parked record: delivering a hundred thousand at once must not take long.
"""

from __future__ import annotations

import logging

from kappamq.broker.sending.appending import Draft
from kappamq.native.pure_record import GroupMember
from kappamq.protocol import names
from kappamq.protocol.records import properties
from kappamq.protocol.records.view import view_at
from kappamq.protocol.timing import value
from kappamq.state.topics import Topics

log = logging.getLogger(__name__)

_TARGETS_MAX = 10_000


def park(draft: Draft, topic: str, queue_id: int) -> None:
    """Store `draft` in a queue where it waits; its properties keep its real topic and queue."""
    draft.properties[properties.REAL_TOPIC] = draft.topic
    draft.properties[properties.REAL_QUEUE_ID] = str(draft.queue_id)
    draft.topic, draft.queue_id = topic, queue_id


class Unparking:
    """Makes the copies that parked messages are delivered as."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self._targets: dict[tuple[bytes, bytes], tuple[str, int] | None] = {}

    def begin(self) -> None:
        """A new group: topics may have changed since the last one."""
        self._targets.clear()

    def copy(self, data: bytes, timed_ms: int | None = None) -> GroupMember | None:
        """Return the copy of a (good) record for its real topic and queue; None if these do not exist (any more), which is logged.

        As in RocketMQ, the properties added for parking stay readable; and if it was a timer, which
        is delivered at `timed_ms`, that and the time of parking are added."""
        record = view_at(data, check_crc=False)
        (
            _size,
            _magic,
            _crc,
            _queue_id,
            flag,
            _offset,
            log_offset,
            sys_flag,
            born_ms,
            born,
            stored_ms,
            _store,
            reconsume_times,
            _prepared,
            _body_bytes,
        ) = record.head
        text = record.property_bytes
        if (
            b"__BATCH#" in text or b"__CRC32#" in text
        ):  # these described the record and its neighbours, which are not copied
            text = _without_those_of_the_record(text)
        key = value(text, b"REAL_TOPIC\x01"), value(text, b"REAL_QID\x01")
        target = self._targets[key] if key in self._targets else self._find(key, log_offset)
        if target is None:
            return None
        if timed_ms is not None:
            end_mark = b"" if text[-1:] == b"\x02" else b"\x02"
            text += b"%bTIMER_ENQUEUE_MS\x01%d\x02TIMER_DEQUEUE_MS\x01%d\x02" % (end_mark, stored_ms, timed_ms)
        return (*target, flag, sys_flag, born_ms, born, reconsume_times, log_offset, record.body, text)

    def _find(self, key: tuple[bytes, bytes], log_offset: int) -> tuple[str, int] | None:
        name, queue = (text.decode("utf-8", "replace") for text in key)
        topic = self._topics.get(name)
        found: tuple[str, int] | None = None
        if not name or not names.is_sendable(name) or not queue.isdecimal() or len(queue) > 9:
            log.error("the message parked at %d names no topic to deliver it to (%r): skipped", log_offset, name)
        elif topic is None:
            log.warning("the message parked at %d is for topic %s, which was deleted: skipped", log_offset, name)
        else:
            queue_id = int(queue)
            if queue_id >= max(topic.read_queues, topic.write_queues) and topic.write_queues:
                queue_id %= topic.write_queues  # the topic has shrunk meanwhile: no consumer reads there
            found = name, queue_id
        if len(self._targets) < _TARGETS_MAX:
            self._targets[key] = found
        return found


def _without_those_of_the_record(text: bytes) -> bytes:
    pairs = properties.decode(text.decode("utf-8", "replace"))
    for name in properties.OF_THE_RECORD:
        pairs.pop(name, None)
    return properties.encode(pairs).encode()
