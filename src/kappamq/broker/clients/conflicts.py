"""Detects members of a group with different subscriptions.

A group has one subscription for each topic, the newest from any member. Members that subscribe differently overwrite each
other's with every heartbeat: messages that one of them wants go to another that drops them, silently. This module
finds which members differ, and in what.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from functools import lru_cache
from itertools import islice
from typing import NamedTuple

from kappamq.protocol import names
from kappamq.protocol.bodies.clients import MessageModel, SubscriptionData

_TOPICS_NAMED = 3  # a group may have thousands: these suffice to find the cause
_EXPRESSION_CHARACTERS = 200
_COMPARED_CHARACTERS = 1024  # of longer lists of tags, another order counts as a difference: sorting them takes long
_NOTHING = "nothing"
_REPORTED_MAX = 1000  # contradictions of a group that are remembered, so as not to be logged again
_CONFLICTS_MAX = 100


class Interest(NamedTuple):
    """The subscriptions of one member."""

    model: MessageModel
    subscriptions: frozenset[tuple[str, str, str]]  # topic, kind of expression, expression

    @classmethod
    def of(cls, model: MessageModel, subscriptions: Iterable[SubscriptionData]) -> Interest:
        wanted = frozenset(
            (each.topic, each.expression_type or "TAG", _plain(each.expression_type, each.expression))
            for each in subscriptions
            if not names.is_retry_topic(each.topic)  # every client adds it by itself
        )
        return cls(model, wanted)


class Agreement:
    """For one group: each interest, and the members that have it."""

    __slots__ = ("_members", "_names", "_reported")

    def __init__(self) -> None:
        self._members: dict[Hashable, Interest] = {}
        self._names: dict[Interest, dict[Hashable, str]] = {}
        self._reported: set[frozenset[Interest]] = set()

    def note(self, member: Hashable, client_id: str, interest: Interest) -> str | None:
        """Note a member's subscriptions from its heartbeat; returns the members it contradicts, once for each contradiction."""
        before = self._members.get(member)
        if before == interest:
            return None
        if before is not None:
            self.leave(member)
        self._members[member] = interest
        self._names.setdefault(interest, {})[member] = client_id
        for other, holders in self._names.items():
            pair = frozenset((interest, other))
            if other is interest or other == interest or pair in self._reported:
                continue
            name = next((name for name in holders.values() if name != client_id), None)
            if name is not None:  # else it is the same client on an older connection
                if len(self._reported) >= _REPORTED_MAX:
                    self._reported.clear()
                self._reported.add(pair)
                return _text(client_id, interest, name, other)
        return None

    def leave(self, member: Hashable) -> None:
        interest = self._members.pop(member, None)
        if interest is not None:
            holders = self._names[interest]
            del holders[member]
            if not holders:
                del self._names[interest]
                self._reported = {pair for pair in self._reported if interest not in pair}

    @property
    def conflicts(self) -> list[str]:
        """Return the members that contradict the first one, and in what; empty if all subscribe alike."""
        return list(islice(self._conflicts(), _CONFLICTS_MAX))

    @property
    def first_conflict(self) -> str | None:
        return next(self._conflicts(), None)

    def _conflicts(self) -> Iterator[str]:
        first: tuple[str, Interest] | None = None
        for interest, holders in self._names.items():
            name = next((name for name in holders.values() if first is None or name != first[0]), None)
            if name is None:
                continue
            if first is None:
                first = name, interest
            else:
                yield _text(*first, name, interest)


def _text(one: str, wants: Interest, other: str, other_wants: Interest) -> str:
    differing = wants.subscriptions ^ other_wants.subscriptions
    first, second = (
        {topic: (kind, text) for topic, kind, text in differing & each.subscriptions} for each in (wants, other_wants)
    )
    topics = sorted(first.keys() | second.keys())
    parts = []
    for client, mine, model in ((one, first, wants.model), (other, second, other_wants.model)):
        wanted = [f"{_shown(mine.get(topic))} of {topic}" for topic in topics[:_TOPICS_NAMED]]
        if wants.model is not other_wants.model:
            wanted.insert(0, f"{model.name} mode")
        parts.append(f"{client} wants {', '.join(wanted)}")
    more = f" (and {len(topics) - _TOPICS_NAMED} more topics)" if len(topics) > _TOPICS_NAMED else ""
    return " but ".join(parts) + more


def _shown(expression: tuple[str, str] | None) -> str:
    if expression is None:
        return _NOTHING
    kind, text = expression
    shown = text if len(text) <= _EXPRESSION_CHARACTERS else text[:_EXPRESSION_CHARACTERS] + "..."
    return repr(shown) if kind == "TAG" else f"{kind} {shown!r}"


@lru_cache(4096)
def _plain(kind: str, expression: str) -> str:
    """The same tags in another order are the same subscription."""
    if kind not in ("", "TAG") or len(expression) > _COMPARED_CHARACTERS:
        return expression
    tags = sorted({tag.strip() for tag in expression.split("||")} - {""})
    return "*" if not tags or tags == ["*"] else " || ".join(tags)
