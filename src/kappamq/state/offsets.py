"""The offsets of each consumer group in each queue.

Commits come with pulls and as requests. They enter an overlay, which is used to answer queries at once, and are appended to the log
about once a second, in one record, which the table applies: so the table and its snapshot contain only what is in the log. A commit
of a push consumer, or one that came with a pull, never moves an offset back, since it may be late; that of a pull consumer or a tool may.

On a node that does not write, commits stay in the overlay until the log has caught up with them: the larger offset wins, and a reset or
deletion wins over both. The same holds for what a former leader recorded a moment ago, which its log may have lost again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Set
from typing import Any

from kappamq.errors import KappaError
from kappamq.events import Events
from kappamq.protocol.bodies.topics import DataVersion
from kappamq.protocol.names import TRANSACTION_GROUP
from kappamq.state.events import CommitsRecorded, TopicDeleted
from kappamq.state.metadata import Commit

SEPARATOR = "@"
_NO_END = (1 << 63) - 1
_RECENT = 10  # records: one a second, so for longer than a leader without a majority leads


class Offsets:
    file = "consumerOffset.json"
    kinds = ("offsets", "offsets-reset", "offsets-deleted")

    def __init__(
        self,
        now_ms: Callable[[], int],
        commit: Commit,
        events: Events | None = None,
        end: Callable[[str, int], int] = lambda topic, queue_id: _NO_END,
        first: Callable[[str, int], int] = lambda topic, queue_id: 0,
    ) -> None:
        self._now_ms = now_ms
        self._commit = commit
        self._events = events if events is not None else Events()
        self._end = end  # returns the end of a queue
        self._first = first  # returns the first offset of a queue since its topic was last created
        self._table: dict[tuple[str, str], dict[int, int]] = {}  # (topic, group) -> queue id -> offset
        self._overlay: dict[tuple[str, str], dict[int, int]] = {}  # committed since the last record
        self._recent: deque[dict[tuple[str, str], dict[int, int]]] = deque(maxlen=_RECENT)  # recorded recently
        self.version = DataVersion(timestamp=now_ms())
        self.dirty = False

    # -- asking ------------------------------------------------------------------------------------------------------------

    def get(self, group: str, topic: str, queue_id: int) -> int | None:
        key = (topic, group)
        for offsets in (self._overlay, self._table):
            queues = offsets.get(key)
            if queues is not None and (found := queues.get(queue_id)) is not None:
                return found
        return None

    def topics_of(self, group: str) -> set[str]:
        return {topic for offsets in (self._table, self._overlay) for topic, known in offsets if known == group}

    def topics_by_group(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for topic, group in self._table | self._overlay:
            found.setdefault(group, []).append(topic)
        return found

    def groups_of(self, topic: str) -> set[str]:
        return {group for offsets in (self._table, self._overlay) for known, group in offsets if known == topic}

    def queues(self, group: str, topic: str) -> dict[int, int]:
        return self._table.get((topic, group), {}) | self._overlay.get((topic, group), {})

    # -- changing ----------------------------------------------------------------------------------------------------------

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """A consumer has processed everything below `offset`. A late commit that is older changes nothing, nor does one of messages that
        we do not have (any more): other messages will get these numbers, and must not be skipped. A commit made before the topic
        was deleted and created again means the beginning of the present topic."""
        if group == TRANSACTION_GROUP:
            return  # an internal group name: a client must not change the broker's own positions
        if offset >= 0:
            offset = max(offset, self._first(topic, queue_id))
        known = self.get(group, topic, queue_id)
        if offset > (-1 if known is None else known) and offset <= self._end(topic, queue_id):
            self._set(topic, group, queue_id, offset)

    def set(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Set an offset for a consumer or an operator's tool, forward or backward."""
        offset = max(offset, self._first(topic, queue_id))
        if offset != self.get(group, topic, queue_id):
            self._set(topic, group, queue_id, offset)

    def _set(self, topic: str, group: str, queue_id: int, offset: int) -> None:
        queues = self._overlay.get((topic, group))
        if queues is None:
            queues = self._overlay[topic, group] = {}
        queues[queue_id] = offset

    def move(self, group: str, topic: str, offsets: dict[int, int]) -> int:
        """Set offsets whatever they were; returns the log offset at which the change is safe."""
        self.record_commits()
        return self._commit("offsets-reset", [topic, group, _row(offsets)])

    def delete(self, topic: str | None = None, group: str | None = None) -> None:
        """Forget all offsets of a topic or of a group."""
        self._commit("offsets-deleted", [topic, group])

    def topic_deleted(self, event: TopicDeleted) -> None:
        self.delete(topic=event.name)

    def clamp(self) -> None:
        """Move offsets into the range of their queues: one beyond the end is wrong (the log may have been truncated), and one
        before the first message of a topic that was created again is from before its deletion."""
        rows: list[Any] = []
        for (topic, group), queues in self._table.items():
            inside = {q: min(max(offset, self._first(topic, q)), self._end(topic, q)) for q, offset in queues.items()}
            moved = {q: offset for q, offset in inside.items() if offset != queues[q]}
            if moved:
                rows.append([topic, group, _row(moved)])
        if rows:
            self._commit("offsets", rows)

    def record_commits(self) -> None:
        """Append the commits since the last call to the log."""
        if not self._overlay:
            return
        changes = self._overlay.copy()  # `apply` removes what is recorded from the overlay
        rows = [[topic, group, _row(queues)] for (topic, group), queues in changes.items()]
        try:
            self._commit("offsets", rows)
        except KappaError:
            try:
                # kept in the table for the snapshot, and in the overlay for the next record
                self._commit("offsets", rows, anyway=True)
            finally:
                self._overlay = changes
            raise
        self._recent.append(changes)
        self._events.publish(CommitsRecorded(changes))

    def _delete(self, topic: str | None, group: str | None) -> None:
        for table in (self._table, self._overlay, *self._recent):
            for key in [key for key in table if topic in (None, key[0]) and group in (None, key[1])]:
                del table[key]

    # -- fold --------------------------------------------------------------------------------------------------------------

    def to_snapshot(self) -> dict[str, Any]:
        return self._told(self._table)

    def with_overlay(self) -> dict[str, Any]:
        """The snapshot including commits that are not recorded yet, for queries. Any thread may call this: a dictionary is copied in one
        step, and the inner dictionaries of the overlay never lose an entry, see `_taken_out`."""
        overlay = self._overlay.copy()  # first: what is recorded meanwhile is then in both
        table = self._table.copy()
        return self._told({key: table.get(key, {}) | overlay.get(key, {}) for key in table | overlay})

    def _told(self, offsets: dict[tuple[str, str], dict[int, int]]) -> dict[str, Any]:
        table = {f"{topic}{SEPARATOR}{group}": dict(queues) for (topic, group), queues in offsets.items()}
        return {"dataVersion": self.version.to_json(), "offsetTable": table}

    def from_snapshot(self, table: dict[str, Any]) -> None:
        self.version = DataVersion.from_json(table.get("dataVersion") or {})
        for name, queues in (table.get("offsetTable") or {}).items():
            topic, separator, group = name.partition(SEPARATOR)
            if separator and isinstance(queues, dict):
                offsets = self._table[topic, group] = {int(queue): int(offset) for queue, offset in queues.items()}
                self._reached(topic, group, offsets)

    def apply(self, kind: str, change: Any) -> None:
        if kind == "offsets-deleted":
            self._delete(change[0], change[1])
        else:
            for topic, group, queues in [change] if kind == "offsets-reset" else change:
                offsets = {int(queue): int(offset) for queue, offset in queues.items()}
                self._table.setdefault((topic, group), {}).update(offsets)
                if kind == "offsets":
                    self._reached(topic, group, offsets)
                    continue
                for committed in (self._overlay, *self._recent):  # committed before the reset
                    _taken_out(committed, (topic, group), set(offsets))
        self.version = self.version.next(self._now_ms())

    def _reached(self, topic: str, group: str, offsets: dict[int, int]) -> None:
        """These offsets are in the log: drop commits in the overlay that are not larger."""
        waiting = self._overlay.get((topic, group))
        if waiting is not None:
            known = {queue for queue, offset in offsets.items() if waiting.get(queue, _NO_END) <= offset}
            _taken_out(self._overlay, (topic, group), known)

    def reset(self) -> None:
        self._table.clear()
        self._overlay.clear()
        self._recent.clear()
        self.version = DataVersion(timestamp=self._now_ms())

    # -- beside the log ----------------------------------------------------------------------------------------------------

    def answered(self) -> list[tuple[str, str, int, int]]:
        """As `beside`, plus recently recorded commits, which the log may have lost: for `keep`, once the tables follow the log again."""
        found: dict[tuple[str, str, int], int] = {}
        for committed in (*self._recent, self._overlay):
            for (topic, group), queues in committed.items():
                found.update({(topic, group, queue): offset for queue, offset in queues.items()})
        return [(*place, offset) for place, offset in found.items()]

    def keep(self, answered: list[tuple[str, str, int, int]]) -> None:
        """Commit again what clients were told is committed; it counts where it is ahead of the log."""
        for topic, group, queue, offset in answered:
            self.commit(group, topic, queue, offset)

    def beside(self) -> list[tuple[str, str, int, int]]:
        """(topic, group, queue id, offset) of the commits that are here and not in the log."""
        return list(self.each_beside())

    def each_beside(self) -> Iterator[tuple[str, str, int, int]]:
        """The same one by one, for callers that need only the first ones; nothing may be committed meanwhile."""
        for (topic, group), queues in self._overlay.items():
            for queue, offset in queues.items():
                yield topic, group, queue, offset


def _taken_out(committed: dict[tuple[str, str], dict[int, int]], key: tuple[str, str], queues: Set[int]) -> None:
    """Drop the offsets of these queues. A thread may have copied the outer dictionary, so the inner one is replaced, not changed."""
    known = committed.get(key)
    if known is None or queues.isdisjoint(known):
        return
    if left := {queue: offset for queue, offset in known.items() if queue not in queues}:
        committed[key] = left
    else:
        del committed[key]


def _row(offsets: dict[int, int]) -> dict[str, int]:
    return {str(queue): offset for queue, offset in offsets.items()}
