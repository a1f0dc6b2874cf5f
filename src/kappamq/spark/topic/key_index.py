"""Finds messages by key without reading whole queues: uses the brokers' key index where it is reliable.

An index may be disabled, may lag behind the log, or may have more messages of a key than fit into one answer, and a broker that
finds nothing reports none of this. So the index is first tested with messages that are known to exist: the first and the last
ones of the range to read. If it does not find them, the queues are read. Rows are checked later in either case.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import groupby
from typing import TYPE_CHECKING, Final

from kappamq.message import MessageQueue
from kappamq.protocol.records import properties
from kappamq.spark.topic.planning import QueueRange

if TYPE_CHECKING:
    from kappamq.protocol.records.record import Record
    from kappamq.spark.topic.topics import Topics

KEYS_MAX: Final = 100
"""Each key is a request to each broker; with more keys than this the queues are read."""


def ranges_of_keys(topics: Topics, ranges: Iterable[QueueRange], keys: Collection[str]) -> list[QueueRange]:
    """Return the places in `ranges` of messages with these keys, or whole ranges where the index is not reliable."""
    found: list[QueueRange] = []
    wanted = list(ranges)
    if len(keys) > KEYS_MAX:
        return wanted
    for (topic, broker), group in groupby(sorted(wanted), lambda one: (one.queue.topic, one.queue.broker)):
        mine = list(group)
        places = _places(topics, topic, broker, mine, keys)
        found += mine if places is None else _within(mine, places)
    return found


def _places(
    topics: Topics, topic: str, broker: str, ranges: list[QueueRange], keys: Collection[str]
) -> set[tuple[MessageQueue, int]] | None:
    if not _is_covered(topics, topic, broker, ranges):
        return None
    found: set[tuple[MessageQueue, int]] = set()
    for key in keys:
        answer = topics.looked_up(topic, key).get(broker)
        if answer is not None and not answer.whole:
            return None
        found.update(answer.places if answer is not None else ())
    return found


def _is_covered(topics: Topics, topic: str, broker: str, ranges: list[QueueRange]) -> bool:
    """Return whether the index has the oldest and the newest message of these ranges; then it has all others, as it is built in log
    order."""
    firsts = topics.messages_at({one.queue: one.start for one in ranges})
    lasts = topics.messages_at({one.queue: one.stop - 1 for one in ranges})
    if not len(firsts) == len(lasts) == len(ranges):
        return False
    newest = max(lasts.values(), key=_age)
    for record in (min(firsts.values(), key=_age), newest):
        message_id = record.property_map().get(properties.UNIQUE_KEY)
        answer = topics.looked_up(topic, message_id, unique=True).get(broker) if message_id else None
        if answer is None or answer.log_offset < newest.log_offset:
            return False
    return True


def _age(record: Record) -> int:
    return record.log_offset


def _within(ranges: list[QueueRange], places: Collection[tuple[MessageQueue, int]]) -> list[QueueRange]:
    return [
        QueueRange(queue, offset, offset + 1)
        for queue, offset in sorted(places)
        if any(one.queue == queue and one.start <= offset < one.stop for one in ranges)
    ]
