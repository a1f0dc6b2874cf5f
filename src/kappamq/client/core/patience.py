"""The one policy of waiting and retrying for all requests to the master of a broker group.

A group loses its master for a second or two when the master dies, is restarted or hands over. Requests that only a master serves
therefore wait within their own deadline:

- A node that is not the master names the master (code 14): go there at once.
- The connection fails, there is no master, or the node lost its role meanwhile: fetch the route again; if another node is
  the master now, go there at once, else pause and try again. Pauses grow, and differ between clients, so that thousands of them do
  not come back together.

Any other error is not about the master, and left to the caller.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Final

from kappamq.client.core.routes import MASTER_ID, Routes
from kappamq.errors import KappaError, MaybeStored, NoMaster, NoRoute, NotConnected, NotMaster
from kappamq.protocol.address import is_loopback

PAUSE_S: Final = 0.02
"""The first pause; each further one is twice as long."""
PAUSE_MAX_S: Final = 0.25
FOLLOWS_MAX: Final = 3
"""This many nodes in a row may name another one as the master before a pause: two may name each other for a moment."""
LEAST_S: Final = 0.02
"""With less time left there is no further attempt: it could only fail, and its error would hide the real cause."""
REFRESH_S: Final = 0.5
"""How long to wait for a fresh route before the old one is used."""


def is_about_master(error: KappaError) -> bool:
    """Whether the error may disappear as soon as the group has a reachable master."""
    return isinstance(error, (NoMaster, NotMaster, MaybeStored, NotConnected))


class Patience:
    """For one request, over all its attempts. `deadline`: liveness time; None: never pause, only go to the present master."""

    def __init__(self, routes: Routes, topic: str, now: Callable[[], float], deadline: float | None) -> None:
        self._routes = routes
        self._topic = topic
        self._now = now
        self._deadline = deadline
        self._had_route = routes.had_route(topic)
        self._pause = PAUSE_S
        self._follows = 0

    async def after(self, error: KappaError, broker: str | None = None, asked: str | None = None) -> bool:
        """Prepare another attempt after `error`; False if that is pointless, or there is no time left.

        `broker` and `asked`: the group, and the address in it that failed."""
        vanished = isinstance(error, NoRoute) and self._had_route  # its only broker is being restarted
        if not vanished and not is_about_master(error):
            return False
        if isinstance(error, NotMaster) and error.leader and broker is not None and self._follows < FOLLOWS_MAX:
            self._follows += 1
            self._routes.follow(broker, seen_from(error.leader, asked))
            return True
        self._follows = 0
        if self._deadline is not None and self._now() >= self._deadline:
            return False
        await self._refresh()
        if broker is not None and self._master(broker) not in (None, asked):
            return True
        if self._deadline is None:
            return False
        left = self._deadline - self._now()
        if left <= LEAST_S:
            return False
        await asyncio.sleep(min(left, self._pause * random.uniform(0.5, 1.0)))
        self._pause = min(2 * self._pause, PAUSE_MAX_S)
        return self._deadline - self._now() > LEAST_S

    def _master(self, broker: str) -> str | None:
        route = self._routes.cached(self._topic)
        return route.addresses.get(broker, {}).get(MASTER_ID) if route is not None else None

    async def _refresh(self) -> None:
        limit = REFRESH_S if self._deadline is None else min(REFRESH_S, self._deadline - self._now())
        try:
            async with asyncio.timeout(limit):
                await self._routes.refresh(self._topic)
        except (TimeoutError, KappaError):
            pass  # keep the old route


def seen_from(leader: str, asked: str | None) -> str:
    """Return the leader's address for a client that has reached `asked`, the node that named it.

    Nodes on one machine know each other by loopback addresses, which mean something else elsewhere."""
    host, _, port = leader.rpartition(":")
    asked_host = asked.rpartition(":")[0] if asked else ""
    if not asked_host or not is_loopback(host.strip("[]")) or is_loopback(asked_host.strip("[]")):
        return leader
    return f"{asked_host}:{port}"
