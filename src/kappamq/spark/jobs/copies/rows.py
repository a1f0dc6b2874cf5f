"""Converts messages that were read to messages to write: the fields to keep, and the target queue of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from kappamq.message import MessageQueue
from kappamq.protocol.records import properties

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

READ: Final = (
    "topic",
    "brokerName",
    "queueId",
    "queueOffset",
    "storeTimestamp",
    "msgId",
    "keys",
    "tags",
    "properties",
    "body",
)
"""Columns that a copy needs."""
_PLACE: Final = ("topic", "brokerName", "queueId")


def lanes(sources: Iterable[MessageQueue], targets: Sequence[MessageQueue]) -> dict[MessageQueue, MessageQueue]:
    """Map every source queue to one target queue, evenly, so that its messages stay in order."""
    ordered = sorted(targets)
    return {source: ordered[number % len(ordered)] for number, source in enumerate(sorted(set(sources)))}


def by_lane(frame: DataFrame, chosen: Mapping[MessageQueue, MessageQueue]) -> DataFrame:
    """Add the target of each message, from a table of source queues."""
    from pyspark.sql import functions as sql

    keys = [_key(sql.lit(queue.topic), sql.lit(queue.broker), sql.lit(queue.queue_id)) for queue in chosen]
    table = sql.create_map(
        *[part for key, target in zip(keys, chosen.values(), strict=True) for part in (key, _target(target))]
    )
    return frame.select("*", sql.element_at(table, _key(*map(sql.col, _PLACE))).alias("target"))


def by_hash(frame: DataFrame, targets: Sequence[MessageQueue]) -> DataFrame:
    """Add the target of each message, where source queues may appear later: the same for all messages of a queue."""
    from pyspark.sql import functions as sql

    ordered = sql.array(*map(_target, sorted(targets)))
    # The queues of a broker one after the other, so that as many target queues as possible are used.
    place = sql.pmod(sql.hash("topic", "brokerName").cast("bigint") + sql.col("queueId"), sql.lit(len(targets))) + 1
    return frame.select("*", sql.element_at(ordered, place.cast("int")).alias("target"))


def in_order(frame: DataFrame, tasks: int) -> DataFrame:
    """Put all messages of a target queue into one task, in the order of their source queues."""
    return frame.repartition(tasks, "target").sortWithinPartitions("target", *_PLACE, "queueOffset")


def as_messages(frame: DataFrame, topic: str) -> DataFrame:
    """Return the messages to write. Ids and times are assigned anew; everything that an application has set is kept."""
    from pyspark.sql import functions as sql

    key = sql.element_at("properties", sql.lit(properties.SHARDING_KEY))
    return frame.select(
        sql.lit(topic).alias("topic"),
        "body", "keys", "tags", "properties",
        key.alias("shardingKey"),
        sql.col("target.broker").alias("brokerName"),
        sql.col("target.queue").alias("queueId"),
    )  # fmt: skip


def _key(topic: Column, broker: Column, queue: Column) -> Any:
    from pyspark.sql import functions as sql

    return sql.concat_ws("/", topic, broker, queue.cast("string"))


def _target(queue: MessageQueue) -> Any:
    from pyspark.sql import functions as sql

    return sql.struct(sql.lit(queue.broker).alias("broker"), sql.lit(queue.queue_id).alias("queue"))
