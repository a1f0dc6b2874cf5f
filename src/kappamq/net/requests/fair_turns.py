"""How one turn of the loop is shared: whoever has taken much of it waits for the next one.

The loop serves every socket that has something to say before it looks at the sockets again. What the kernel does takes
microseconds; a request that Python reads and answers may take milliseconds, and many peers may send many of them. So a turn
has a budget for such requests. When it is used up, the connections that brought them wait, and others are served first.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable
from typing import Final, Protocol, TypeVar

from kappamq.net.serving.connection import WAITING, Connection

T = TypeVar("T")

TURN_S: Final = 0.004
"""What the requests of one turn may take together before the next one has to wait for another turn."""
LIGHT_TURN_S: Final = 0.012
"""The same for a connection that has cost little lately: it does not wait behind those that cost much."""
LIGHT_S: Final = 0.004
SLICE_S: Final = 0.002
"""About as long as a piece of long work may take; see `FairTurns.next_slice`."""
HALF_LIFE_S: Final = 1.0
"""In which half of what somebody has cost is forgotten."""


class Account(Protocol):
    """Who is charged: a connection, or an address. A new one has cost nothing, whatever the time."""

    cost: float  # seconds, as of `cost_at`
    cost_at: float  # by the loop's clock


class FairTurns:
    """Belongs to one loop; all its servers may share it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._spent = 0.0  # in this turn
        self._is_scheduled = False
        self._light: deque[Connection] = deque()
        self._heavy: deque[Connection] = deque()
        self._heavy_first = False  # none of them got on in the last turn
        self._slices: deque[asyncio.Future[None]] = deque()

    def has_time_for(self, connection: Connection) -> bool:
        """Whether a request of this connection may be worked on now. If not, it is paused, and resumed in a later turn."""
        if self._spent < TURN_S:
            return True
        is_light = self.cost(connection) < LIGHT_S
        if is_light and self._spent < LIGHT_TURN_S:
            return True
        connection.pause(WAITING)
        (self._light if is_light else self._heavy).append(connection)
        self._schedule()
        return False

    def charge(self, account: Account, seconds: float) -> None:
        """A request has taken this long, on the loop or beside it."""
        account.cost = self.cost(account) + seconds
        account.cost_at = self._loop.time()

    def spend(self, seconds: float) -> None:
        """So much of this turn is gone."""
        self._spent += seconds
        self._schedule()

    async def next_slice(self) -> None:
        """Between two pieces of long work: until a turn has time for the next piece."""
        waiter = self._loop.create_future()
        self._slices.append(waiter)
        self._schedule()
        await waiter

    async def share(self, items: Iterable[T]) -> AsyncIterator[T]:
        """The items one by one. Whenever they have taken a slice of a turn, everybody else gets on before the next one."""
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
        """Take all the steps of long work, so many in each turn."""
        async for _ in self.share(steps):
            pass

    def cost(self, account: Account) -> float:
        """Seconds that its requests took lately."""
        if not account.cost:
            return 0.0
        return float(account.cost * 0.5 ** ((self._loop.time() - account.cost_at) / HALF_LIFE_S))

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
                # Neither long work nor costly connections may keep the other from getting on.
                heavy_got_on = True
                self._resume(self._heavy.popleft())
        # Light ones may come without end: costly ones get on in every second turn at least.
        self._heavy_first = bool(self._heavy) and not heavy_got_on
        if self._light or self._heavy or self._slices or self._spent:
            self._schedule()

    def _resume(self, connection: Connection) -> None:
        connection.resume(WAITING)
