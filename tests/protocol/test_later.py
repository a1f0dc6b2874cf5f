"""Classes that are completed when they are first used."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from importlib import import_module
from typing import Any, ClassVar

from kappamq.protocol.later import Later, complete, later

DONE: list[str] = []


def work(cls: type[Any]) -> None:
    dataclass(cls)
    cls.table = [item.name for item in fields(cls)]
    DONE.append(cls.__name__)


class Base(metaclass=Later):
    table: ClassVar[list[str]] = []

    def __init_subclass__(cls) -> None:
        later(cls, work, "table")


def test_nothing_is_done_before_it_is_needed() -> None:
    class First(Base):
        a: int = 1

    class Second(First):
        b: int = 2

    class Third(Second):
        c: int = 3

    DONE.clear()
    made: Any = Second
    assert made(a=5, b=6) == made(5, 6)
    assert DONE == ["First", "Second"]
    assert Third.table == ["a", "b", "c"]
    assert First.table == ["a"]
    assert DONE == ["First", "Second", "Third"]
    complete(Third)
    assert DONE == ["First", "Second", "Third"]


def test_a_base_may_be_complete_already() -> None:
    class First(Base):
        a: int = 1

    assert First.table == ["a"]

    class Second(First):
        b: int = 2

    made: Any = Second
    assert (made(b=9).a, made(b=9).b) == (1, 9)
    assert repr(made()).endswith("Second(a=1, b=2)")


def test_every_header_and_body_can_be_completed() -> None:
    """What a decorator would have said at import is said here."""
    for module in (
        "headers.admin",
        "headers.client",
        "headers.nameserver",
        "bodies.admin",
        "bodies.clients",
        "bodies.topics",
    ):
        for value in vars(import_module(f"kappamq.protocol.{module}")).values():
            if isinstance(value, type):
                complete(value)


def test_two_threads_may_be_the_first() -> None:
    for _ in range(50):

        class First(Base):
            a: int = 1

        class Second(First):
            b: int = 2

        made: Any = Second
        together = threading.Barrier(4)

        def use(number: int, made: Any = made, together: threading.Barrier = together) -> Any:
            together.wait()
            return made.table if number % 2 else made(b=7)

        with ThreadPoolExecutor(4) as threads:
            results = list(threads.map(use, range(4)))
        assert results == [made(b=7), ["a", "b"]] * 2
