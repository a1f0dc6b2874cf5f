"""Facts from the files beside the log: the ranges of the queues, the offsets of groups and delay levels. Runs on the driver.

Collected before the log is read: a running broker only appends to the log meanwhile.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from kappamq.errors import NoSuchTopic, ProtocolError, StoreFormatError
from kappamq.protocol.bodies.admin import ConsumerOffsets, DelayOffsets
from kappamq.protocol.names import KAPPAMQ_TOPIC_PREFIX, LMQ_PREFIX, SCHEDULE_TOPIC, is_system_topic
from kappamq.protocol.records.record import Record
from kappamq.spark.suggestions import nearest
from kappamq.store import snapshots
from kappamq.store.log.stretches import Stretches
from kappamq.store.reader import FOREVER, QueueRange, StoreReader

METADATA_TOPIC: Final = f"{KAPPAMQ_TOPIC_PREFIX}metadata"
"""Where our brokers record commits, about once a second; the files in config/ follow."""
OffsetTable = dict[tuple[str, str, int], int]
"""(group, topic, queue) -> the offset of the first message that the group has not processed."""


@dataclass(slots=True)
class Facts:
    log_min: int
    log_end: int
    queues: list[QueueRange]
    offsets: OffsetTable = field(default_factory=dict)
    topics: frozenset[str] | None = None  # that exist; None: unknown
    delays_ms: dict[int, int] = field(default_factory=dict)  # delay level -> how long its messages wait
    # delay level -> its first message that was not delivered yet
    delivered: dict[int, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)  # facts that could not be determined


def gather(root: Path) -> Facts:
    """Raises StoreError if there is no store."""
    with StoreReader(root) as store:
        facts = Facts(store.log.min, 0, [])
        config = _Config(root / "config", facts.notes)
        facts.offsets = _offsets(config, store)
        delivered = config.load("delayOffset.json")
        if delivered is not None:
            facts.delivered = _body(DelayOffsets, delivered.table, "delayOffset.json").offsets
        facts.topics = config.topics()
        facts.log_end = Stretches(store).end()
        facts.queues = list(_queues(store, facts.log_end))
        facts.delays_ms = _delays(store, facts.queues)
        if not facts.queues:
            facts.notes.append(
                "there are no consume queues (kappamq pipeline rebuild makes them): what is missing at the beginning or end "
                "of a queue cannot be seen"
            )
    return facts


def known_topics(root: Path) -> frozenset[str]:
    """Return the topics that queues or `topics.json` name, without reading the log; none if there is only a log. Raises StoreError."""
    with StoreReader(root) as store:
        return frozenset(store.topics()) | (_Config(root / "config", []).topics() or frozenset())


def refuse_unknown(root: Path, topics: Collection[str], known: Collection[str]) -> None:
    """Raises NoSuchTopic if one of `topics` is not among the known ones: an audit of nothing would find nothing wrong."""
    for topic in topics:
        if topic not in known:
            near = nearest(topic, [name for name in known if not is_system_topic(name)])
            raise NoSuchTopic(f"topic {topic!r} does not exist in {root}{near}")


def begins_now(root: Path) -> tuple[int, dict[tuple[str, int], int]]:
    """Return where the log and each queue begin, after retention may have moved them."""
    with StoreReader(root) as store:
        return store.log.min, {(queue.topic, queue.queue_id): queue.min for queue in _queues(store, FOREVER)}


def _queues(store: StoreReader, end: int) -> Iterator[QueueRange]:
    """Yield the messages of the log below `end` that the queues' entries promise."""
    store.log.refresh()
    for topic, queue_id in sorted(store.queue_files.queues()):
        if not topic.startswith(LMQ_PREFIX):  # those list messages of other topics
            yield QueueRange(topic, queue_id, *store.queue_files.bounds(topic, queue_id, store.log.min, end))


def _delays(store: StoreReader, queues: list[QueueRange]) -> dict[int, int]:
    """Return how long each delay level waits, a setting of the broker: the entry of its newest message shows it, since it names the due
    time."""
    found = {}
    for queue in queues:
        if queue.topic == SCHEDULE_TOPIC and queue.min < queue.max:
            for _offset, log_offset, _size, due_ms in store.entries(
                queue.topic, queue.queue_id, queue.max - 1, queue.max
            ):
                record = store.at(log_offset)
                if record is not None and due_ms >= record.stored_ms:
                    found[queue.queue_id + 1] = due_ms - record.stored_ms
    return found


# -- consumer offsets ------------------------------------------------------------------------------------------------------


def _offsets(config: _Config, store: StoreReader) -> OffsetTable:
    snapshot = config.load("consumerOffset.json")
    found: OffsetTable = {}
    if snapshot is not None:
        for name, queues in _body(ConsumerOffsets, snapshot.table, "consumerOffset.json").offsets.items():
            topic, _, group = name.partition("@")
            found |= {(group, topic, queue): offset for queue, offset in queues.items()}
        if snapshot.log_offset is None:
            return found  # a Java broker has only this file
    for record in _behind(store, 0 if snapshot is None or snapshot.log_offset is None else snapshot.log_offset):
        apply_change(found, record.body)
    return found


def _behind(store: StoreReader, log_offset: int) -> Iterator[Record]:
    """Yield the metadata records from `log_offset` on."""
    queue = store.queue(METADATA_TOPIC, 0)
    low, high = queue.min, queue.max
    while low < high:
        middle = (low + high) // 2
        entry = next(store.entries(METADATA_TOPIC, 0, middle, middle + 1), None)
        if entry is None or entry[1] < log_offset:
            low = middle + 1
        else:
            high = middle
    return store.read(METADATA_TOPIC, 0, low, skip_damage=True)


def apply_change(offsets: OffsetTable, body: bytes) -> None:
    """Repeat a change that a broker recorded; other kinds, and invalid ones, are ignored."""
    try:
        told = json.loads(body)
        kind, change = told["kind"], told["change"]
        if kind == "offsets":
            for topic, group, queues in change:
                offsets |= {(group, topic, int(queue)): int(offset) for queue, offset in queues.items()}
        elif kind == "offsets-reset":
            topic, group, queues = change
            offsets |= {(group, topic, int(queue)): int(offset) for queue, offset in queues.items()}
        elif kind == "offsets-deleted":
            topic, group = change
            for key in [key for key in offsets if topic in (None, key[1]) and group in (None, key[0])]:
                del offsets[key]
    except (ValueError, LookupError, TypeError, AttributeError):
        return


# -- the files in config/ --------------------------------------------------------------------------------------------------


class _Config:
    """Reads snapshots as they are. A broker would move damaged ones aside; here nothing is written."""

    def __init__(self, folder: Path, notes: list[str]) -> None:
        self._folder = folder
        self._notes = notes

    def load(self, name: str) -> snapshots.Snapshot | None:
        for path in (self._folder / name, self._folder / f"{name}.bak"):
            try:
                found = snapshots.decode(path.read_bytes())
            except FileNotFoundError:
                continue
            except (ProtocolError, OSError) as error:
                self._notes.append(f"{path} cannot be read: {error}")
                continue
            if not found.damaged:
                return found
            self._notes.append(f"{path} is not used: {found.note}")
        return None

    def topics(self) -> frozenset[str] | None:
        """Return the topics that exist; None if no file lists them."""
        found = self.load("topics.json")
        table = None if found is None else found.table.get("topicConfigTable")
        return frozenset(table) if isinstance(table, dict) else None


def _body(kind: Any, table: dict[str, Any], name: str) -> Any:
    try:
        return kind.from_json(table)
    except (ProtocolError, ValueError, TypeError, LookupError, AttributeError) as error:
        raise StoreFormatError(f"{name} is invalid: {error}. Correct it, or move it away") from error
