"""Events that the tables publish once a change is appended to the log. See kappamq/events.py."""

from __future__ import annotations

from dataclasses import dataclass

from kappamq.protocol.bodies.topics import TopicConfig


@dataclass(frozen=True, slots=True)
class TopicChanged:
    """A topic was made, or its settings are others now."""

    topic: TopicConfig


@dataclass(frozen=True, slots=True)
class TopicDeleted:
    name: str


@dataclass(frozen=True, slots=True)
class TopicForgotten:
    """The log has lost the last message of a deleted topic: if it is made again, its numbering may start at 0."""

    name: str


@dataclass(frozen=True, slots=True)
class GroupChanged:
    """A group was made, changed, forbidden something, or deleted."""

    name: str


@dataclass(frozen=True, slots=True)
class ResetChanged:
    """Whether the queues of this group and topic have a pending offset reset is to be looked at again."""

    group: str
    topic: str


@dataclass(frozen=True, slots=True)
class SettingsChanged:
    """These settings have other values now, by field, as in "store.transfer_bytes_max"."""

    fields: frozenset[str]


@dataclass(frozen=True, slots=True)
class CommitsRecorded:
    """Consumer offsets were appended to the log: (topic, group) -> queue id -> offset."""

    changes: dict[tuple[str, str], dict[int, int]]
