"""Back-pressure: limits how many sends, and how many bytes, are in flight.

`Pressure` is for the tasks of one loop, `Allowance` for threads. Both make callers wait their turn for a limited time, or
(`inflight_full="raise"`) refuse at once. Either way the error is TooManyRequests, and nothing was sent.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque

from kappamq.errors import TooManyRequests


class Pressure:
    """First come, first served. A single message larger than the byte limit may be sent alone."""

    def __init__(self, count_max: int, bytes_max: int, *, wait: bool = True) -> None:
        self.count = 0
        self.bytes = 0
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._wait = wait
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    def try_take(self, size: int) -> bool:
        """Reserve room for one message of `size` bytes if there is enough and no one waits for it already."""
        if self._waiting or not self._fits(size):
            return False
        self.count += 1
        self.bytes += size
        return True

    async def take(self, size: int, timeout: float) -> None:
        """Like `try_take`, but wait. Raises TooManyRequests."""
        if self.try_take(size):
            return
        if not self._wait:
            raise full(self.count, self.bytes, 0.0)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, turn))
        try:
            async with asyncio.timeout(timeout):
                await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled():
                self.give_back(size)  # room was assigned to us at the moment we gave up
            else:
                turn.cancel()
                self._hand_out()  # smaller ones behind us may fit
            if isinstance(error, TimeoutError):
                raise full(self.count, self.bytes, timeout) from None
            raise

    def give_back(self, size: int) -> None:
        self.count -= 1
        self.bytes -= size
        if self._waiting:
            self._hand_out()

    def _fits(self, size: int) -> bool:
        return self.count < self._count_max and (self.bytes + size <= self._bytes_max or not self.count)

    def _hand_out(self) -> None:
        while self._waiting:
            size, turn = self._waiting[0]
            if not turn.cancelled():
                if not self._fits(size):
                    return
                self.count += 1
                self.bytes += size
                turn.set_result(None)
            self._waiting.popleft()


class Allowance:
    """Like `Pressure`, for threads: limits sends that return before their message is sent."""

    def __init__(self, count_max: int, bytes_max: int, *, wait: bool = True) -> None:
        self._count = count_max
        self._size = self._size_max = bytes_max
        self._wait = wait
        self._changed = threading.Condition()

    def take(self, size: int, timeout: float | None = None) -> int:
        """Wait for room, reserve it, and return the size to give back. Raises TooManyRequests."""
        size = min(size, self._size_max)  # a message larger than the limit may be sent alone
        with self._changed:
            limit = timeout if self._wait else 0.0
            if not self._changed.wait_for(lambda: self._count > 0 and self._size >= size, limit):
                raise TooManyRequests(f"the limit of sends in flight is reached{_within(limit or 0.0)}: {_ADVICE}")
            self._count -= 1
            self._size -= size
        return size

    def give_back(self, size: int) -> None:
        with self._changed:
            self._count += 1
            self._size += size
            self._changed.notify_all()


_ADVICE = "send slower, or raise inflight_max or inflight_bytes_max"


def full(count: int, size: int, waited: float) -> TooManyRequests:
    return TooManyRequests(
        f"{count} sends with {size} bytes are in flight{_within(waited)}; this message was not sent: {_ADVICE}"
    )


def _within(waited: float) -> str:
    return f", and none was answered within {waited:g} s" if waited else ""
