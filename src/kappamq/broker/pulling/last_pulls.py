"""Where the last pull of each queue began that did not go through the kernel: earlier messages were delivered."""

from __future__ import annotations

from kappamq.state.events import GroupChanged, TopicDeleted
from kappamq.state.groups import Groups


class LastPulls:
    def __init__(self, groups: Groups) -> None:
        self._groups = groups
        self._offsets: dict[tuple[str, str], dict[int, int]] = {}  # (group, topic) -> queue id -> offset

    def note(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        self._offsets.setdefault((group, topic), {})[queue_id] = offset

    def get(self, group: str, topic: str, queue_id: int) -> int:
        """-1: it was never pulled."""
        return self._offsets.get((group, topic), {}).get(queue_id, -1)

    def topic_deleted(self, event: TopicDeleted) -> None:
        for key in [key for key in self._offsets if key[1] == event.name]:
            del self._offsets[key]

    def group_changed(self, event: GroupChanged) -> None:
        """Only a group that was deleted is forgotten."""
        if event.name not in self._groups.table:
            for key in [key for key in self._offsets if key[0] == event.name]:
                del self._offsets[key]
