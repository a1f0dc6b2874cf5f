"""Classes that are completed when they are first used: a program that starts does not wait for the hundreds it never needs.

To make a dataclass takes about a millisecond, and there are hundreds of headers and bodies. Their declarations are read at
once; what a decorator would do is done when the first object is made, or the first of the class's tables is looked at. Two
threads may be first at the same time: one completes the class, the other waits for it.
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
    """Have `work` complete `cls` when it is first needed; it sets the class attributes `tables`, each in one step."""
    setattr(cls, _TODO, work)
    for name in tables:
        setattr(cls, name, _FirstLook(name))


def complete(cls: type[Any]) -> None:
    """Do now what was left for later, for the bases first."""
    with _completing:
        for base in reversed(cls.__mro__):
            work = base.__dict__.get(_TODO)
            if work is not None:
                work(base)
                delattr(base, _TODO)  # not before: up to here everybody else has to wait


class _FirstLook:
    """Stands for a table of a class that is not complete."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, instance: object, owner: type[Any]) -> Any:
        complete(owner)
        return getattr(owner, self._name)
