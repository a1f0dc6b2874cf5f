"""Filters of a query that Spark pushes down: what they leave of the ranges to read. Each is handed back, so Spark checks every row, too.

Spark pushes only where `spark.sql.python.filterPushdown.enabled` is set, and refuses a source that takes filters where it is not.

What is left must hold every row that the filters want. Times are the hard part: brokers search as if the messages of a queue were
stamped in order, and ours answers in corrected time once its clock was set, while rows show the stamps as they are. So a range is
narrowed by time only where the broker says that its clock was never set, and where the stamps at the new bounds confirm it.
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
"""A broker that starts again calls it no jump if its clock is behind by less than the tolerance, and stamps are by so much out of order."""


class TimeBounds:
    """Which messages of a queue may have been stored in a time. Asks each broker once whether its clock was set."""

    def __init__(
        self,
        search: Search,
        stored_ms: Callable[[MessageQueue, int], int | None],
        runtime_info: Callable[[str], Mapping[str, str]],
    ) -> None:
        self._search = search
        self._stored_ms = stored_ms  # the stamp of a message as its row shows it; None if it cannot be had
        self._runtime_info = runtime_info
        self._in_order: dict[str, bool] = {}

    def narrowed(self, one: QueueRange, begin_ms: int | None, end_ms: int | None) -> QueueRange:
        """Without messages at both ends that were certainly stored before `begin_ms` or after `end_ms`."""
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
        """Whether the stamp of a message says so: a search is led astray by a message that cannot be read."""
        stored = self._stored_ms(queue, offset)
        return stored is not None and when(stored)

    def _is_in_order(self, broker: str) -> bool:
        """Whether a broker says that no record of its store was stamped before the clock was set. Apache's do not say."""
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
        """What is left of `ranges`. Only queues that are left are searched by time."""
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
        """The same read with the tags that the query wants, where the user has not said which."""
        if self.tags is None or options.tags is not None:
            return options
        expression = " || ".join(sorted(self.tags))
        # A tag that no expression can name (blanks around it, say) is left to Spark.
        return replace(options, tags=expression) if Subscription.parse(expression).tags == self.tags else options


def prune(filters: Iterable[Filter]) -> Pruning:
    """What these filters allow together. One that is not understood allows everything."""
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
    """Whether Spark asks for a reader in order to push filters to it. Nothing else tells that the switch is on."""
    frame = sys._getframe()
    while frame is not None:
        spec = frame.f_globals.get("__spec__")
        if spec is not None and spec.name == _PUSHING:
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False
