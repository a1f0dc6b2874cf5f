"""Back-pressure: how many sends, and how many bytes of them, may wait for their answers at once.

`Pressure` is for the tasks of one loop, `Allowance` for threads. Both let who wants more wait its turn for a limited time,
or (`inflight_full="raise"`) say no at once. Either way the error is TooManyRequests, and nothing was sent.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque

from kappamq.errors import TooManyRequests


class Pressure:
    """First come, first served. One message that is larger than everything allowed may go alone."""

    def __init__(self, count_max: int, bytes_max: int, *, wait: bool = True) -> None:
        self.count = 0
        self.bytes = 0
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._wait = wait
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    def try_take(self, size: int) -> bool:
        """Take room for one message of `size` bytes if there is some and nobody waits for it already."""
        if self._waiting or not self._fits(size):
            return False
        self.count += 1
        self.bytes += size
        return True

    async def take(self, size: int, timeout: float) -> None:
        """The same, but wait for it. Raises TooManyRequests."""
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
                self.give_back(size)  # it was our turn in the very moment we gave up
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
    """The same for threads: for sends that return before their message is on its way."""

    def __init__(self, count_max: int, bytes_max: int, *, wait: bool = True) -> None:
        self._count = count_max
        self._size = self._size_max = bytes_max
        self._wait = wait
        self._changed = threading.Condition()

    def take(self, size: int, timeout: float | None = None) -> int:
        """Wait until there is room, take it, and return what to give back. Raises TooManyRequests."""
        size = min(size, self._size_max)  # one that is larger than everything may go alone
        with self._changed:
            limit = timeout if self._wait else 0.0
            if not self._changed.wait_for(lambda: self._count > 0 and self._size >= size, limit):
                raise TooManyRequests(f"the limit of sends on their way is reached{_within(limit or 0.0)}: {_ADVICE}")
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
        f"{count} sends with {size} bytes wait for their answers already{_within(waited)}; this one was not sent: {_ADVICE}"
    )


def _within(waited: float) -> str:
    return f", and none came within {waited:g} s" if waited else ""
