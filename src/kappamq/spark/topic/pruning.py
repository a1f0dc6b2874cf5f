"""Filters of a query that Spark pushes down: they narrow the ranges to read. All are returned to Spark, which checks every row, too.

Spark pushes only if `spark.sql.python.filterPushdown.enabled` is set, and refuses a source that takes filters if it is not.

The remaining ranges must contain every row that the filters select. Times are the hard part: brokers search as if the timestamps of a
queue were in order, and ours answers in corrected time once its clock was set, while rows show the stored timestamps. So a range is
narrowed by time only if the broker reports that its clock was never set, and if the timestamps at the new bounds confirm it.
"""

from __future__ import annotations

import datetime
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from kappamq.clock import TOLERANCE_MS
from kappamq.errors import KappaError
from kappamq.message import MessageQueue
from kappamq.protocol.records.tags import Subscription, keys_of
from kappamq.spark.topic.options import ReadOptions
from kappamq.spark.topic.planning import QueueRange, Search

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

_PUSHING: Final = "pyspark.sql.worker.data_source_pushdown_filters"
_NAMED: Final = ("topic", "brokerName", "queueId")
_END: Final = 1 << 62
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_SLACK_MS: Final = 2 * TOLERANCE_MS
"""A restarted broker reports no jump if its clock is behind by less than the tolerance, so timestamps may be out of order by this much."""


class TimeBounds:
    """Finds the messages of a queue that may have been stored within a time range. Asks each broker once whether its clock was set."""

    def __init__(
        self,
        search: Search,
        stored_ms: Callable[[MessageQueue, int], int | None],
        runtime_info: Callable[[str], Mapping[str, str]],
    ) -> None:
        self._search = search
        self._stored_ms = stored_ms  # the timestamp of a message as in its row; None if it cannot be read
        self._runtime_info = runtime_info
        self._in_order: dict[str, bool] = {}

    def narrowed(self, one: QueueRange, begin_ms: int | None, end_ms: int | None) -> QueueRange:
        """Cut messages at both ends that were certainly stored before `begin_ms` or after `end_ms`."""
        if (begin_ms is None and end_ms is None) or not self._is_in_order(one.queue.broker):
            return one
        start, stop = one.start, one.stop
        if begin_ms is not None:
            at = min(self._search(one.queue, begin_ms - _SLACK_MS), stop)
            if at > start and self._is_stored(one.queue, at - 1, lambda ms: ms + _SLACK_MS < begin_ms):
                start = at
        if end_ms is not None and start < stop:
            at = max(self._search(one.queue, end_ms + 1 + _SLACK_MS), start)
            if at < stop and self._is_stored(one.queue, at, lambda ms: ms - _SLACK_MS > end_ms):
                stop = at
        return replace(one, start=start, stop=stop)

    def _is_stored(self, queue: MessageQueue, offset: int, when: Callable[[int], bool]) -> bool:
        """Return whether the timestamp of a message confirms it: an unreadable message can mislead a search."""
        stored = self._stored_ms(queue, offset)
        return stored is not None and when(stored)

    def _is_in_order(self, broker: str) -> bool:
        """Return whether a broker reports that its clock was never set. Apache's do not report it."""
        if broker not in self._in_order:
            try:
                told = self._runtime_info(broker).get("kappamqClockJumps", "")
            except KappaError:
                told = ""
            self._in_order[broker] = set(re.findall(r"\d+", told)) == {"0"}
        return self._in_order[broker]


@dataclass(frozen=True, slots=True)
class Pruning:
    """What the filters allow; None: everything. All conditions hold at once."""

    named: Mapping[str, frozenset[Any]] = field(default_factory=dict)  # topic, brokerName, queueId -> values
    first: int = 0
    last: int = _END
    begin_ms: int | None = None
    end_ms: int | None = None
    tags: frozenset[str] | None = None
    keys: frozenset[str] | None = None

    def ranges(self, ranges: Iterable[QueueRange], times: TimeBounds) -> list[QueueRange]:
        """Return what is left of `ranges`. Only the remaining queues are searched by time."""
        found: list[QueueRange] = []
        for one in ranges:
            values = {"topic": one.queue.topic, "brokerName": one.queue.broker, "queueId": one.queue.queue_id}
            if any(values[name] not in wanted for name, wanted in self.named.items()):
                continue
            start, stop = max(one.start, self.first), min(one.stop, self.last + 1)
            if start < stop:
                left = times.narrowed(replace(one, start=start, stop=stop), self.begin_ms, self.end_ms)
                if left.start < left.stop:
                    found.append(left)
        return found

    def options(self, options: ReadOptions) -> ReadOptions:
        """Return the same read with the tags that the query selects, if the user has given none."""
        if self.tags is None or options.tags is not None:
            return options
        expression = " || ".join(sorted(self.tags))
        # A tag that no expression can contain (with blanks around it, say) is left to Spark.
        return replace(options, tags=expression) if Subscription.parse(expression).tags == self.tags else options


def prune(filters: Iterable[Filter]) -> Pruning:
    """Return what these filters allow together. An unsupported one allows everything."""
    found = Pruning()
    for one in filters:
        found = _narrowed(found, type(one).__name__, getattr(one, "attribute", ()), getattr(one, "value", None))
    return found


def _narrowed(found: Pruning, kind: str, attribute: tuple[str, ...], value: Any) -> Pruning:
    if len(attribute) != 1:
        return found
    column = attribute[0]
    if kind in ("EqualTo", "EqualNullSafe", "In"):
        values = frozenset(value if kind == "In" else [value]) - {None}
        return _equal(found, column, values)
    if value is None:
        return found
    if column == "queueOffset":
        return {
            "GreaterThan": lambda: replace(found, first=max(found.first, value + 1)),
            "GreaterThanOrEqual": lambda: replace(found, first=max(found.first, value)),
            "LessThan": lambda: replace(found, last=min(found.last, value - 1)),
            "LessThanOrEqual": lambda: replace(found, last=min(found.last, value)),
        }.get(kind, lambda: found)()
    if column == "storeTimestamp" and _is_time(value):
        # Stored times are whole milliseconds, so a bound within one keeps the whole of it.
        at = _ms(value)
        if kind in ("GreaterThan", "GreaterThanOrEqual"):
            return replace(found, begin_ms=at if found.begin_ms is None else max(found.begin_ms, at))
        if kind in ("LessThan", "LessThanOrEqual"):
            return replace(found, end_ms=at if found.end_ms is None else min(found.end_ms, at))
    return found


def _equal(found: Pruning, column: str, values: frozenset[Any]) -> Pruning:
    if column in _NAMED:
        return replace(found, named={**found.named, column: found.named.get(column, values) & values})
    if column == "queueOffset":
        low, high = min(values, default=_END), max(values, default=-1)
        return replace(found, first=max(found.first, low), last=min(found.last, high))
    if column == "storeTimestamp" and values and all(map(_is_time, values)):
        first, last = _ms(min(values)), _ms(max(values))
        return replace(
            found,
            begin_ms=first if found.begin_ms is None else max(found.begin_ms, first),
            end_ms=last if found.end_ms is None else min(found.end_ms, last),
        )
    if column == "tags" and values and found.tags is None:
        return replace(found, tags=values)
    if column == "keys" and values and found.keys is None:
        # The column holds all keys of a message: one of them is enough to find it.
        firsts = [next(iter(keys_of(value)), None) for value in values]
        return replace(found, keys=frozenset(firsts)) if None not in firsts else found  # type: ignore[arg-type]
    return found


def _is_time(value: object) -> bool:
    return isinstance(value, datetime.datetime) and value.tzinfo is not None


def _ms(moment: datetime.datetime) -> int:
    return (moment - _EPOCH) // datetime.timedelta(milliseconds=1)


def filters_are_pushed() -> bool:
    """Return whether Spark creates a reader in order to push filters to it. Nothing else shows that the setting is on."""
    frame = sys._getframe()
    while frame is not None:
        spec = frame.f_globals.get("__spec__")
        if spec is not None and spec.name == _PUSHING:
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False
