"""Requests with deferred answers, for all servers. Their number is limited, per address and in total."""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from collections.abc import Awaitable
from typing import Final

from kappamq.config.net import NetConfig
from kappamq.errors import Busy, NotConnected
from kappamq.net.requests.charged import Charged
from kappamq.net.requests.failures import failure
from kappamq.net.serving.connection import BUSY, Connection
from kappamq.net.serving.limits import ADDRESS_SHARE
from kappamq.protocol.frame import Frame

REQUESTS_MAX: Final = 10_000


class Unfinished:
    """For one server."""

    def __init__(self, config: NetConfig) -> None:
        self._bytes_max = config.inflight_bytes_max
        self._tasks: set[asyncio.Future[None]] = set()
        self._bytes = 0
        self._address_requests: Counter[str] = Counter()
        self._address_bytes: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._tasks)

    def add(
        self,
        connection: Connection,
        frame: Frame,
        answer: Awaitable[Frame | None],
        size: int,
        *,
        in_order: bool,
        answer_bytes: int = 0,
    ) -> None:
        """Answer when the awaitable is done; with `in_order`, later requests of the connection wait for that.

        `size`: the bytes of the request. If the limit is reached, the answer is Busy, and nothing is done. `answer_bytes`: the
        largest possible answer. It is charged to the connection, too: further requests of it wait until the answer was sent."""
        address = connection.counted_as
        full = self._full(address, size)
        if full:
            _give_up(answer)
            send_answer(connection, frame, failure(frame, Busy(f"{full}: try again later")))
            return
        self._count(address, 1, size)
        connection.owe(size + answer_bytes)
        if in_order:
            connection.pause(BUSY)
        task = asyncio.ensure_future(_answer_later(connection, frame, answer))
        self._tasks.add(task)

        def done(task: asyncio.Future[None]) -> None:
            self._tasks.discard(task)
            self._count(address, -1, -size)
            connection.settle(size + answer_bytes)
            if in_order:
                connection.resume(BUSY)

        task.add_done_callback(done)

    def _full(self, address: str, size: int) -> str:
        """Return why a request must be refused, empty if it may be accepted."""
        for requests, taken, share, whose in (
            (len(self._tasks), self._bytes, 1, ""),
            (self._address_requests[address], self._address_bytes[address], ADDRESS_SHARE, f" from {address}"),
        ):
            if requests >= REQUESTS_MAX // share or (requests and taken + size > self._bytes_max // share):
                return f"{requests} requests{whose} with {taken} bytes are being processed"
        return ""

    def _count(self, address: str, requests: int, size: int) -> None:
        self._bytes += size
        for counter, more in ((self._address_requests, requests), (self._address_bytes, size)):
            counter[address] += more
            if not counter[address]:
                del counter[address]


def send_answer(connection: Connection, request: Frame, response: Frame) -> None:
    """Send a response now; a one-way request gets none."""
    if not request.is_oneway:
        connection.send(response.encode())


async def _answer_later(connection: Connection, frame: Frame, answer: Awaitable[Frame | None]) -> None:
    try:
        result = await answer
    except NotConnected as error:
        if not connection.is_open:
            return  # the peer has disconnected, and the work was dropped
        result = failure(frame, error)
    except Exception as error:
        result = failure(frame, error)
    if result is not None:
        send_answer(connection, frame, result)


def _give_up(answer: Awaitable[Frame | None]) -> None:
    if inspect.iscoroutine(answer) or isinstance(answer, Charged):
        answer.close()
    elif isinstance(answer, asyncio.Task):
        answer.cancel()
