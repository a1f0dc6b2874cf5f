"""Which messages a read covers, and how they are divided into tasks.

After a crash Spark plans again, and gets the same messages; on a machine with another number of cores they are divided into other tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from kappamq.errors import ConfigError, DataLoss
from kappamq.message import MessageQueue
from kappamq.spark.dividing import task_count
from kappamq.spark.topic.options import EARLIEST, LATEST, OnDataLoss, Position

TASK_ROWS_MAX: Final = 500_000
"""More messages than this become several tasks."""
TASK_ROWS_MIN: Final = 100_000
"""A task costs Spark some 15 ms on top of about half a microsecond for each row: queues with fewer messages share one."""


@dataclass(frozen=True, slots=True, order=True)
class QueueRange:
    """Messages [start, stop) of a queue."""

    queue: MessageQueue
    start: int
    stop: int

    @property
    def count(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Bounds:
    """A queue on a broker: messages [min, max)."""

    min: int
    max: int


@dataclass(frozen=True, slots=True)
class Gap:
    """Messages [start, stop) of a queue that should have been read and are not there."""

    queue: MessageQueue
    start: int
    stop: int
    reason: str

    def __str__(self) -> str:
        return f"{self.queue}: messages {self.start} to {self.stop - 1} are gone ({self.reason})"


RETENTION: Final = "deleted by retention"
SHORTER: Final = "the queue is shorter than it was: its tail is lost"
HOLE: Final = "the broker's queue has no entries for them"

Search = Callable[[MessageQueue, int], int]
"""Returns the first message of a queue that was stored at or after a time (ms)."""


def resolve(position: Position, bounds: Mapping[MessageQueue, Bounds], search: Search) -> dict[MessageQueue, int]:
    """Return the offset of `position` in each queue. Raises ConfigError for queues that do not exist, and for offsets beyond their end:
    beginning elsewhere would be surprising, and messages that never existed are not lost."""
    if position.time_ms is not None:
        return {queue: search(queue, position.time_ms) for queue in bounds}
    if position.by_queue is None:
        return {queue: _at(position.everywhere, limits) for queue, limits in bounds.items()}
    known = {(queue.topic, name_of(queue)): queue for queue in bounds}
    named = {(topic, name): at for topic, queues in position.by_queue.items() for name, at in queues.items()}
    if unknown := sorted(named.keys() - known.keys()):
        there = ", ".join(f"{topic} {name}" for topic, name in sorted(known)[:20])
        raise ConfigError(f"unknown queue {' '.join(unknown[0])}; the queues are {there}")
    if missing := sorted(known.keys() - named.keys()):
        raise ConfigError(f"an offset for queue {' '.join(missing[0])} is missing: name every queue, or use earliest")
    found = {queue: _at(named[queue.topic, name_of(queue)], limits) for queue, limits in bounds.items()}
    for queue, at in found.items():
        if at > (end := bounds[queue].max):
            raise ConfigError(
                f"queue {queue.topic} {name_of(queue)} ends at {end}, and offset {at} is beyond that: use at most {end}, or latest"
            )
    return found


def name_of(queue: MessageQueue) -> str:
    """Return the name of a topic's queue in options and checkpoints."""
    return f"{queue.broker}/{queue.queue_id}"


def _at(offset: int | None, limits: Bounds) -> int:
    return {EARLIEST: limits.min, LATEST: limits.max, None: limits.min}.get(offset, offset or 0)


def ranges_between(
    start: Mapping[MessageQueue, int], stop: Mapping[MessageQueue, int], bounds: Mapping[MessageQueue, Bounds]
) -> tuple[list[QueueRange], list[Gap]]:
    """Return the ranges to read from `start` to `stop`, and those that are gone already.

    `bounds` must have every queue to read: one whose broker is away has lost nothing, so wait for it first."""
    ranges: list[QueueRange] = []
    gaps: list[Gap] = []
    for queue in sorted(stop):
        first, last = start.get(queue, 0), stop[queue]
        if first >= last:
            continue
        there = bounds[queue]
        low, high = max(first, there.min), min(last, there.max)
        if first < there.min:
            gaps.append(Gap(queue, first, min(there.min, last), RETENTION))
        if last > there.max:
            gaps.append(Gap(queue, max(there.max, first), last, SHORTER))
        if low < high:
            ranges.append(QueueRange(queue, low, high))
    return ranges, gaps


def refuse_gaps(gaps: Iterable[Gap], policy: OnDataLoss) -> None:
    """Raise DataLoss if messages are gone and the options do not allow that."""
    found = list(gaps)
    if found and policy is OnDataLoss.FAIL:
        more = f" and {len(found) - 3} more" if len(found) > 3 else ""
        raise DataLoss(
            f"{'; '.join(map(str, found[:3]))}{more}. "
            "Start at a later offset, or set the option onDataLoss to skip: then the read continues and records each gap"
        )


def tasks(ranges: Iterable[QueueRange], at_least: int = 1) -> list[tuple[QueueRange, ...]]:
    """Divide ranges into tasks of about the same size: small ones share a task, and big ones are cut where a task is full. No fewer
    than `at_least` where that is possible."""
    found = sorted(one for one in ranges if one.count > 0)
    total = sum(one.count for one in found)
    if not total:
        return []
    count = min(total, task_count(total, least=TASK_ROWS_MIN, most=TASK_ROWS_MAX, at_least=at_least))
    grouped: list[list[QueueRange]] = [[]]
    taken = 0
    slack = total / count / 8  # how much larger or smaller a task may be, if that saves a cut
    for one in found:
        while True:
            room = total * len(grouped) / count - taken
            if one.count <= room + slack or len(grouped) == count:
                break
            if room > slack and room >= 1:
                first, one = _cut(one, int(room))
                grouped[-1].append(first)
                taken += first.count
            grouped.append([])
        grouped[-1].append(one)
        taken += one.count
    return [tuple(pieces) for pieces in grouped]


def _cut(one: QueueRange, rows: int) -> tuple[QueueRange, QueueRange]:
    at = one.start + rows
    return replace(one, stop=at), replace(one, start=at)
