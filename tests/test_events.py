"""The bus: order, lists of listeners, and subscriptions that end together."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from kappamq.events import Events, Listening


@dataclass(frozen=True, slots=True)
class Said:
    text: str


@dataclass(frozen=True, slots=True)
class Sung:
    text: str


class Ear:
    def __init__(self) -> None:
        self.heard: list[str] = []

    def hear(self, event: Said) -> None:
        self.heard.append(event.text)


def sing(event: Sung) -> None: ...


def test_listeners_hear_their_kind_in_order_of_subscription() -> None:
    events, order = Events(), []
    events.on(Said, lambda event: order.append(("first", event.text)))
    events.on(Said, lambda event: order.append(("second", event.text)))
    events.publish(Said("a"))
    events.publish(Sung("b"))
    assert order == [("first", "a"), ("second", "a")]


def test_listeners_can_be_listed() -> None:
    events, ear = Events(), Ear()
    assert events.listeners() == {}
    events.on(Said, ear.hear)
    events.on(Sung, sing)
    assert events.listeners() == {"Said": ["Ear.hear"], "Sung": ["sing"]}


def test_whoever_left_hears_nothing_and_is_not_listed() -> None:
    events, ear = Events(), Ear()
    events.on(Said, ear.hear)
    events.off(Said, ear.hear)
    events.publish(Said("a"))
    assert (ear.heard, events.listeners()) == ([], {})
    with pytest.raises(ValueError, match="not in list"):
        events.off(Said, ear.hear)


def test_a_listener_may_leave_while_it_is_told() -> None:
    events, ear = Events(), Ear()

    def once(event: Said) -> None:
        events.off(Said, once)

    events.on(Said, once)
    events.on(Said, ear.hear)
    events.publish(Said("a"))
    events.publish(Said("b"))
    assert ear.heard == ["a", "b"]


def test_what_a_listener_raises_goes_to_the_publisher() -> None:
    events = Events()

    def refuse(event: Said) -> None:
        raise OSError(event.text)

    events.on(Said, refuse)
    with pytest.raises(OSError, match="no"):
        events.publish(Said("no"))


def test_subscriptions_end_together() -> None:
    events, ear, other = Events(), Ear(), Ear()
    events.on(Said, other.hear)
    for _ in range(3):
        listening = Listening(events)
        listening.on(Said, ear.hear)
        events.publish(Said("a"))
        listening.end()
        listening.end()
        assert events.listeners() == {"Said": ["Ear.hear"]}
    assert (ear.heard, other.heard) == (["a"] * 3, ["a"] * 3)
