"""How far timers are delivered: everything up to a (time, log offset), in this order. A fold over the log.

A timer is stored before it is due, and the progress names only times that have passed. So exactly the records of the timer topic
that this table counts as delivered *are* delivered: nothing else needs to be
remembered, however many are pending. Only where the wall clock was set, the progress before that is kept for the records below.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from kappamq.protocol.bodies.topics import DataVersion
from kappamq.store.log.clock_steps import STEPS_MAX, ClockStep
from kappamq.store.timer.entries import slot_ms

FOREVER = (1 << 62) - 1


class Late(NamedTuple):
    """Messages [first, stop) of the timer topic that another broker may not have got to, due at or before `due_ms`."""

    first: int
    stop: int
    due_ms: int


class TimerProgress:
    file = "kappamq.timers.json"
    kinds = ("timer",)

    def __init__(self) -> None:
        self.due_ms = 0
        self.log_offset = 0
        self.moved_below = 0  # what waits below has been stored again, so that the log can lose it
        self.late: Late | None = None
        self.foreign_ms = 0  # another broker's timers may reach a week beyond this
        # Recalls whose own time has passed, of messages that are still to come: key -> when the message is due.
        # Records and snapshots call them wishes.
        self.recalls: dict[str, int] = {}
        # Where the wall clock was set, and up to which (time, log offset) what lies below had been delivered by the clock before.
        self.passed: list[tuple[int, int, int]] = []
        self.built_behind = 0  # the timer files are built by the clock behind this log offset
        self._first_recall_ms = FOREVER  # when the first of them is no longer needed
        self.dirty = False

    @property
    def key(self) -> tuple[int, int]:
        return self.due_ms, self.log_offset

    def is_done(self, due_ms: int, log_offset: int) -> bool:
        return (due_ms, log_offset) <= (self.due_ms, self.log_offset) or log_offset < self.moved_below

    def after(self, due_ms: int, log_offset: int, recalls: dict[str, int]) -> dict[str, Any]:
        """The change that everything up to there is delivered, and that more recalls wait for their messages."""
        change: dict[str, Any] = {"due": [due_ms, log_offset]}
        return change | {"wish": recalls} if recalls else change

    def _set(self, change: dict[str, Any]) -> None:
        """Some of the fields, as a record of the log tells them."""
        if "due" in change:
            self.due_ms, self.log_offset = (int(number) for number in change["due"])
            if slot_ms(self._first_recall_ms) < slot_ms(self.due_ms):
                self._set_recalls(
                    {key: due for key, due in self.recalls.items() if slot_ms(due) >= slot_ms(self.due_ms)}
                )
        if "step" in change:
            self._step(ClockStep(*(int(number) for number in change["step"])))
        if "passed" in change:
            self.passed = [(int(below), int(due), int(last)) for below, due, last in change["passed"]]
        if "built" in change:
            self.built_behind = int(change["built"])
        if "moved" in change:
            self.moved_below = max(self.moved_below, int(change["moved"]))  # what is stored again once is so for good
        if "late" in change:
            self.late = None if change["late"] is None else Late(*(int(number) for number in change["late"]))
        if "foreign" in change:
            self.foreign_ms = int(change["foreign"])
        if "wish" in change:
            self._set_recalls(self.recalls | change["wish"])
        if "wishes" in change:  # a snapshot has all of them
            self._set_recalls(change["wishes"])

    def stepped(self, step: ClockStep) -> tuple[str, Any] | None:
        """The wall clock was set: returns the change to be recorded with that."""
        return ("timer", {"step": list(step)}) if self.due_ms else None

    def _step(self, step: ClockStep) -> None:
        if any(below >= step.log_offset for below, _due, _last in self.passed):
            return  # known already
        self.passed = [*self.passed, (step.log_offset, self.due_ms, self.log_offset)][-STEPS_MAX:]
        # What pends is due later than the progress, and what asked for a delay moves along with the clock. So nothing that pends is
        # due before this; what is delivered and due after it is told by `passed`.
        self.due_ms += min(step.step_ms, 0)
        if self.due_ms > step.to_ms:
            self.due_ms, self.log_offset = step.to_ms, FOREVER

    def _set_recalls(self, recalls: dict[str, Any]) -> None:
        self.recalls = {str(key): int(due) for key, due in recalls.items()}
        self._first_recall_ms = min(self.recalls.values(), default=FOREVER)

    def to_snapshot(self) -> dict[str, Any]:
        return {
            "due": [self.due_ms, self.log_offset],
            "moved": self.moved_below,
            "late": None if self.late is None else list(self.late),
            "foreign": self.foreign_ms,
            "wishes": self.recalls,
            "passed": [list(entry) for entry in self.passed],
            "built": self.built_behind,
        }

    def from_snapshot(self, table: dict[str, Any]) -> None:
        self._set(table)

    def apply(self, kind: str, change: Any) -> None:
        self._set(change)

    def reset(self) -> None:
        self._set({"due": [0, 0], "late": None, "foreign": 0, "wishes": {}, "passed": [], "built": 0})
        self.moved_below = 0


class TimerMetrics:
    """How many timers of each topic are pending: RocketMQ's timermetrics. Not in the log; after a crash it is about right."""

    file = "timermetrics"
    kinds: tuple[str, ...] = ()

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self.counts: dict[str, int] = {}
        self._changed_ms: dict[str, int] = {}
        self.version = DataVersion()
        self.dirty = False

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    def add(self, topic: str, count: int) -> None:
        self.counts[topic] = max(0, self.counts.get(topic, 0) + count)
        self._changed_ms[topic] = self._now_ms()
        self.dirty = True

    def clear(self) -> None:
        """Nothing is pending, whatever was counted."""
        for topic in [topic for topic, count in self.counts.items() if count]:
            self.add(topic, -self.counts[topic])

    def to_snapshot(self) -> dict[str, Any]:
        self.version = self.version.next(self._now_ms())
        return self.table()

    def table(self) -> dict[str, Any]:
        return {
            "dataVersion": self.version.to_json(),
            "timingCount": {
                topic: {"count": count, "timeStamp": self._changed_ms.get(topic, 0)}
                for topic, count in sorted(self.counts.items())
            },
        }

    def from_snapshot(self, table: dict[str, Any]) -> None:
        self.version = DataVersion.from_json(table.get("dataVersion") or {})
        for topic, metric in (table.get("timingCount") or {}).items():
            self.counts[topic] = int(metric.get("count") or 0)
            self._changed_ms[topic] = int(metric.get("timeStamp") or 0)

    def apply(self, kind: str, change: Any) -> None:
        raise AssertionError(f"no record of the log is of kind {kind}")

    def reset(self) -> None:
        self.counts.clear()
        self._changed_ms.clear()
        self.version = DataVersion()
