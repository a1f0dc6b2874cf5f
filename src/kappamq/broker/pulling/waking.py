"""Wakes pulls that have waited: not while their peer does not read its answers, and not all of them in one turn.

A message is copied once for each pull that it wakes. A peer with many waiting pulls must not be able to have it copied many
times at once, and has to take one answer before the next one is made.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from kappamq.broker.pulling.sql_pull import Sieve
from kappamq.net.requests.fair_turns import SLICE_S, FairTurns
from kappamq.net.serving.connection import Connection

Run = Callable[[Coroutine[Any, Any, None]], None]


@dataclass(slots=True, eq=False)
class PullRequest:
    connection: Connection
    group: str
    topic: str
    queue_id: int
    offset: int
    count: int
    codes: frozenset[int] | None
    suspend_ms: int  # 0: wants an answer now
    opaque: int
    binary: bool
    again: Callable[[PullRequest], None]  # tries it once more, now
    until: float | None = None  # liveness time; it has been waiting, and may do so until then
    sieve: Sieve | None = None  # a condition that the kernel cannot judge


class Waking:
    def __init__(self, turns: FairTurns, run: Run) -> None:
        self._turns = turns
        self._run = run
        self._aside: dict[Connection, list[PullRequest]] = {}  # until the peer has taken what it has

    def wake(self, requests: list[PullRequest]) -> None:
        """Try them again; those that take longer than a slice of a turn share the next turns with other requests."""
        began = time.perf_counter()
        for done, request in enumerate(requests, 1):
            self._wake(request)
            seconds = time.perf_counter() - began
            if seconds > SLICE_S and done < len(requests):
                self._turns.spend(seconds)
                self._run(self._in_slices(requests[done:]))
                return

    async def _in_slices(self, requests: list[PullRequest]) -> None:
        await self._turns.next_slice()
        async for request in self._turns.share(requests):
            self._wake(request)

    def _wake(self, request: PullRequest) -> None:
        connection = request.connection
        if not connection.is_open:
            return
        if not connection.is_stalled:
            request.again(request)
            return
        aside = self._aside.get(connection)
        if aside is None:
            aside = self._aside[connection] = []
            connection.on_writable.append(self._writable)
        aside.append(request)

    def _writable(self, connection: Connection) -> None:
        self.wake(self._aside.pop(connection, []))

    def lost(self, connection: Connection) -> None:
        self._aside.pop(connection, None)
