"""Classes that are completed when they are first used: a program that starts does not wait for the hundreds it never needs.

To make a dataclass takes about a millisecond, and there are hundreds of headers and bodies. Their declarations are read at
once; what a decorator would do is done when the first object is made, or the first of the class's tables is looked at.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_TODO = "_complete_later"


def later(cls: type[Any], work: Callable[[type[Any]], None], *tables: str) -> None:
    """Have `work` complete `cls` when it is first needed; it sets the class attributes `tables`."""
    setattr(cls, _TODO, (work, tables))
    cls.__init__ = _first_init
    for name in tables:
        setattr(cls, name, _FirstLook(name))


def complete(cls: type[Any]) -> None:
    """Do now what was left for later, for the bases first."""
    for base in reversed(cls.__mro__):
        todo = base.__dict__.get(_TODO)
        if todo is None:
            continue
        work, tables = todo
        delattr(base, _TODO)
        delattr(base, "__init__")  # else a dataclass would keep it
        for name in tables:
            delattr(base, name)
        work(base)


def _first_init(self: Any, *arguments: Any, **values: Any) -> None:
    complete(type(self))
    self.__init__(*arguments, **values)


class _FirstLook:
    """Stands for a table of a class that is not complete."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, instance: object, owner: type[Any]) -> Any:
        complete(owner)
        return getattr(owner, self._name)
