"""Adopts the tables of an Apache master: topics, groups, consumer offsets, delivery positions of delays and timers.

None of this is recorded here: this node is a slave, and if it becomes the master the tables stay as they were then, as if a Java
broker had written their files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from kappamq.broker.tables import Tables
from kappamq.broker.timers.progress import FOREVER
from kappamq.broker.upkeep.slices import Worker
from kappamq.errors import ProtocolError
from kappamq.events import Events
from kappamq.protocol import fastjson
from kappamq.protocol.bodies.admin import ConsumerOffsets, DelayOffsets
from kappamq.protocol.bodies.clients import SubscriptionGroupTable
from kappamq.protocol.bodies.topics import TopicTable
from kappamq.protocol.frame import Frame
from kappamq.protocol.headers import admin
from kappamq.protocol.headers.header import Header
from kappamq.state.events import GroupChanged, TopicChanged
from kappamq.state.metadata import Metadata
from kappamq.store.timer.entries import CHECKPOINT_BYTES, TimerCheckpoint


@dataclass(frozen=True, slots=True)
class Asked:
    """A table: its request, and the answer in the form of a snapshot."""

    header: Callable[[], Header]
    read: Callable[[bytes], dict[str, Any]]
    file: str
    whole: bool = True  # entries that the master does not name are removed; else they stay


def _timer_progress(body: bytes) -> dict[str, Any]:
    if len(body) != CHECKPOINT_BYTES:
        raise ProtocolError(f"the master's timer checkpoint has {len(body)} bytes: {CHECKPOINT_BYTES} are expected")
    checkpoint = TimerCheckpoint.decode(body)
    if not checkpoint.read_ms:
        return {}
    # Timers too late for their slot were delivered at once; this is known only up to its place in the queue.
    late = [max(0, checkpoint.queue_offset), FOREVER, checkpoint.read_ms]
    return {"due": [checkpoint.read_ms, FOREVER], "late": late, "foreign": checkpoint.read_ms}


def _timer_metrics(body: bytes) -> dict[str, Any]:
    found = fastjson.loads(body)
    if not isinstance(found, dict):
        raise ProtocolError("the master's counts of timers are no JSON object")
    return found


TOPICS: Final = Asked(admin.GetAllTopicConfig, lambda body: TopicTable.decode(body).to_json(), "topics.json")
GROUPS: Final = Asked(
    admin.GetAllGroups, lambda body: SubscriptionGroupTable.decode(body).to_json(), "subscriptionGroup.json"
)
ASKED: Final = (
    TOPICS,
    GROUPS,
    Asked(
        admin.GetAllConsumerOffsets,
        lambda body: ConsumerOffsets.decode(body).to_json(),
        "consumerOffset.json",
        whole=False,
    ),
    Asked(admin.GetAllDelayOffsets, lambda body: DelayOffsets.decode(body).to_json(), "delayOffset.json"),
    Asked(admin.GetTimerCheckpoint, _timer_progress, "kappamq.timers.json", whole=False),
    Asked(admin.GetTimerMetrics, _timer_metrics, "timermetrics"),
)
"""Topics come first, since groups and offsets name them."""


class Adopting:
    def __init__(self, metadata: Metadata, tables: Tables, events: Events, worker: Worker) -> None:
        self._metadata = metadata
        self._tables = tables
        self._events = events
        self._worker = worker
        self._last: dict[str, bytes] = {}
        for asked in ASKED:
            assert metadata.has_table(asked.file), f"there is no table {asked.file}"

    async def adopt(self, asked: Asked, answer: Frame) -> None:
        """Adopt a table, if it has changed. Raises ProtocolError, without changing anything, for an invalid one."""
        body = bytes(answer.body)
        if self._last.get(asked.file) == body:
            return
        content = await self._worker(asked.read, body)
        topics, groups = dict(self._tables.topics.table), dict(self._tables.groups.table)
        self._metadata.adopt(asked.file, content, whole=asked.whole)
        self._last[asked.file] = body
        if asked is TOPICS:
            for topic in list(self._tables.topics.table.values()):
                if topics.get(topic.name) != topic:
                    self._events.publish(TopicChanged(topic))
        elif asked is GROUPS:
            known = self._tables.groups.table
            for name in groups.keys() | known.keys():
                if groups.get(name) != known.get(name):
                    self._events.publish(GroupChanged(name))
