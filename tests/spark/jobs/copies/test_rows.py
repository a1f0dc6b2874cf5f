"""Each source queue has one target queue, and its messages stay in order there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kappamq.message import MessageQueue
from kappamq.spark.jobs.copies import rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SOURCES = [MessageQueue("orders", "b", number) for number in range(5)]
TARGETS = [MessageQueue("copy", "b", number) for number in range(2)]


def test_lanes_are_given_evenly_and_the_same_each_time() -> None:
    chosen = rows.lanes(SOURCES, TARGETS)
    assert list(chosen.values()) == [TARGETS[0], TARGETS[1], TARGETS[0], TARGETS[1], TARGETS[0]]
    assert rows.lanes(reversed(SOURCES), list(reversed(TARGETS))) == chosen


@given(st.sets(st.integers(0, 200), min_size=1), st.integers(1, 9))
def test_every_source_has_a_lane_and_none_has_two_more_than_another(numbers: set[int], targets: int) -> None:
    sources = [MessageQueue("orders", "b", number) for number in numbers]
    chosen = rows.lanes(sources, [MessageQueue("copy", "b", number) for number in range(targets)])
    assert chosen.keys() == set(sources)
    loads = [list(chosen.values()).count(MessageQueue("copy", "b", number)) for number in range(targets)]
    assert max(loads) - min(loads) <= 1


@pytest.mark.spark
def test_messages_of_a_queue_go_to_one_queue_in_order(spark: SparkSession) -> None:
    schema = (
        "topic string, brokerName string, queueId int, queueOffset bigint, body string, keys array<string>, tags string, "
        "properties map<string,string>"
    )
    found: list[tuple[Any, ...]] = [
        ("orders", "b", queue, offset, f"{queue}/{offset}", ["k"], "t", {"__SHARDINGKEY": "s"})
        for offset in (2, 0, 1)
        for queue in range(5)
    ]
    frame = spark.createDataFrame(found, schema)
    for placed in (rows.by_lane(frame, rows.lanes(SOURCES, TARGETS)), rows.by_hash(frame, TARGETS)):
        messages = rows.as_messages(rows.in_order(placed, 2), "copy").collect()
        assert len(messages) == 15
        queue_of: dict[str, set[int]] = {}
        order: dict[str, list[str]] = {}
        for message in messages:
            assert (message.topic, message.brokerName, message.shardingKey) == ("copy", "b", "s")
            source, _, offset = message.body.partition("/")
            queue_of.setdefault(source, set()).add(message.queueId)
            order.setdefault(source, []).append(offset)
        assert all(len(queues) == 1 for queues in queue_of.values())
        assert all(offsets == ["0", "1", "2"] for offsets in order.values())
