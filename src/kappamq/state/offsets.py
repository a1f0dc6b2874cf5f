"""How far each consumer group has come in each queue.

Commits come with pulls and one by one; they take effect in memory at once and go to the log about once a second, all in one
record. A commit of a push consumer, or one that rides on a pull, never goes back, for it may be late; that of a pull consumer
or a tool is meant as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kappamq.events import Events
from kappamq.protocol.bodies.topics import DataVersion
from kappamq.protocol.names import TRANSACTION_GROUP
from kappamq.state.events import CommitsRecorded, TopicDeleted

Record = Callable[[str, Any], int]
SEPARATOR = "@"
_NO_END = (1 << 63) - 1


class Offsets:
    file = "consumerOffset.json"
    kinds = ("offsets", "offsets-reset", "offsets-deleted")

    def __init__(
        self,
        now_ms: Callable[[], int],
        record: Record,
        events: Events | None = None,
        end: Callable[[str, int], int] = lambda topic, queue_id: _NO_END,
        first: Callable[[str, int], int] = lambda topic, queue_id: 0,
    ) -> None:
        self._now_ms = now_ms
        self._record = record
        self._events = events if events is not None else Events()
        self._end = end  # of a queue: nobody has read beyond it
        self._first = first  # of a queue in its topic's present life
        self._table: dict[tuple[str, str], dict[int, int]] = {}  # (topic, group) -> queue id -> offset
        self._unrecorded: dict[tuple[str, str], dict[int, int]] = {}
        self.version = DataVersion(timestamp=now_ms())
        self.dirty = False

    # -- asking ------------------------------------------------------------------------------------------------------------

    def get(self, group: str, topic: str, queue_id: int) -> int | None:
        queues = self._table.get((topic, group))
        return queues.get(queue_id) if queues is not None else None

    def topics_of(self, group: str) -> set[str]:
        return {topic for topic, known in self._table if known == group}

    def topics_by_group(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for topic, group in self._table:
            found.setdefault(group, []).append(topic)
        return found

    def groups_of(self, topic: str) -> set[str]:
        return {group for known, group in self._table if known == topic}

    def queues(self, group: str, topic: str) -> dict[int, int]:
        return dict(self._table.get((topic, group), {}))

    # -- changing ----------------------------------------------------------------------------------------------------------

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """A consumer has dealt with everything below `offset`. An older commit that comes late changes nothing, nor does
        one of messages that we do not have (any more): others with these numbers will come, and must not be skipped.
        What was committed of a topic's former life means the beginning of its present one."""
        queues = self._table.get((topic, group))
        if group == TRANSACTION_GROUP:
            return  # somebody pulls in our name; where transactions are read from is nobody else's business
        if offset >= 0:
            offset = max(offset, self._first(topic, queue_id))
        if offset > (-1 if queues is None else queues.get(queue_id, -1)) and offset <= self._end(topic, queue_id):
            self._set(topic, group, queue_id, offset)

    def set(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """A consumer, or an operator's tool, wants to go on from `offset`, wherever it was before."""
        offset = max(offset, self._first(topic, queue_id))
        if offset != self.get(group, topic, queue_id):
            self._set(topic, group, queue_id, offset)

    def _set(self, topic: str, group: str, queue_id: int, offset: int) -> None:
        key = (topic, group)
        for table in (self._table, self._unrecorded):
            queues = table.get(key)
            if queues is None:
                queues = table[key] = {}
            queues[queue_id] = offset

    def reset(self, group: str, topic: str, offsets: dict[int, int]) -> int:
        """Set offsets whatever they were; returns the log offset at which that is safe."""
        self.record_commits()
        safe = self._record("offsets-reset", [topic, group, {str(queue): offset for queue, offset in offsets.items()}])
        self._table.setdefault((topic, group), {}).update(offsets)
        self._bump()
        return safe

    def delete(self, topic: str | None = None, group: str | None = None) -> None:
        """Forget all offsets of a topic or of a group."""
        self._record("offsets-deleted", [topic, group])
        self._delete(topic, group)

    def topic_deleted(self, event: TopicDeleted) -> None:
        self.delete(topic=event.name)

    def clamp(self) -> None:
        """Bring offsets into their queues: nobody can have read beyond the end (the log may have been cut), and what lies
        before the first message of a topic that was made again belongs to its former life."""
        for (topic, _group), queues in self._table.items():
            for queue_id, offset in queues.items():
                inside = min(max(offset, self._first(topic, queue_id)), self._end(topic, queue_id))
                if offset != inside:
                    queues[queue_id] = inside
                    self.dirty = True

    def record_commits(self) -> None:
        """Tell the log what was committed since the last time."""
        if not self._unrecorded:
            return
        changes = self._unrecorded
        self._bump()  # in any case: if the log takes nothing, the snapshot has them
        self._record(
            "offsets",
            [[topic, group, {str(q): o for q, o in queues.items()}] for (topic, group), queues in changes.items()],
        )
        self._unrecorded = {}  # not before: what could not be recorded now is recorded the next time
        self._events.publish(CommitsRecorded(changes))

    def _delete(self, topic: str | None, group: str | None) -> None:
        for table in (self._table, self._unrecorded):
            for key in [key for key in table if topic in (None, key[0]) and group in (None, key[1])]:
                del table[key]
        self._bump()

    def _bump(self) -> None:
        self.version = self.version.next(self._now_ms())
        self.dirty = True

    # -- fold --------------------------------------------------------------------------------------------------------------

    def to_snapshot(self) -> dict[str, Any]:
        table = {f"{topic}{SEPARATOR}{group}": dict(queues) for (topic, group), queues in self._table.items()}
        return {"dataVersion": self.version.to_json(), "offsetTable": table}

    def from_snapshot(self, table: dict[str, Any]) -> None:
        self.version = DataVersion.from_json(table.get("dataVersion") or {})
        for name, queues in (table.get("offsetTable") or {}).items():
            topic, separator, group = name.partition(SEPARATOR)
            if separator and isinstance(queues, dict):
                self._table[topic, group] = {int(queue): int(offset) for queue, offset in queues.items()}

    def apply(self, kind: str, change: Any) -> None:
        if kind == "offsets-deleted":
            self._delete(change[0], change[1])
            return
        for topic, group, queues in [change] if kind == "offsets-reset" else change:
            known = self._table.setdefault((topic, group), {})
            known.update({int(queue): int(offset) for queue, offset in queues.items()})
        self._bump()
