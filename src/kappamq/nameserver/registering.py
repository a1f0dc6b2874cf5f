"""Registrations of many topics, without delaying other requests.

A broker with 20,000 topics registers every 30 seconds with megabytes of JSON. A worker thread decodes them and validates the
names; new topics are added in slices. Later requests on the same connection wait for it, so that a broker that unregisters
meanwhile is not registered afterwards.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final, Generic

from kappamq.config.net import NetConfig
from kappamq.errors import BrokerError
from kappamq.nameserver.liveness import Owner
from kappamq.nameserver.routes import Registered, RouteTable, check_contents
from kappamq.net.requests.sizes import VALUE_BYTES, check_values
from kappamq.protocol.bodies.all import RegisterBrokerBody
from kappamq.protocol.frame import Frame
from kappamq.protocol.headers.nameserver import RegisterBroker

BIG_BYTES: Final = 4 << 10
"""Registrations of this size or more are decoded in a thread."""
_CRC_MASK: Final = 0x7FFFFFFF
TOPICS_AT_ONCE: Final = 200

Answer = Frame | None | Awaitable[Frame | None]


@dataclass(slots=True)
class _Line:
    """The order of requests on one connection."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    waiting: int = 0
    lost: bool = False


class Registering(Generic[Owner]):
    def __init__(
        self, routes: RouteTable[Owner], now: Callable[[], float], beside: Callable[..., Awaitable[Any]], net: NetConfig
    ) -> None:
        self._routes = routes
        self._now = now
        self._beside = beside  # runs a function in a thread: connection, function, arguments, size=bytes
        self._net = net
        self._lines: dict[Owner, _Line] = {}

    def is_busy(self, owner: Owner) -> bool:
        return owner in self._lines

    def lost(self, owner: Owner) -> None:
        line = self._lines.get(owner)
        if line is not None:
            line.lost = True

    def in_turn(self, owner: Owner, work: Callable[[], Answer]) -> Awaitable[Frame | None]:
        """Run `work` after all earlier requests on the connection; skip it if the connection is lost.

        The place in the order is taken now, not when the result is first awaited."""
        line = self._lines.setdefault(owner, _Line())
        line.waiting += 1
        task = asyncio.ensure_future(self._when_it_is_time(line, work))

        def done(task: asyncio.Future[Frame | None]) -> None:  # also if it was cancelled before it started
            line.waiting -= 1
            if not line.waiting:
                del self._lines[owner]

        task.add_done_callback(done)
        return task

    async def _when_it_is_time(self, line: _Line, work: Callable[[], Answer]) -> Frame | None:
        async with line.lock:
            if line.lost:
                return None
            answer = work()
            return await answer if isinstance(answer, Awaitable) else answer

    async def register(self, owner: Owner, frame: Frame, header: RegisterBroker) -> Registered | None:
        """Within `in_turn`: return the result of `RouteTable.register`; None if the connection was lost meanwhile."""
        body: RegisterBrokerBody = await self._beside(owner, _decoded, frame, header, self._net, size=len(frame.body))
        if self._lines[owner].lost:
            return None
        found = self._routes.register(header, body, owner, self._now(), in_parts=True)
        for start in range(0, len(found.topics), TOPICS_AT_ONCE):
            if start:
                await asyncio.sleep(0)
            if not self._routes.enter_topics(header, body, found.topics[start : start + TOPICS_AT_ONCE], owner):
                return None
        # Free a large table in the thread that built it: freeing takes as long as building it.
        await self._beside(owner, body.topics.topics.clear)
        return found


def check_crc(frame: Frame, header: RegisterBroker) -> None:
    """Raise BrokerError if the CRC of the body does not match."""
    if header.body_crc and zlib.crc32(frame.body) & _CRC_MASK != header.body_crc:
        raise BrokerError("crc32 not match: the body of the registration is not what was sent")


def _decoded(frame: Frame, header: RegisterBroker, net: NetConfig) -> RegisterBrokerBody:
    check_crc(frame, header)
    if not header.compressed:
        check_values(frame.body, net.registration_bytes_max // VALUE_BYTES)
    body = RegisterBrokerBody.decode_any(
        frame.body, compressed=header.compressed, version=frame.version, loose_bytes_max=net.loose_json_bytes_max
    )
    check_contents(header, body.topics.topics)
    return body
