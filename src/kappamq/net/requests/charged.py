"""Requests that are answered later: the loop time of each of their steps is charged to their connection.

A step is what runs between two waits. Starting one costs nothing, so a peer may have hundreds under way: without this, all of them would
run their next step in the same turn.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Generic, TypeVar

from kappamq.errors import NotConnected
from kappamq.net.requests.fair_turns import FairTurns
from kappamq.net.serving.connection import Connection

T = TypeVar("T")


class Charged(Generic[T]):
    """Awaits a coroutine, step by step. Await it once, or close it."""

    def __init__(
        self,
        work: Coroutine[Any, Any, T],
        connection: Connection,
        turns: FairTurns,
        took: Callable[[float], None],
        *,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        """`took` is called with the seconds of each step, `is_wanted` before the first step, if that had to wait for its turn."""
        self._work = work
        self._connection = connection
        self._turns = turns
        self._took = took
        self._is_wanted = is_wanted

    def close(self) -> None:
        """Close it; it will not be awaited."""
        self._work.close()

    def __await__(self) -> Generator[Any, Any, T]:
        try:
            waited = yield from self._turns.wait_for_time(self._connection)
        except BaseException:
            self._work.close()
            raise
        if waited and not self._is_wanted():
            self._work.close()
            raise NotConnected(f"{self._connection} was closed before its request was carried out")
        error: BaseException | None = None
        while True:
            try:
                waits_for = self._step(error)
            except StopIteration as end:
                result: T = end.value
                return result
            error = None
            try:
                yield waits_for
                yield from self._turns.wait_for_time(self._connection)
            except BaseException as raised:  # what it waits for has failed, or it is cancelled
                error = raised

    def _step(self, error: BaseException | None) -> Any:
        turns = self._turns
        began, counted = time.perf_counter(), turns.spent
        try:
            return self._work.send(None) if error is None else self._work.throw(error)
        finally:
            seconds = time.perf_counter() - began - (turns.spent - counted)  # a part may have been counted already
            self._took(max(0.0, seconds))
