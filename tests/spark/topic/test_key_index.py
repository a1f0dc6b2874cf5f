"""Keys through the index: the few places where they lie, and whole ranges where the index cannot be relied on."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from kappamq import Message
from kappamq.spark.topic import key_index
from kappamq.spark.topic.key_index import ranges_of_keys
from kappamq.spark.topic.options import ReadOptions
from kappamq.spark.topic.planning import QueueRange
from kappamq.spark.topic.source import BatchReader
from kappamq.spark.topic.topics import Topics
from kappamq.testing import BrokerKit


@pytest.fixture
def tea(kappamq_broker: BrokerKit) -> BrokerKit:
    with kappamq_broker.admin() as admin:
        admin.create_topic("tea", queues=2)
    with kappamq_broker.producer() as producer:
        for first in range(0, 400, 100):
            producer.send_batch(
                [Message("tea", b"%d" % n, keys=(f"k{n}", "often", f"all{n % 100}")) for n in range(first, first + 100)]
            )
    return kappamq_broker


def look(broker: BrokerKit) -> tuple[Topics, list[QueueRange]]:
    topics = Topics(ReadOptions(nameservers=broker.nameserver, topics=("tea",)))
    return topics, [QueueRange(queue, at.min, at.max) for queue, at in topics.bounds().items()]


def test_only_the_places_of_a_key_are_read(tea: BrokerKit) -> None:
    topics, ranges = look(tea)
    found = ranges_of_keys(topics, ranges, ["k17", "k301", "none"])
    assert [one.count for one in found] == [1, 1]
    assert len(ranges_of_keys(topics, ranges, ["all5"])) == 4
    assert ranges_of_keys(topics, ranges, ["none"]) == []
    (place,) = ranges_of_keys(topics, ranges, ["k17"])
    others = [dataclasses.replace(one, start=place.stop) for one in ranges if one.queue == place.queue]
    assert ranges_of_keys(topics, others, ["k17"]) == []


def test_more_than_an_answer_holds_is_read_from_the_queues(tea: BrokerKit, monkeypatch: pytest.MonkeyPatch) -> None:
    topics, ranges = look(tea)
    assert ranges_of_keys(topics, ranges, ["often"]) == ranges
    monkeypatch.setattr(key_index, "KEYS_MAX", 1)
    assert ranges_of_keys(topics, ranges, ["k1", "k2"]) == ranges


@pytest.mark.parametrize("what", ["nothing", "behind"])
def test_an_index_that_lacks_messages_is_not_used(tea: BrokerKit, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """Switched off, or not as far as the log: what it does not find may be there all the same."""
    topics, ranges = look(tea)
    real = topics.looked_up

    def looked_up(topic: str, key: str, **options: Any) -> Any:
        found = real(topic, key, **options)
        return (
            {} if what == "nothing" else {name: dataclasses.replace(one, log_offset=5) for name, one in found.items()}
        )

    monkeypatch.setattr(topics, "looked_up", looked_up)
    assert ranges_of_keys(topics, ranges, ["k17"]) == ranges


def test_a_batch_read_uses_it(tea: BrokerKit) -> None:
    options = ReadOptions.parse({"nameservers": tea.nameserver, "topic": "tea", "keys": "k17,all5"})
    reader = BatchReader(options, ["body"])
    (task,) = reader.partitions()
    assert sum(one.count for one in task.ranges) == 5  # type: ignore[attr-defined]
    bodies = [body for batch in reader.read(task) for body in batch.column("body").to_pylist()]
    assert sorted(map(int, bodies)) == [5, 17, 105, 205, 305]
