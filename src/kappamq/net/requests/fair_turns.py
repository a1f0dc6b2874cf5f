"""Divides each turn of the event loop fairly among connections.

The loop serves every readable socket before it polls the sockets again. Most requests take microseconds; one that Python decodes
and answers, or megabytes that are stored, may take milliseconds, and many peers may send many of them. So a turn has a budget for
such requests. When it is used up, the connections that sent them are paused, and others are served first.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Generator, Iterable
from typing import Any, Final, Protocol, TypeVar

from kappamq.net.serving.connection import WAITING, Connection

T = TypeVar("T")

TURN_S: Final = 0.004
"""Budget of a turn; when it is used up, further requests wait for another turn."""
LIGHT_TURN_S: Final = 0.012
"""Budget for connections with a low recent cost, so that they do not wait behind costly ones."""
LIGHT_S: Final = 0.004
SLICE_S: Final = 0.002
"""About the longest that a slice of long work may take; see `FairTurns.next_slice`."""
LINE_MAX: Final = 64
"""A connection with this many requests waiting for time is not read from; more may come from bytes read before."""
HALF_LIFE_S: Final = 1.0
"""Half-life of the recorded cost."""


class Account(Protocol):
    """The account that is charged: a connection, or an address. A new one has no cost."""

    cost: float  # seconds, as of `cost_at`
    cost_at: float  # by the loop's clock


class _Line:
    """The requests of one connection that are under way and wait for time."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.waiters: deque[asyncio.Future[None]] = deque()
        self.woken = 0  # of these, but their steps have not begun
        self.is_queued = False
        self.holds_reading = False


class FairTurns:
    """Belongs to one loop; all its servers may share it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._spent = 0.0  # in this turn
        self._is_scheduled = False
        self._light: deque[Connection | _Line] = deque()
        self._heavy: deque[Connection | _Line] = deque()
        self._lines: dict[Connection, _Line] = {}
        self._heavy_first = False  # none of the costly ones was served in the last turn
        self._slices: deque[asyncio.Future[None]] = deque()

    def has_time_for(self, connection: Connection) -> bool:
        """Return whether a request of this connection may be processed now. If not, it is paused and resumed in a later turn."""
        line = self._lines.get(connection)
        if line is not None and len(line.waiters) >= LINE_MAX:
            line.holds_reading = True
        elif self._is_time_for(connection):
            return True
        else:
            self._wait(connection, connection)
        connection.pause(WAITING)
        return False

    def waiting(self, connection: Connection) -> int:
        """Return how many of its requests under way wait for time."""
        line = self._lines.get(connection)
        return 0 if line is None else len(line.waiters)

    def wait_for_time(self, connection: Connection) -> Generator[Any, Any, bool]:
        """For a request of this connection that is under way (`yield from`): wait until a turn has time for its next step.

        Returns whether it had to wait. Those of one connection go on in their order, and connections take turns, however many
        requests each has sent."""
        line = self._lines.get(connection)
        if line is None:
            if self._is_time_for(connection):
                return False
            line = self._lines[connection] = _Line(connection)
        waiter = self._loop.create_future()
        line.waiters.append(waiter)
        self._queue(line)
        try:
            yield from waiter
        finally:
            if waiter.done() and not waiter.cancelled():
                line.woken -= 1
                self._end(line)
            else:
                waiter.cancel()  # the waiter was closed: no other is woken in its place, and `_resume` removes it
        return True

    def _queue(self, line: _Line) -> None:
        if not line.is_queued:
            line.is_queued = True
            self._wait(line.connection, line)

    def _end(self, line: _Line) -> None:
        """Forget the line if no request waits in it. While one does, new requests queue behind it."""
        if not line.waiters and not line.woken:
            self._lines.pop(line.connection, None)

    def _is_time_for(self, connection: Connection) -> bool:
        return self._spent < TURN_S or (self._spent < LIGHT_TURN_S and self.cost(connection) < LIGHT_S)

    def _wait(self, connection: Connection, entry: Connection | _Line) -> None:
        (self._light if self.cost(connection) < LIGHT_S else self._heavy).append(entry)
        self._schedule()

    @property
    def spent(self) -> float:
        """Return the seconds of this turn that have passed."""
        return self._spent

    def charge(self, account: Account, seconds: float) -> None:
        """Charge the time that a request took, on the loop or in the thread."""
        now = self._loop.time()
        account.cost = self._cost_at(account, now) + seconds
        account.cost_at = now

    def spend(self, seconds: float) -> None:
        """Use up part of this turn's budget."""
        self._spent += seconds
        self._schedule()

    async def next_slice(self) -> None:
        """Between two slices of long work: wait until a turn has time for the next one."""
        waiter = self._loop.create_future()
        self._slices.append(waiter)
        self._schedule()
        await waiter

    async def share(self, items: Iterable[T]) -> AsyncIterator[T]:
        """Yield the items. Whenever they have used up a slice of a turn, let other work run before the next one."""
        began = time.perf_counter()
        for item in items:
            yield item
            seconds = time.perf_counter() - began
            if seconds > SLICE_S:
                self.spend(seconds)
                await self.next_slice()
                began = time.perf_counter()
        self.spend(time.perf_counter() - began)

    async def run(self, steps: Iterable[object]) -> None:
        """Run all steps of long work, a limited number in each turn."""
        async for _ in self.share(steps):
            pass

    def cost(self, account: Account) -> float:
        """Return the recent cost in seconds."""
        return self._cost_at(account, self._loop.time())

    @staticmethod
    def _cost_at(account: Account, now: float) -> float:
        cost = account.cost
        if not cost or now == account.cost_at:  # uvloop's time stands still within a turn
            return cost
        return float(cost * 0.5 ** ((now - account.cost_at) / HALF_LIFE_S))

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._begin_turn)

    def _begin_turn(self) -> None:
        self._is_scheduled = False
        self._spent = 0.0
        heavy_got_on = False
        if self._heavy and self._heavy_first:
            heavy_got_on = True
            self._resume(self._heavy.popleft())
        while self._spent < TURN_S:
            if self._light:
                self._resume(self._light.popleft())
            elif self._slices:
                waiter = self._slices.popleft()
                if not waiter.done():
                    waiter.set_result(None)
                    self._spent += SLICE_S
            elif self._heavy:
                heavy_got_on = True
                self._resume(self._heavy.popleft())
            else:
                break
            if self._heavy and self._slices and self._spent < TURN_S:
                # Neither long work nor costly connections may starve the other.
                heavy_got_on = True
                self._resume(self._heavy.popleft())
        # Cheap ones may arrive without end, so costly ones are served at least in every second turn.
        self._heavy_first = bool(self._heavy) and not heavy_got_on
        if self._light or self._heavy or self._slices or self._spent:
            self._schedule()

    def _resume(self, entry: Connection | _Line) -> None:
        if not isinstance(entry, _Line):
            entry.resume(WAITING)
            return
        entry.is_queued = False
        waiters = entry.waiters
        while waiters:
            waiter = waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                entry.woken += 1
                self._spent += SLICE_S
                break
        if waiters:
            self._queue(entry)
        self._end(entry)
        if entry.holds_reading and len(waiters) <= LINE_MAX // 2:
            entry.holds_reading = False
            entry.connection.resume(WAITING)
