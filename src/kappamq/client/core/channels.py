"""One open channel per address, opened on first use and reopened after it was lost."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable

from kappamq.errors import ClientClosed, NotConnected, NotUnderstood, RequestTimeout
from kappamq.net.channel import Channel, OnRequest
from kappamq.protocol.frame import Frame
from kappamq.protocol.headers.header import Header

OnOpen = Callable[[Channel], Awaitable[None]]


class Channels:
    """Users of the same address share one channel, and one attempt to open it.

    `on_open` runs before a new channel may be used: a broker forgets a client together with its connection, so a consumer
    has to register again.
    """

    def __init__(
        self,
        *,
        connect_timeout: float,
        pending_max: int,
        tls: ssl.SSLContext | None = None,
        on_request: OnRequest | None = None,
        on_open: OnOpen | None = None,
        on_lost: Callable[[str], None] | None = None,
        role: str = "",
    ) -> None:
        """`on_lost`: told the address when a connection ends that we did not close. `role`: what the peers are, for error messages."""
        self._connect_timeout = connect_timeout
        self._pending_max = pending_max
        self._tls = tls
        self._on_request = on_request
        self._on_open = on_open
        self._on_lost = on_lost
        self._role = role
        self._open: dict[str, Channel] = {}
        self._opening: dict[str, asyncio.Task[Channel]] = {}
        self._numbers: dict[str, int] = {}  # of the open channels; counts over all addresses
        self._opened_count = 0
        self._closed = False

    @property
    def open(self) -> list[Channel]:
        return list(self._open.values())

    @property
    def unanswered(self) -> int:
        """How many requests and connection attempts are pending, without long polls."""
        return sum(channel.unanswered for channel in self.open) + len(self._opening)

    def number(self, address: str) -> int | None:
        """Return the number of the open connection to `address`, None if there is none. Numbers are never reused."""
        channel = self._open.get(address)
        return self._numbers[address] if channel is not None and channel.is_open else None

    def ready(self, address: str) -> Channel | None:
        """Return the open channel to `address` if a request can leave on it at once, without I/O."""
        channel = self._open.get(address)
        return channel if channel is not None and channel.has_room else None

    async def get(self, address: str, timeout: float | None = None) -> Channel:
        """Return the open channel to `address`, connecting if necessary. Raises NotConnected, whose text says why."""
        channel = self._open.get(address)
        if channel is not None and channel.is_open:
            return channel
        if self._closed:
            raise ClientClosed("this client is closed: create a new one")
        task = self._opening.get(address)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._connect(address))
            self._opening[address] = task
            task.add_done_callback(lambda done: self._opened(address, done))
        limit = self._connect_timeout if timeout is None else min(timeout, self._connect_timeout)
        try:
            async with asyncio.timeout(limit):
                return await asyncio.shield(task)
        except TimeoutError:
            raise self._silent(
                address, f"no connection to {address} within {limit:g} s: is the address right, and reachable?"
            ) from None
        except asyncio.CancelledError:
            if task.cancelled() and self._closed:
                raise ClientClosed("this client is closed: create a new one") from None
            raise

    async def request(
        self, address: str, header: Header, body: bytes, timeout: float, *, code: int | None = None, again: bool = True
    ) -> Frame:
        """Send a request; `again`: repeat it on a fresh channel if the old one is dead, so it may be executed twice."""
        deadline = asyncio.get_running_loop().time() + timeout
        used_before = address in self._open
        channel = await self.get(address, timeout)
        try:
            return await channel.request(header, body, self._left(deadline, address), code=code)
        except NotConnected:
            # A server closes idle connections, which we notice only when we write.
            if not used_before or not again:
                raise
        channel = await self.get(address, self._left(deadline, address))
        return await channel.request(header, body, self._left(deadline, address), code=code)

    def drop(self, address: str) -> None:
        """Close the channel to `address`; the next user opens a new one."""
        channel = self._open.pop(address, None)
        if channel is not None:
            channel.close()

    async def close(self) -> None:
        self._closed = True
        for task in list(self._opening.values()):
            task.cancel()
        channels = list(self._open.values())
        self._open.clear()
        for channel in channels:
            channel.close()
        for channel in channels:
            await channel.wait_closed()

    async def _connect(self, address: str) -> Channel:
        try:
            channel = await Channel.connect(
                address,
                timeout=self._connect_timeout,
                tls=self._tls,
                on_request=self._on_request,
                on_closed=self._lost,
                pending_max=self._pending_max,
            )
        except NotUnderstood:
            raise
        except NotConnected as error:
            raise self._silent(address, str(error)) from error
        if self._on_open is not None:
            try:
                await self._on_open(channel)
            except BaseException:
                channel.close()
                raise
        return channel

    def _silent(self, address: str, why: str) -> NotConnected:
        return NotConnected(f"{self._role} {address} does not answer: {why}" if self._role else why)

    def _opened(self, address: str, task: asyncio.Task[Channel]) -> None:
        del self._opening[address]
        if task.cancelled() or task.exception() is not None:
            return
        channel = task.result()
        if self._closed:
            channel.close()
        elif channel.is_open:
            self._open[address] = channel
            self._opened_count += 1
            self._numbers[address] = self._opened_count

    def _lost(self, channel: Channel) -> None:
        if self._open.get(channel.address) is channel:
            del self._open[channel.address]
            if self._on_lost is not None and not self._closed:
                self._on_lost(channel.address)

    def _left(self, deadline: float, address: str) -> float:
        left = deadline - asyncio.get_running_loop().time()
        if left <= 0:
            raise RequestTimeout(f"the request to {address} timed out before it was sent")
        return left
