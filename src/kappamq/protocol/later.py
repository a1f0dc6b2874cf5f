"""Classes that are completed on first use, so that a program does not wait at start for the hundreds it never needs.

Creating a dataclass takes about a millisecond, and there are hundreds of headers and bodies. What the decorator would do is
deferred until the first object is created or the first of the class's tables is read. If two threads do so at the same
time, one completes the class and the other waits for it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

_TODO = "_complete_later"
_completing = threading.RLock()


class Later(type):
    """Metaclass of such classes."""

    def __call__(cls, *arguments: Any, **values: Any) -> Any:
        if _TODO in cls.__dict__:
            complete(cls)
        return super().__call__(*arguments, **values)


def later(cls: Later, work: Callable[[Any], None], *tables: str) -> None:
    """Have `work` complete `cls` on first use; it sets the class attributes `tables`, each in one step."""
    setattr(cls, _TODO, work)
    for name in tables:
        setattr(cls, name, _FirstLook(name))


def complete(cls: type[Any]) -> None:
    """Complete a class now, its bases first."""
    with _completing:
        for base in reversed(cls.__mro__):
            work = base.__dict__.get(_TODO)
            if work is not None:
                work(base)
                delattr(base, _TODO)  # not earlier: until here other threads have to wait


class _FirstLook:
    """Placeholder for a table of a class that is not complete."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, instance: object, owner: type[Any]) -> Any:
        complete(owner)
        return getattr(owner, self._name)
