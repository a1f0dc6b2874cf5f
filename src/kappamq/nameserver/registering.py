"""Registrations of many topics, without keeping everybody else waiting.

A broker with 20,000 topics registers every 30 seconds with megabytes of JSON. A worker decodes them and checks the names;
what is new is entered some topics at a time. Requests that come on the same connection meanwhile wait for their turn, so a
broker that signs off is not entered afterwards.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, Generic

from kappamq.nameserver.liveness import Owner
from kappamq.nameserver.routes import Registered, RouteTable, check_names
from kappamq.protocol.bodies import RegisterBrokerBody
from kappamq.protocol.frame import Frame
from kappamq.protocol.headers_nameserver import RegisterBroker

BIG_BYTES: Final = 16 << 10
"""From so many bytes on a registration takes longer than a thread does."""
TOPICS_AT_ONCE: Final = 200

Answer = Frame | None | Awaitable[Frame | None]


@dataclass(slots=True)
class _Line:
    """Who waits for whom on one connection."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    waiting: int = 0
    lost: bool = False


class Registering(Generic[Owner]):
    def __init__(self, routes: RouteTable[Owner], now: Callable[[], float]) -> None:
        self._routes = routes
        self._now = now
        self._lines: dict[Owner, _Line] = {}

    def is_busy(self, owner: Owner) -> bool:
        return owner in self._lines

    def lost(self, owner: Owner) -> None:
        line = self._lines.get(owner)
        if line is not None:
            line.lost = True

    def in_turn(self, owner: Owner, work: Callable[[], Answer]) -> Awaitable[Frame | None]:
        """Do `work` when everything that came before it on the connection is done; nothing if the connection is lost.

        The place in the line is taken now, not when the result is first awaited."""
        line = self._lines.setdefault(owner, _Line())
        line.waiting += 1
        return self._when_it_is_time(owner, line, work)

    async def _when_it_is_time(self, owner: Owner, line: _Line, work: Callable[[], Answer]) -> Frame | None:
        try:
            async with line.lock:
                if line.lost:
                    return None
                answer = work()
                return await answer if isinstance(answer, Awaitable) else answer
        finally:
            line.waiting -= 1
            if not line.waiting:
                del self._lines[owner]

    async def register(self, owner: Owner, frame: Frame, header: RegisterBroker) -> Registered | None:
        """Within `in_turn`: what `RouteTable.register` says; None if the connection was lost meanwhile."""
        body = await asyncio.to_thread(_decoded, frame, header)
        if self._lines[owner].lost:
            return None
        found = self._routes.register(header, body, owner, self._now(), in_parts=True)
        for start in range(0, len(found.topics), TOPICS_AT_ONCE):
            if start:
                await asyncio.sleep(0)
            if not self._routes.enter_topics(header, body, found.topics[start : start + TOPICS_AT_ONCE], owner):
                return None
        # A big table is given back by the thread that made it: freeing it takes as long as making it.
        await asyncio.to_thread(body.topics.topics.clear)
        return found


def _decoded(frame: Frame, header: RegisterBroker) -> RegisterBrokerBody:
    body = RegisterBrokerBody.decode_any(frame.body, compressed=header.compressed, version=frame.version)
    check_names(header, body.topics.topics)
    return body
