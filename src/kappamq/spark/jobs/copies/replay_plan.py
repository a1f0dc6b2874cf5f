"""The plan of a replay: what it copies, in which rounds. Computed once and stored, so that a run after a kill makes the same batches.
Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kappamq.errors import StoreError
from kappamq.message import MessageQueue
from kappamq.spark.topic.planning import QueueRange

PACE_S: Final = 2.0
"""With a speed: a round takes about this long, since its messages appear together."""
ROUND_ROWS_MIN: Final = 100


@dataclass(frozen=True, slots=True)
class Plan:
    ranges: tuple[QueueRange, ...]
    lanes: Mapping[MessageQueue, MessageQueue]  # source queue -> target queue
    round_rows: int

    @property
    def count(self) -> int:
        """The number of messages to read; a filter may leave some of them out."""
        return sum(one.count for one in self.ranges)

    @property
    def number_of_rounds(self) -> int:
        return -(-self.count // self.round_rows)

    def round(self, number: int) -> list[QueueRange]:
        """Return the ranges of a round: a share of every queue, so that all queues advance together."""
        return list(_between(self.ranges, self.count, number * self.round_rows, (number + 1) * self.round_rows))

    def encode(self) -> dict[str, Any]:
        return {
            "round_rows": self.round_rows,
            "ranges": [[*_named(one.queue), one.start, one.stop] for one in self.ranges],
            "lanes": [[*_named(source), *_named(target)] for source, target in self.lanes.items()],
        }

    @classmethod
    def decode(cls, said: Any) -> Plan:
        """Raises StoreError."""
        try:
            return cls(
                tuple(QueueRange(MessageQueue(*one[:3]), one[3], one[4]) for one in said["ranges"]),
                {MessageQueue(*one[:3]): MessageQueue(*one[3:]) for one in said["lanes"]},
                int(said["round_rows"]),
            )
        except (TypeError, KeyError, ValueError, IndexError) as error:
            raise StoreError(f"the plan of a replay cannot be read: {error!r}") from None


def round_rows(limit: int, per_second: float | None) -> int:
    """Messages per round."""
    return limit if per_second is None else max(1, min(limit, max(ROUND_ROWS_MIN, round(per_second * PACE_S))))


def _between(ranges: Sequence[QueueRange], count: int, start: int, stop: int) -> Iterator[QueueRange]:
    """Yield the part of every range between two fractions of the whole; the parts between all fractions together make up the range."""
    stop = min(stop, count)
    for one in ranges:
        first, last = one.start + one.count * start // count, one.start + one.count * stop // count
        if first < last:
            yield QueueRange(one.queue, first, last)


def _named(queue: MessageQueue) -> tuple[str, str, int]:
    return queue.topic, queue.broker, queue.queue_id
