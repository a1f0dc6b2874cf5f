"""How many transactions are open for each topic, in RocketMQ's own file: its broker goes on from these numbers.

Not a fold of its own: what is open is known from the half queue, and counted again at every start."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kappamq.protocol.bodies.topics import DataVersion


class HalfCounts:
    file = "transactionMetrics"
    kinds: tuple[str, ...] = ()

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._version = DataVersion(timestamp=now_ms())
        self._counted: dict[str, int] = {}
        self.dirty = False

    def tick(self, counts: Mapping[str, int]) -> None:
        """Called periodically: note whether there is anything new to write."""
        if counts != self._counted:
            self._counted = dict(counts)
            self._version = self._version.next(self._now_ms())
            self.dirty = True

    def to_snapshot(self) -> dict[str, Any]:
        now = self._now_ms()
        counts = {topic: {"count": count, "timeStamp": now} for topic, count in self._counted.items()}
        return {"dataVersion": self._version.to_json(), "transactionCount": counts}

    def from_snapshot(self, table: dict[str, Any]) -> None:
        """Only to see what has changed since: it is counted again."""
        self._version = DataVersion.from_json(table.get("dataVersion") or {})
        counts = table.get("transactionCount") or {}
        self._counted = {str(topic): int(entry["count"]) for topic, entry in counts.items()}

    def apply(self, kind: str, change: Any) -> None:
        """There are no changes: it is counted."""

    def reset(self) -> None:
        self._counted = {}
        self._version = DataVersion(timestamp=self._now_ms())
