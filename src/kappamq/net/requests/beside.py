"""Requests that take too long for the loop: one thread processes them, one connection at a time.

It is a single thread because all threads share the GIL: the loop then waits for at most one of them, and no longer than the
switch interval (event_loop.py).

The address whose work has cost least lately comes first, and of its connections the one with the least cost and the smallest
request. A peer gains nothing by opening many connections, and clients behind the same address are still told apart. The queue is
bounded, per address and in total; beyond that requests are answered Busy. Requests of a lost connection are dropped; but while a
connection is paused, the loop does not notice that its peer has closed it.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
import math
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from kappamq.errors import Busy, NotConnected
from kappamq.net.requests.fair_turns import HALF_LIFE_S, LIGHT_S, Account, FairTurns
from kappamq.net.serving.connection import Connection

log = logging.getLogger(__name__)

T = TypeVar("T")

ADDRESS_JOBS_MAX: Final = 1000
ADDRESS_BYTES_MAX: Final = 64 << 20
JOBS_MAX: Final = 10_000
BYTES_MAX: Final = 256 << 20
_BYTE_S: Final = 5e-5
"""A large request lets smaller ones of its address overtake that arrive within this time per byte of it. Reading a byte takes at
most a microsecond, so a small request overtakes all the large ones that ADDRESS_BYTES_MAX admits; and no request waits for ever."""
_SAME_S: Final = 0.001  # places that differ by less are equal, except for rounding
_COSTS_MAX: Final = 1000
_QUIET_S: Final = 60.0  # refusals are logged at most this often


class _Job(NamedTuple):
    done: asyncio.Future[Any]
    work: Callable[[], Any]
    size: int


class _Line:
    """The jobs of one connection."""

    __slots__ = ("address", "connection", "jobs", "place")

    def __init__(self, connection: Connection, address: _Address) -> None:
        self.connection = connection
        self.address = address
        self.jobs: deque[_Job] = deque()
        self.place = 0.0  # based on the cost of the connection when the line was entered


class _Cost:
    """The recent cost of an address (fair_turns.py)."""

    __slots__ = ("cost", "cost_at")

    def __init__(self) -> None:
        self.cost = self.cost_at = 0.0


class _Address:
    """All waiting jobs of one address."""

    __slots__ = ("bytes", "jobs", "lines", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.lines: list[tuple[float, int, _Line]] = []  # a heap; dropped lines stay in it, without jobs
        self.jobs = 0
        self.bytes = 0


class Beside:
    def __init__(self, turns: FairTurns) -> None:
        self._turns = turns
        self._loop = asyncio.get_running_loop()
        self._thread: ThreadPoolExecutor | None = None
        self._lines: dict[Connection, _Line] = {}
        self._addresses: dict[str, _Address] = {}
        self._order: list[tuple[float, int, _Address]] = []  # a heap of the addresses without a running job
        self._costs: dict[str, _Cost] = {}
        self._numbers = itertools.count()
        self._jobs = 0
        self._bytes = 0
        self._is_busy = False
        self._refused = 0
        self._refusal_told = -math.inf

    async def run(self, connection: Connection, work: Callable[..., T], *arguments: Any, size: int | None = None) -> T:
        """Run `work` for a request of the connection in the thread, and return its result.

        `size`: the bytes of a new request; without it, this is the last part of a request that was carried out, and is never
        refused. Raises Busy if the queue is full, NotConnected if the connection is lost before the work starts."""
        if size is not None:
            self._check_room(connection.counted_as, size)
        return await self._add(connection, lambda: work(*arguments), size or 0)

    def open(self) -> None:
        self._thread = ThreadPoolExecutor(1, "kappamq-parse")
        self._begin()

    def close(self) -> None:
        """Start nothing new; the running job completes."""
        for connection in list(self._lines):
            for job in self._drop(connection):
                job.done.cancel()
        if self._thread is not None:
            self._thread.shutdown(wait=True)
            self._thread = None

    # -- waiting jobs ------------------------------------------------------------------------------------------------------

    def _check_room(self, name: str, size: int) -> None:
        address = self._addresses.get(name)
        if address is not None and (
            address.jobs >= ADDRESS_JOBS_MAX or (address.bytes and address.bytes + size > ADDRESS_BYTES_MAX)
        ):
            waits = f"{address.jobs} requests from {name} with {address.bytes} bytes wait to be read"
        elif self._jobs >= JOBS_MAX or (self._bytes and self._bytes + size > BYTES_MAX):
            waits = f"{self._jobs} requests with {self._bytes} bytes wait to be read"
        else:
            return
        self._refused += 1
        now = self._loop.time()
        if now - self._refusal_told > _QUIET_S:
            self._refusal_told = now
            log.warning("refusing a large request from %s: %s; %d refused so far", name, waits, self._refused)
        raise Busy(f"{waits}: try again later, or send smaller requests")

    def _add(self, connection: Connection, work: Callable[[], T], size: int) -> asyncio.Future[T]:
        if not connection.is_open:
            raise _closed(connection)
        done: asyncio.Future[T] = self._loop.create_future()
        line = self._lines.get(connection)
        if line is None:
            address = self._addresses.get(connection.counted_as)
            if address is None:
                address = self._addresses[connection.counted_as] = _Address(connection.counted_as)
                self._enter_address(address)
            line = self._lines[connection] = _Line(connection, address)
            connection.on_lost.append(self._lost)
        line.jobs.append(_Job(done, work, size))
        self._count(line.address, 1, size)
        if len(line.jobs) == 1:
            self._enter_line(line)
        self._begin()
        return done

    def _count(self, address: _Address, jobs: int, size: int) -> None:
        address.jobs += jobs
        address.bytes += size
        self._jobs += jobs
        self._bytes += size

    def _enter_line(self, line: _Line) -> None:
        line.place = self._place(line.connection)
        heapq.heappush(line.address.lines, (line.place + line.jobs[0].size * _BYTE_S, next(self._numbers), line))

    def _enter_address(self, address: _Address) -> None:
        cost = self._costs.get(address.name)
        place = self._loop.time() if cost is None else self._place(cost)
        heapq.heappush(self._order, (place, next(self._numbers), address))

    def _place(self, account: Account) -> float:
        """Return the place in the queue of an account: now if its cost is low, otherwise when its cost will have decayed.

        All costs decay at the same rate, so the order of two waiting accounts does not change with time: a heap can keep it."""
        cost = self._turns.cost(account)
        return self._loop.time() + (HALF_LIFE_S * math.log2(cost / LIGHT_S) if cost > LIGHT_S else 0.0)

    def _lost(self, connection: Connection) -> None:
        for job in self._drop(connection):
            if not job.done.done():
                job.done.set_exception(_closed(connection))

    def _drop(self, connection: Connection) -> list[_Job]:
        """Forget a connection; returns its waiting jobs."""
        line = self._lines.pop(connection, None)
        if line is None:
            return []
        jobs, address = list(line.jobs), line.address
        line.jobs.clear()
        self._count(address, -len(jobs), -sum(job.size for job in jobs))
        if len(address.lines) > 2 * address.jobs + 16:
            address.lines = [entry for entry in address.lines if entry[2].jobs]
            heapq.heapify(address.lines)
        return jobs

    def _next(self) -> tuple[_Line, _Job] | None:
        """Take out the next job. Its address becomes eligible again when `_end` has entered it."""
        while self._order:
            address = heapq.heappop(self._order)[2]
            while address.lines:
                line = heapq.heappop(address.lines)[2]
                if not line.jobs:
                    continue  # its connection was lost
                if self._has_cost_more(line):
                    self._enter_line(line)
                    continue
                job = line.jobs.popleft()
                self._count(address, -1, -job.size)
                if line.jobs:
                    self._enter_line(line)
                else:
                    self._leave(line)
                if not job.done.done():  # otherwise its caller was cancelled
                    return line, job
            del self._addresses[address.name]
        return None

    def _has_cost_more(self, line: _Line) -> bool:
        """Return whether its cost has grown since it was entered."""
        connection = line.connection
        return self._turns.cost(connection) > LIGHT_S and self._place(connection) > line.place + _SAME_S

    def _leave(self, line: _Line) -> None:
        del self._lines[line.connection]
        line.connection.on_lost.remove(self._lost)

    # -- the thread --------------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        if self._is_busy or self._thread is None:
            return
        found = self._next()
        if found is not None:
            line, job = found
            self._is_busy = True
            running = self._loop.run_in_executor(self._thread, _timed, job.work)
            running.add_done_callback(partial(self._end, job.done, line))

    def _end(
        self, done: asyncio.Future[Any], line: _Line, ran: asyncio.Future[tuple[float, Any, Exception | None]]
    ) -> None:
        self._is_busy = False
        if ran.cancelled():
            done.cancel()
            self._enter_again(line.address)
            return
        seconds, value, error = ran.result()
        self._charge(line, seconds)
        self._enter_again(line.address)
        if done.done():
            pass
        elif error is not None:
            done.set_exception(error)
        else:
            done.set_result(value)
        self._begin()

    def _enter_again(self, address: _Address) -> None:
        if address.jobs:
            self._enter_address(address)
        else:
            del self._addresses[address.name]

    def _charge(self, line: _Line, seconds: float) -> None:
        self._turns.charge(line.connection, seconds)
        costs = self._costs
        self._turns.charge(costs.setdefault(line.address.name, _Cost()), seconds)
        if len(costs) > _COSTS_MAX:  # one thread cannot have worked much for more than a few hundred lately
            self._costs = {name: cost for name, cost in costs.items() if self._turns.cost(cost) > LIGHT_S}


def _closed(connection: Connection) -> NotConnected:
    return NotConnected(f"{connection} was closed before its request was read")


def _timed(work: Callable[[], Any]) -> tuple[float, Any, Exception | None]:
    began = time.thread_time()
    try:
        value, error = work(), None
    except Exception as raised:
        value, error = None, raised
    return time.thread_time() - began, value, error
