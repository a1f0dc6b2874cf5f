"""Moving a group to another place in its queues: the next pull of each queue is told to go there.

A reset is in the table of offsets at once. But a consumer that runs knows better where it is: it would pull on from there,
and commit that. So a reset stays pending, queue by queue: a pull is told to go there (code 21, with the new offset), and the
pull after it shows that the consumer has heard of it. Until then commits of that queue are ignored (one may be on its way
while we tell), who asks for the offset gets the new one, and the kernel answers no pull of this group and topic by itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from kappamq.errors import KappaError

log = logging.getLogger(__name__)

Record = Callable[[str, Any], int]


class PendingResets:
    """Which queue of which group is to go where. A fold over the log: a restart does not lose a reset."""

    file = "kappamq.resets.json"
    kinds = ("reset", "reset-done", "reset-forgotten")

    def __init__(self, record: Record) -> None:
        self._record = record
        self._pending: dict[tuple[str, str], dict[int, int]] = {}  # (group, topic) -> queue id -> offset
        self._told: set[tuple[str, str, int]] = set()
        self.dirty = False
        self.on_change: Callable[[str, str], None] = lambda group, topic: None

    def get(self, group: str, topic: str, queue_id: int) -> int | None:
        """Where this queue is to go, if its consumer is not known to have gone there."""
        queues = self._pending.get((group, topic))
        return queues.get(queue_id) if queues is not None else None

    def is_pending(self, group: str, topic: str) -> bool:
        return (group, topic) in self._pending

    def take(self, group: str, topic: str, queue_id: int, offset: int) -> int | None:
        """A pull at `offset` has come: where it must go instead, None if it may go on. It is told once."""
        target = self.get(group, topic, queue_id)
        if target is None:
            return None
        if target != offset and (group, topic, queue_id) not in self._told:
            self._told.add((group, topic, queue_id))
            return target
        # It is there, or it has been told and has its own mind.
        self._done(group, topic, queue_id)
        self._note("reset-done", [group, topic, queue_id])
        return None

    def add(self, group: str, topic: str, offsets: dict[int, int]) -> None:
        self._record("reset", [group, topic, {str(queue): offset for queue, offset in offsets.items()}])
        self._add(group, topic, offsets)
        self.on_change(group, topic)

    def forget(self, group: str | None = None, topic: str | None = None) -> None:
        """The group or the topic is gone."""
        if self._forget(group, topic):
            self._note("reset-forgotten", [group, topic])

    def _note(self, kind: str, change: Any) -> None:
        """Record what has happened anyway. With the disk full it is not recorded, and then told twice after a crash."""
        try:
            self._record(kind, change)
        except KappaError as error:
            log.info("not recorded: %s", error)

    def _add(self, group: str, topic: str, offsets: dict[int, int]) -> None:
        self._pending.setdefault((group, topic), {}).update(offsets)
        self._told.difference_update((group, topic, queue_id) for queue_id in offsets)
        self.dirty = True

    def _done(self, group: str, topic: str, queue_id: int) -> None:
        queues = self._pending.get((group, topic), {})
        queues.pop(queue_id, None)
        if not queues:
            self._pending.pop((group, topic), None)
        self._told.discard((group, topic, queue_id))
        self.dirty = True

    def _forget(self, group: str | None, topic: str | None) -> bool:
        gone = [key for key in self._pending if group in (None, key[0]) and topic in (None, key[1])]
        for key in gone:
            self._told.difference_update((*key, queue_id) for queue_id in self._pending.pop(key))
        self.dirty |= bool(gone)
        return bool(gone)

    # -- fold --------------------------------------------------------------------------------------------------------------

    def to_snapshot(self) -> dict[str, Any]:
        return {
            "pending": [
                {"group": group, "topic": topic, "offsets": {str(queue): offset for queue, offset in queues.items()}}
                for (group, topic), queues in self._pending.items()
            ]
        }

    def from_snapshot(self, table: dict[str, Any]) -> None:
        for row in table.get("pending") or []:
            self.apply("reset", [row["group"], row["topic"], row["offsets"]])

    def apply(self, kind: str, change: Any) -> None:
        if kind == "reset":
            group, topic, offsets = change
            self._add(str(group), str(topic), {int(queue): int(offset) for queue, offset in offsets.items()})
        elif kind == "reset-done":
            self._done(str(change[0]), str(change[1]), int(change[2]))
        else:
            self._forget(change[0], change[1])
