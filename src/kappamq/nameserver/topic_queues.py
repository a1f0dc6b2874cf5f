"""Topic -> queue data by broker, and the inverse, so that removing a broker does not require a scan of all topics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from kappamq.protocol.bodies.all import QueueData

_NOTHING: Mapping[str, QueueData] = {}


class TopicQueues:
    def __init__(self) -> None:
        self._queues: dict[str, dict[str, QueueData]] = {}
        self._topics_of: dict[str, set[str]] = {}
        self._mappings: dict[str, dict[str, Any]] = {}

    def __len__(self) -> int:
        return len(self._queues)

    def __contains__(self, topic: str) -> bool:
        return topic in self._queues

    def count_new(self, topics: Mapping[str, Any]) -> int:
        """Return how many of these topics are not registered yet."""
        return len(topics.keys() - self._queues.keys())

    def names(self) -> list[str]:
        return sorted(self._queues)

    def of_topic(self, topic: str) -> Mapping[str, QueueData]:
        """Return the queue data by broker name."""
        return self._queues.get(topic, _NOTHING)

    def of_brokers(self, broker_names: Iterable[str]) -> set[str]:
        """Return the topics that any of these brokers has."""
        return {topic for name in broker_names for topic in self._topics_of.get(name, ())}

    def put(self, topic: str, queues: QueueData) -> None:
        self._queues.setdefault(topic, {})[queues.broker_name] = queues
        self._topics_of.setdefault(queues.broker_name, set()).add(topic)

    def drop(self, topic: str, broker_name: str) -> None:
        """Remove a topic of a broker."""
        _drop(self._queues, topic, broker_name)
        _drop(self._mappings, topic, broker_name)
        topics = self._topics_of.get(broker_name, set())
        topics.discard(topic)
        if not topics:
            self._topics_of.pop(broker_name, None)

    def change_permissions(self, broker_name: str, change: Callable[[int], int]) -> int:
        """Apply `change` to the permission of each topic of a broker; returns how many there are."""
        topics = self._topics_of.get(broker_name, ())
        for topic in topics:
            queues = self._queues[topic][broker_name]
            self._queues[topic][broker_name] = replace(queues, permission=change(queues.permission))
        return len(topics)

    def with_flags(self, present: int, absent: int = 0) -> list[str]:
        """Return the topics whose system flag has all bits of `present` and none of `absent`."""
        return sorted(
            topic
            for topic, queues in self._queues.items()
            if (flag := next(iter(queues.values())).sys_flag) & present == present and not flag & absent
        )

    def put_mapping(self, topic: str, broker_name: str, info: Any) -> None:
        """Store what a broker registers about a static topic; it is not interpreted here."""
        if broker_name in self._queues.get(topic, _NOTHING):
            self._mappings.setdefault(topic, {})[broker_name] = info

    def mappings(self, topic: str) -> dict[str, Any] | None:
        found = self._mappings.get(topic)
        return dict(found) if found else None


def _drop(table: dict[str, dict[str, Any]], topic: str, broker_name: str) -> None:
    by_broker = table.get(topic)
    if by_broker is not None:
        by_broker.pop(broker_name, None)
        if not by_broker:
            del table[topic]
