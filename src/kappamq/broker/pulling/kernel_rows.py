"""(group, topic) pairs whose pulls the kernel may answer alone, as numbered rows.

A row exists only while everything that could forbid the pull allows it: the group consumes, the topic is readable, the
subscription is one of tags. A change of any of these drops the affected rows; the next pull is
judged on the slow path, and gets its row back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kappamq.native.interface import Kernel
from kappamq.state.events import GroupChanged, ResetChanged, TopicChanged, TopicDeleted

Key = tuple[str, str, bool]  # group, topic, whether the pull names what it wants
_ROWS_MAX = 1_000_000


@dataclass(slots=True, frozen=True)
class Row:
    group: str
    topic: str
    codes: frozenset[int] | None  # hashes of the wanted tags; None: all messages


class Subscriptions:
    def __init__(self, kernel: Kernel, may_allow: Callable[[str, str], bool] = lambda group, topic: True) -> None:
        self._kernel = kernel
        self._rows: dict[int, Row] = {}
        self._numbers: dict[Key, int] = {}
        self._by_group: dict[str, set[Key]] = {}
        self._by_topic: dict[str, set[Key]] = {}
        self._next = 0
        self._may_allow = may_allow

    def allow(self, group: str, topic: str, explicit: bool, version: int, codes: frozenset[int] | None) -> None:
        """Pulls of `group` on `topic` may be answered by the kernel."""
        self.drop(group, topic, explicit)
        if len(self._numbers) >= _ROWS_MAX or not self._may_allow(group, topic):
            return
        self._next += 1
        key = group, topic, explicit
        self._numbers[key] = self._next
        self._by_group.setdefault(group, set()).add(key)
        self._by_topic.setdefault(topic, set()).add(key)
        self._rows[self._next] = Row(group, topic, codes)
        self._kernel.set_row(self._next, group, topic, explicit, version, codes)

    def row(self, number: int) -> Row:
        return self._rows[number]

    def drop(self, group: str, topic: str, explicit: bool) -> None:
        key = group, topic, explicit
        number = self._numbers.pop(key, None)
        if number is not None:
            del self._rows[number]
            for name, index in ((group, self._by_group), (topic, self._by_topic)):
                index[name].discard(key)
                if not index[name]:
                    del index[name]
            self._kernel.drop_row(group, topic, explicit)

    def drop_pair(self, group: str, topic: str) -> None:
        """Drop the rows of this group and topic, however their pulls name their subscription."""
        for explicit in (False, True):
            self.drop(group, topic, explicit)

    def drop_group(self, group: str) -> None:
        for key in list(self._by_group.get(group, ())):
            self.drop(*key)

    def topic_changed(self, event: TopicChanged) -> None:
        self.drop_topic(event.topic.name)

    def topic_deleted(self, event: TopicDeleted) -> None:
        self.drop_topic(event.name)

    def group_changed(self, event: GroupChanged) -> None:
        self.drop_group(event.name)

    def reset_changed(self, event: ResetChanged) -> None:
        self.drop_pair(event.group, event.topic)

    def drop_topic(self, topic: str) -> None:
        for key in list(self._by_topic.get(topic, ())):
            self.drop(*key)
