"""Fast reads of a long range of a queue as bytes: several pulls in flight, answers in order.

The next pull of a queue cannot be sent before the last one is answered, since only the answer says how far it reached. So
the range is divided into stripes, and a few stripes are read concurrently, each pull by pull. A broker that returns 32 messages
at a time (RocketMQ's default) then costs a round trip per `lanes` pulls instead of one per pull.

Read-ahead is bounded in bytes, whatever the message size: beyond the bound only the stripe whose turn it is continues.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import replace
from typing import Final, Protocol, TypeVar

from kappamq.errors import Busy
from kappamq.message import PulledBytes, PullResult, PullStatus

LANES: Final = 4
STRIPE: Final = 4096
PULL_COUNT: Final = 1024
"""Messages per pull; a broker may return fewer."""
BYTES_AHEAD: Final = 16 << 20
"""Bytes of answers waiting for their turn; pulls in flight may add one answer per lane."""
PAUSES_S: Final = (0.05, 0.2, 0.5, 1.0)
"""Pauses before repeating a pull to which the broker answered "retry at once": it could not read its disk in time."""


A = TypeVar("A", PulledBytes, PullResult)


class Pull(Protocol):
    async def __call__(self, offset: int, *, count: int) -> PulledBytes: ...


class Pace:
    """Limits the bytes per second of all pulls that share it: a pull waits until earlier ones are within the rate."""

    def __init__(self, bytes_per_second: float) -> None:
        self._rate = bytes_per_second
        self._free_at = 0.0

    async def wait(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            ahead = self._free_at - loop.time()
            if ahead <= 0:
                return
            await asyncio.sleep(ahead)  # others may have read meanwhile

    def count(self, size: int) -> None:
        self._free_at = max(self._free_at, asyncio.get_running_loop().time()) + size / self._rate


async def read_in_lanes(
    pull: Pull,
    start: int,
    stop: int,
    *,
    lanes: int = LANES,
    stripe: int = STRIPE,
    bytes_ahead: int = BYTES_AHEAD,
    pace: Pace | None = None,
) -> AsyncGenerator[list[PulledBytes]]:
    """Yield the answers that cover the messages [start, stop), in order, as lists of those that have arrived since the last. About
    `bytes_ahead` bytes wait here, and at most as many are in the list that was yielded last.

    An answer without messages is yielded, too, and says what is missing. OFFSET_ILLEGAL: everything from the end of the last
    one up to its `next_offset` was deleted. NO_MATCH: the broker cannot read that range. NO_NEW: that range is a hole in the
    queue, if `next_offset` is further on, and reading continues behind it; otherwise the queue ends before `stop`, and so
    does the reading. Raises Busy."""
    if lanes < 1 or stripe < 1:
        raise ValueError(f"lanes={lanes} and stripe={stripe} must be at least 1")
    stripes = iter(range(start, stop, stripe))
    budget = _Budget(bytes_ahead)
    running: deque[_Lane] = deque()
    try:
        while True:
            while len(running) < lanes and (first := next(stripes, None)) is not None:
                running.append(_Lane(pull, first, min(first + stripe, stop), budget, pace))
            if not running:
                return
            running[0].has_turn = True
            budget.changed.set()
            while answers := await running[0].take():
                at_the_end = running[0].at_the_end  # while these are handed out the lane reads on
                yield answers
                if at_the_end:
                    return
            running.popleft()
    finally:
        tasks = [lane.task for lane in running]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def read_in_turn(
    pull: Pull, start: int, stop: int, *, pace: Pace | None = None
) -> AsyncGenerator[list[PulledBytes]]:
    """The same with one pull at a time, for filtered pulls: their answers may reach beyond the requested range, and stripes
    would read the same messages twice. The last answer may have messages beyond `stop`."""
    offset = start
    while offset < stop:
        answer = await _ask(pull, offset, PULL_COUNT, pace)
        yield [answer]
        if answer.status is PullStatus.NO_NEW and answer.next_offset <= offset:
            return
        offset = answer.next_offset


class _Budget:
    """The bytes waiting in all lanes together."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0
        self.changed = asyncio.Event()


class _Lane:
    """Reads one stripe, pull by pull. `has_turn`: its answers are consumed as they arrive, so it may always continue."""

    def __init__(self, pull: Pull, start: int, stop: int, budget: _Budget, pace: Pace | None) -> None:
        self.has_turn = False
        self.at_the_end = False  # the queue has no more messages
        self._pull, self._start, self._stop, self._budget, self._pace = pull, start, stop, budget, pace
        self._answers: list[PulledBytes] = []
        self._arrived = asyncio.Event()
        self.task = asyncio.create_task(self._read())
        self.task.add_done_callback(lambda _task: self._arrived.set())

    async def take(self) -> list[PulledBytes]:
        """Return the available answers, at least one; none after the last. Raises a pull's error after the answers before it."""
        while not self._answers:
            if self.task.done():
                self.task.result()
                return []
            self._arrived.clear()
            await self._arrived.wait()
        answers, self._answers = self._answers, []
        self._budget.held -= sum(len(answer.data) for answer in answers)
        self._budget.changed.set()
        return answers

    async def _read(self) -> None:
        offset = self._start
        while offset < self._stop:
            while not self._may_ask():
                self._budget.changed.clear()
                await self._budget.changed.wait()
            answer = await _ask(self._pull, offset, min(PULL_COUNT, self._stop - offset), self._pace)
            if answer.next_offset > self._stop:  # the rest belongs to the next stripe
                answer = replace(answer, next_offset=self._stop)
            self.at_the_end = answer.status is PullStatus.NO_NEW and answer.next_offset <= offset
            self._answers.append(answer)
            self._budget.held += len(answer.data)
            self._arrived.set()
            if self.at_the_end:
                return
            offset = answer.next_offset

    def _may_ask(self) -> bool:
        return self._budget.held < self._budget.limit or (self.has_turn and not self._answers)


async def ask_again(question: Callable[[], Awaitable[A]], offset: int) -> A:
    """Return the answer to a pull from `offset` on. Raises Busy if the broker keeps answering to retry."""
    for pause in (*PAUSES_S, None):
        answer = await question()
        if answer.status is not PullStatus.NO_MATCH or answer.next_offset > offset:
            return answer
        if pause is not None:
            await asyncio.sleep(pause)
    raise Busy(f"the broker could not read message {offset} in {len(PAUSES_S) + 1} attempts: its disk may be slow")


async def _ask(pull: Pull, offset: int, count: int, pace: Pace | None) -> PulledBytes:
    if pace is not None:
        await pace.wait()
    answer = await ask_again(lambda: pull(offset, count=count), offset)
    if pace is not None:
        pace.count(len(answer.data))
    if answer.next_offset > offset or answer.status is PullStatus.NO_NEW:
        return answer
    # An answer that leads nowhere would be repeated for ever. A queue that became shorter sends readers back.
    return replace(answer, status=PullStatus.NO_NEW, next_offset=offset, data=b"")
