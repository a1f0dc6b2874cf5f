"""Validation of arguments. A value of the wrong type is refused at the API boundary with a text that says what is accepted.

Type checkers find these earlier, but not everyone uses one, and deeper inside a wrong value only causes obscure errors.
"""

from __future__ import annotations

import datetime
import math

from kappamq.message import Message, MessageQueue, ReceivedMessage

SHOWN_CHARACTERS_MAX = 80


def expect(name: str, value: object, kinds: type | tuple[type, ...], accepted: str) -> None:
    """Raise TypeError unless `value` has one of these types. True and False do not count as numbers."""
    if not isinstance(value, kinds) or isinstance(value, bool):
        raise TypeError(f"{name} must be {accepted}; got {shown(value)}")


def shown(value: object) -> str:
    text = repr(value)
    if len(text) > SHOWN_CHARACTERS_MAX:
        text = text[:SHOWN_CHARACTERS_MAX] + "..."
    return f"{text} ({type(value).__name__})"


def message(value: object) -> None:
    expect("message", value, Message, 'a Message, such as Message("orders", b"42 cups")')


def received(value: object) -> None:
    expect("message", value, ReceivedMessage, "a ReceivedMessage, as this consumer returned it")


def queue(value: object) -> None:
    expect("queue", value, MessageQueue, "a MessageQueue, such as queues(topic) returns")


def key(value: object) -> None:
    if value is not None:
        expect("key", value, (str, int, bytes), "a str, an int or bytes")


def text(name: str, value: object) -> None:
    expect(name, value, str, "a str")


def number(name: str, value: object) -> None:
    expect(name, value, int, "an int")


def seconds(name: str, value: object) -> None:
    """A number of seconds, or None."""
    if value is None:
        return
    expect(name, value, (int, float), "a number of seconds, or None")
    if math.isnan(value):  # type: ignore[arg-type]
        raise ValueError(f"{name} must be a number of seconds; got {value!r}")


def moment(name: str, value: object, beside: str = "") -> None:
    """A point in time, as searches and resets take it. `beside`: what else is accepted there."""
    accepted = f"a datetime, or milliseconds since 1970 as int{beside}"
    expect(name, value, (int, datetime.datetime), accepted)
