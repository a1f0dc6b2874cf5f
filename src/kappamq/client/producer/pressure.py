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
        self._waking = 0  # these have their room, but have not run yet: no other may overtake them

    def try_take(self, size: int) -> bool:
        """Reserve room for one message of `size` bytes if there is enough and no one waits for it already."""
        count, held = self.count, self.bytes + size
        if self._waiting or self._waking or count >= self._count_max or (held > self._bytes_max and count):
            return False
        self.count = count + 1
        self.bytes = held
        return True

    @property
    def is_full(self) -> bool:
        """Whether the next message may have to wait."""
        return bool(self._waiting) or bool(self._waking) or not self._fits(0) or self.bytes >= self._bytes_max

    def full(self) -> TooManyRequests:
        """The error of a send that must not wait."""
        return full(self.count, self.bytes, 0.0)

    async def take(self, size: int, timeout: float | None, *, patient: bool = False) -> None:
        """Like `try_take`, but wait. Raises TooManyRequests. `patient`: wait even if senders do not."""
        if self.try_take(size):
            return
        if not self._wait and not patient:
            raise full(self.count, self.bytes, 0.0)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, turn))
        self._hand_out()  # there may be room, if some are only waking
        try:
            async with asyncio.timeout(timeout):
                await turn
            self._waking -= 1
        except BaseException as error:
            if turn.done() and not turn.cancelled():
                self._waking -= 1
                self.give_back(size)  # room was assigned to us at the moment we gave up
            else:
                turn.cancel()
                self._hand_out()  # smaller ones behind us may fit
            if isinstance(error, TimeoutError):
                raise full(self.count, self.bytes, timeout or 0.0) from None
            raise

    def give_back(self, size: int, count: int = 1) -> None:
        """Return what `count` messages of `size` bytes together had taken."""
        self.count -= count
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
                self._waking += 1
                turn.set_result(None)
            self._waiting.popleft()


class Allowance:
    """Like `Pressure`, for threads: limits sends that return before their message is sent."""

    def __init__(self, count_max: int, bytes_max: int, *, wait: bool = True) -> None:
        self._count = count_max
        self._size = self._size_max = bytes_max
        self._wait = wait
        self._asking = 0  # how many threads wait for room
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)

    def try_take(self, size: int) -> bool:
        """Reserve room for one message of `size` bytes, if there is enough."""
        with self._lock:
            if self._count <= 0 or self._size < size:
                return False
            self._count -= 1
            self._size -= size
            return True

    def take(self, size: int, timeout: float | None = None) -> int:
        """Wait for room, reserve it, and return the size to give back. Raises TooManyRequests."""
        size = min(size, self._size_max)  # a message larger than the limit may be sent alone
        with self._changed:
            if self._count <= 0 or self._size < size:
                self._wait_for_room(size, timeout if self._wait else 0.0)
            self._count -= 1
            self._size -= size
        return size

    def give_back(self, size: int, count: int = 1) -> None:
        """Return what `count` messages of `size` bytes together had taken."""
        with self._lock:
            self._count += count
            self._size += size
            if self._asking:
                self._changed.notify_all()

    def _wait_for_room(self, size: int, limit: float | None) -> None:
        self._asking += 1
        try:
            if not self._changed.wait_for(lambda: self._count > 0 and self._size >= size, limit):
                raise TooManyRequests(f"the limit of sends in flight is reached{_within(limit or 0.0)}: {_ADVICE}")
        finally:
            self._asking -= 1


_ADVICE = "send slower, or raise inflight_max or inflight_bytes_max"


def full(count: int, size: int, waited: float) -> TooManyRequests:
    return TooManyRequests(
        f"{count} sends with {size} bytes are in flight{_within(waited)}; this message was not sent: {_ADVICE}"
    )


def _within(waited: float) -> str:
    return f", and none was answered within {waited:g} s" if waited else ""
