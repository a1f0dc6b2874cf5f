"""Accepting connections: plain ones and TLS on the same port, and a clear end for those we have no descriptor for."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import ssl
from collections.abc import Callable

from kappamq.config.net import NetConfig
from kappamq.net.tls import is_handshake

log = logging.getLogger(__name__)

_SNIFFING_MAX = 4096  # connections of which we do not know yet what they speak; beyond it the longest silent ones go
_HANDSHAKE_S = 10.0  # who has begun a handshake has something to say
_OUT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)
_QUIET_S = 60.0  # the same trouble is told once in this time


class Acceptor:
    """Turns what a listening socket accepts into connections; one task, from `run` until it is cancelled."""

    def __init__(
        self,
        listener: socket.socket,
        factory: Callable[[], asyncio.Protocol],
        config: NetConfig,
        context: ssl.SSLContext | None,
    ) -> None:
        self._listener = listener
        self._factory = factory
        self._config = config
        self._context = context
        self._adopting: set[asyncio.Task[None]] = set()
        self._silent: dict[asyncio.Task[None], None] = {}  # of those, who has said nothing yet; longest first
        # Given up for a moment when there is no other descriptor left, to take a caller off the line and let it go.
        self._spare = -1
        self._complained: float | None = None

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            await self._take_spare()
            while True:
                try:
                    accepted, _address = await loop.sock_accept(self._listener)
                except OSError as error:
                    late = await self._without(error)
                    if late is None:
                        continue
                    accepted = late
                accepted.setblocking(False)
                if len(self._adopting) >= _SNIFFING_MAX and not self._let_go():
                    accepted.close()
                    continue
                task = asyncio.create_task(self._adopt(accepted))
                self._adopting.add(task)
                task.add_done_callback(lambda task, accepted=accepted: self._done(task, accepted))  # type: ignore[misc]
                if self._context is not None:
                    self._silent[task] = None
        finally:
            for task in self._adopting:
                task.cancel()
            if self._spare >= 0:
                os.close(self._spare)

    def _done(self, task: asyncio.Task[None], accepted: socket.socket) -> None:
        self._adopting.discard(task)
        self._silent.pop(task, None)
        if task.cancelled():
            accepted.close()  # it may have been cancelled before it could do that itself

    def _let_go(self) -> bool:
        """Make room by closing who has been silent for longest; False if everybody has begun to speak."""
        for task in self._silent:
            del self._silent[task]
            self._adopting.discard(task)
            task.cancel()
            return True
        return False

    async def _without(self, error: OSError) -> socket.socket | None:
        """Nothing could be accepted. Who waits would wait until there is a descriptor again: better to be told at once.

        Returns who could be accepted after all."""
        if error.errno not in _OUT_OF_DESCRIPTORS:
            log.info("a connection was gone before it could be accepted: %s", error)
            await asyncio.sleep(0)
            return None
        now = asyncio.get_running_loop().time()
        if self._complained is None or now - self._complained > _QUIET_S:
            self._complained = now
            log.error("new connections are turned away: %s. Raise the limit of open files (ulimit -n)", error.strerror)
        # Without a descriptor, accept fails at once even when nobody calls: asked again and again, it would never let us go.
        await self._somebody_calls()
        try:
            return self._listener.accept()[0]
        except OSError as still:
            if still.errno not in _OUT_OF_DESCRIPTORS:
                return None
        os.close(self._spare)
        self._spare = -1
        try:
            self._listener.accept()[0].close()
        except OSError:
            pass
        await self._take_spare()
        return None

    async def _somebody_calls(self) -> None:
        loop = asyncio.get_running_loop()
        called = asyncio.Event()
        loop.add_reader(self._listener, called.set)
        try:
            await called.wait()
        finally:
            loop.remove_reader(self._listener)

    async def _take_spare(self) -> None:
        while self._spare < 0:
            try:
                self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                await asyncio.sleep(0.1)  # somebody else was quicker: there will be one again

    async def _adopt(self, accepted: socket.socket) -> None:
        loop, config = asyncio.get_running_loop(), self._config
        context = self._context
        task = asyncio.current_task()
        assert task is not None
        try:
            if context is not None:
                try:
                    encrypted = await asyncio.wait_for(is_handshake(accepted), config.first_frame_s)
                finally:
                    self._silent.pop(task, None)
                if encrypted is None or (config.tls_mode == "enforcing" and not encrypted):
                    accepted.close()
                    return
                if not encrypted:
                    context = None
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await loop.connect_accepted_socket(
                self._factory,
                accepted,
                ssl=context,
                ssl_handshake_timeout=min(config.first_frame_s, _HANDSHAKE_S) if context is not None else None,
            )
        except (OSError, ssl.SSLError, TimeoutError) as error:
            log.info("a connection did not get through its handshake: %s", str(error) or type(error).__name__)
            accepted.close()
