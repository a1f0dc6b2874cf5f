"""Brokers whose logs begin above 0, for tests of seeding."""

from __future__ import annotations

from typing import Any

from kappamq.broker.broker import Broker
from kappamq.protocol.headers.admin import DeleteTopic
from kappamq.protocol.headers.client import UpdateConsumerOffset
from tests.broker.operating import make_topic, ok
from tests.broker.running import Speaker, on_disk

SMALL: dict[str, Any] = {
    "segment_bytes": 64 << 10, "message_bytes_max": 16 << 10, "retention_hours": 0, "delete_hours": (),
    "clean_interval_ms": 3_600_000, "disk_clean_ratio": 1.0,
}  # fmt: skip


async def fill(speaker: Speaker, count: int = 40, topic: str = "tea", queue_id: int = 0) -> list[bytes]:
    """Send 8 kB messages, eight to a log file; the bodies."""
    bodies = [b"%d:" % number + b"x" * 8000 for number in range(count)]
    for body in bodies:
        assert (await speaker.send(topic, body, queue_id)).code == 0
    return bodies


async def shorten(broker: Broker) -> int:
    """Delete all log files but the last, as retention does; where the log begins now."""
    broker.writer.end_turn()
    await on_disk(broker)
    assert await broker.upkeep.delete_expired(asked=True), "nothing was deleted"
    assert broker.store.log.min > 0
    return broker.store.log.min


async def with_a_past(broker: Broker, speaker: Speaker) -> None:
    """Topics, groups, offsets, a deleted topic and one whose messages have all expired, and a log that begins above 0."""
    await speaker.subscribe("g", "tea")
    await make_topic(speaker, "old", 1)
    await fill(speaker, 3, "old")
    await make_topic(speaker, "gone", 1)
    await fill(speaker, 3, "gone")
    await ok(speaker, DeleteTopic(topic="gone"))
    await fill(speaker)
    await ok(speaker, UpdateConsumerOffset(consumer_group="g", topic="tea", queue_id=0, commit_offset=17))
    broker.upkeep.record_commits()
    await shorten(broker)
    await make_topic(speaker, "again", 1)
    await fill(speaker, 3, "again")
    await ok(speaker, DeleteTopic(topic="again"))
    await make_topic(speaker, "again", 1)
    await fill(speaker, 2, "again")
    await fill(speaker, 20)


def tables(broker: Broker) -> dict[str, Any]:
    """What the tables say, but for when they were changed."""
    found = {}
    for table in (broker.topics, broker.groups, broker.offsets, broker.queue_ends):
        values = dict(table.to_snapshot())
        values.pop("dataVersion", None)
        found[table.file] = values
    return found


def numbering(broker: Broker) -> dict[tuple[str, int], tuple[int, int, int]]:
    """The first message, the end and the next number of each queue that has ever had one."""
    kernel = broker.store.kernel
    topics = {*broker.topics.table, *broker.topics.deleted}
    return {
        (topic, queue_id): kernel.queue_state(topic, queue_id)[:3]
        for topic in topics
        for queue_id in kernel.queue_ids(topic)
        if kernel.queue_state(topic, queue_id).next
    }
