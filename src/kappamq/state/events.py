"""Events that the tables publish once a change is appended to the log. See kappamq/events.py."""

from __future__ import annotations

from dataclasses import dataclass

from kappamq.protocol.bodies.topics import TopicConfig


@dataclass(frozen=True, slots=True)
class TopicChanged:
    """A topic was created, or its settings changed."""

    topic: TopicConfig


@dataclass(frozen=True, slots=True)
class TopicDeleted:
    name: str


@dataclass(frozen=True, slots=True)
class TopicForgotten:
    """The last message of a deleted topic is no longer in the log: if the topic is created again, its numbering may start at 0."""

    name: str


@dataclass(frozen=True, slots=True)
class GroupChanged:
    """A group was created, changed or deleted, or its permission to read a topic changed."""

    name: str


@dataclass(frozen=True, slots=True)
class ResetChanged:
    """The pending offset resets of this group and topic have changed: check them again."""

    group: str
    topic: str


@dataclass(frozen=True, slots=True)
class SettingsChanged:
    """These settings have changed, by field, such as "store.transfer_bytes_max"."""

    fields: frozenset[str]


@dataclass(frozen=True, slots=True)
class CommitsRecorded:
    """Consumer offsets were appended to the log: (topic, group) -> queue id -> offset."""

    changes: dict[tuple[str, str], dict[int, int]]
