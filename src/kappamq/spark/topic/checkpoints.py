"""The content of a stream's checkpoint: for each queue the next offset, and a mark of the last message read. Pure.

The mark (log offset and CRC of that message) shows whether the queue is still the one that was read. A queue that lost its tail in a
power failure, or whose topic was recreated, may have grown past the offset by the time the stream resumes: without the mark the
messages in between would be missed silently.

    {"version": 1, "filter": "...", "queues": {"orders/broker-a/0": {"next": 42, "log": 18000, "crc": 123, "bytes": 300}}, "gaps": {...}}
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from kappamq.errors import ConfigError
from kappamq.message import MessageQueue
from kappamq.spark.topic.options import ReadOptions
from kappamq.spark.topic.planning import RETENTION, SHORTER, Bounds, Gap

VERSION: Final = 1
GAPS_MAX: Final = 1000
"""More gaps than this in one batch are counted, not listed."""


@dataclass(frozen=True, slots=True)
class Mark:
    """The message before an offset: its place in the broker's log, the CRC of its body, its size there."""

    log_offset: int
    crc: int
    size: int


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a queue is read. No mark: nothing of it was read yet, or its last message was gone before it could be checked."""

    next: int
    mark: Mark | None = None
    begin: int | None = None  # where the batch that ends here began, if not where the one before it ended


@dataclass(frozen=True, slots=True)
class Checkpoint:
    queues: Mapping[MessageQueue, Progress]
    filter: str = ""
    gaps: tuple[Gap, ...] = field(default=())  # found when this batch was planned

    @property
    def offsets(self) -> dict[MessageQueue, int]:
        return {queue: progress.next for queue, progress in self.queues.items()}

    def encode(self) -> dict[str, Any]:
        """With sorted keys: Spark compares offsets as text."""
        queues: dict[str, Any] = {}
        for queue, progress in sorted(self.queues.items()):
            entry = {"next": progress.next}
            if progress.begin is not None:
                entry["begin"] = progress.begin
            if progress.mark is not None:
                entry |= {"log": progress.mark.log_offset, "crc": progress.mark.crc, "bytes": progress.mark.size}
            queues[f"{queue.topic}/{queue.broker}/{queue.queue_id}"] = entry
        found: dict[str, Any] = {"version": VERSION, "filter": self.filter, "queues": queues}
        if self.gaps:
            found["gaps"] = {
                str(number): {
                    "topic": gap.queue.topic, "broker": gap.queue.broker, "queue": gap.queue.queue_id, "from": gap.start,
                    "to": gap.stop, "count": gap.stop - gap.start, "reason": gap.reason,
                }
                for number, gap in enumerate(self.gaps[:GAPS_MAX])
            }  # fmt: skip
        return found

    @classmethod
    def decode(cls, data: Mapping[str, Any]) -> Checkpoint:
        """Raises ConfigError for a text that this version cannot have written."""
        try:
            if data["version"] != VERSION:
                raise ConfigError(
                    f"the checkpoint has version {data['version']}, this KappaMQ knows {VERSION}: use the one that wrote it"
                )
            queues = {_queue(name): _progress(entry) for name, entry in data["queues"].items()}
            return cls(queues, str(data["filter"]), tuple(_gap(entry) for entry in data.get("gaps", {}).values()))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ConfigError(f"the checkpoint contains no offset of this source: {error!r}") from None


def _queue(name: str) -> MessageQueue:
    topic, _, rest = name.partition("/")
    broker, slash, number = rest.rpartition("/")
    if not slash:
        raise ValueError(f"{name!r} names no queue")
    return MessageQueue(topic, broker, int(number))


def _progress(entry: Mapping[str, int]) -> Progress:
    mark = Mark(int(entry["log"]), int(entry["crc"]), int(entry["bytes"])) if "log" in entry else None
    return Progress(int(entry["next"]), mark, int(entry["begin"]) if "begin" in entry else None)


def _gap(entry: Mapping[str, Any]) -> Gap:
    queue = MessageQueue(entry["topic"], entry["broker"], entry["queue"])
    return Gap(queue, entry["from"], entry["to"], entry["reason"])


def filter_name(options: ReadOptions) -> str:
    """Return the identity of a selection of messages, which is kept in the checkpoint."""
    parts = (options.tags or "", ",".join(sorted(options.keys)), options.filter or "")
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16] if any(parts) else ""


def check_filter(checkpoint: Checkpoint, now: str) -> None:
    """Raise ConfigError if the checkpoint was written with other filters: its offsets have skipped other messages."""
    if checkpoint.filter != now:
        raise ConfigError(
            "tags, keys or filter are not those that this checkpoint was written with: messages that it skipped would stay "
            "unread. Use the old ones, or begin with a new checkpoint"
        )


def other_topics(checkpoint: Checkpoint, options: ReadOptions) -> tuple[list[str], list[str]]:
    """Return the topics of the checkpoint that are not read now, and those read now that it does not have; a pattern may find new ones."""
    before = {queue.topic for queue in checkpoint.queues}
    if (pattern := options.topic_pattern) is not None:
        return sorted(topic for topic in before if not re.fullmatch(pattern, topic)), []
    return sorted(before - set(options.topics)), sorted(set(options.topics) - before)


def lost(start: Checkpoint, bounds: Mapping[MessageQueue, Bounds], marks: Mapping[MessageQueue, Mark]) -> list[Gap]:
    """Return what the queues lost, of unread or read messages: retention was faster, or a queue was replaced.

    `marks` are those of the last message read, as the broker has it now. A queue is missing there if it was not looked up, or if that
    message cannot be read any more (it is damaged, or retention deleted it just now): then nothing is known, which does not count as
    loss."""
    gaps: list[Gap] = []
    for queue, progress in sorted(start.queues.items()):
        there = bounds.get(queue)
        if there is None:
            continue  # its broker may come back; until then nothing is read of it
        if progress.next > there.max:
            gaps.append(Gap(queue, there.max, progress.next, SHORTER))
        elif progress.next < there.min:
            gaps.append(Gap(queue, progress.next, there.min, RETENTION))
        elif progress.mark is not None and marks.get(queue, progress.mark) != progress.mark:
            gaps.append(
                Gap(
                    queue,
                    there.min,
                    progress.next,
                    "the queue was truncated or recreated and has grown again: unread messages among these",
                )
            )
    return gaps


def shares(lag: Mapping[MessageQueue, int], rows: int) -> dict[MessageQueue, int]:
    """Divide `rows` among queues by the lag of each, at least one for each that lags. Deterministic.

    The total exceeds `rows` only if more queues than rows lag."""
    lagging = {queue: behind for queue, behind in sorted(lag.items()) if behind > 0}
    total = sum(lagging.values())
    if total <= rows:
        return lagging
    given = {queue: max(1, behind * rows // total) for queue, behind in lagging.items()}
    for queue in sorted(given, key=lambda queue: (-given[queue], queue)):
        over = sum(given.values()) - rows
        if over <= 0:
            break
        given[queue] -= min(over, given[queue] - 1)
    for queue in sorted(lagging, key=lambda queue: (given[queue] - lagging[queue], queue)):
        left = rows - sum(given.values())
        if left <= 0:
            break
        given[queue] += min(left, lagging[queue] - given[queue])
    return given


def mean_bytes(marks: Iterable[Mark]) -> int:
    """Estimate the bytes of a message from one of each queue; 1 KiB if nothing is known."""
    sizes = [mark.size for mark in marks]
    return max(1, sum(sizes) // len(sizes)) if sizes else 1024
