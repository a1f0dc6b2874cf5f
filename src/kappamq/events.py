"""One small bus: what many parts want to hear of is a typed event, and who hears what can be listed.

An event is a frozen dataclass that says what has happened. Whoever publishes it does not know who listens; listeners are called at
once, in the order in which they subscribed, on the thread of the publisher. A listener that has one publisher and must answer it is
no listener but a collaborator: it belongs into the constructor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

E = TypeVar("E")


class Events:
    def __init__(self) -> None:
        self._listeners: dict[type, list[Callable[[Any], None]]] = {}

    def on(self, kind: type[E], listener: Callable[[E], None]) -> None:
        """Call `listener` with every event of this kind from now on."""
        self._listeners.setdefault(kind, []).append(listener)

    def off(self, kind: type[E], listener: Callable[[E], None]) -> None:
        """Call it no more. Raises ValueError if it does not listen."""
        # Another list: whoever is just going through the one before finishes with it.
        before = self._listeners.get(kind, [])
        after = list(before)
        after.remove(listener)
        self._listeners[kind] = after
        if not after:
            del self._listeners[kind]

    def publish(self, event: object) -> None:
        """Tell everybody who listens for this kind. What a listener raises goes to the publisher."""
        for listener in self._listeners.get(type(event), ()):
            listener(event)

    def listeners(self) -> dict[str, list[str]]:
        """Who hears what: names of listeners by the name of the event, for people."""
        return {
            kind.__name__: [_name(listener) for listener in listeners] for kind, listeners in self._listeners.items()
        }


class Listening:
    """Subscriptions that begin and end together: what a part with a shorter life than the bus listens to."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self._subscribed: list[tuple[type, Callable[[Any], None]]] = []

    def on(self, kind: type[E], listener: Callable[[E], None]) -> None:
        self._events.on(kind, listener)
        self._subscribed.append((kind, listener))

    def end(self) -> None:
        subscribed, self._subscribed = self._subscribed, []
        for kind, listener in subscribed:
            self._events.off(kind, listener)


def _name(listener: Callable[[Any], None]) -> str:
    owner = getattr(listener, "__self__", None)
    name = getattr(listener, "__name__", repr(listener))
    return f"{type(owner).__name__}.{name}" if owner is not None else name
