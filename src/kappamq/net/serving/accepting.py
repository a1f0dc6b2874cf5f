"""Accepts connections, plain and TLS on the same port, and refuses them cleanly if there are no file descriptors left."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import ssl
from collections.abc import Callable
from functools import partial
from typing import Protocol

from kappamq.config.net import NetConfig
from kappamq.errors import ProtocolError
from kappamq.net.serving.half_open import Ends, HalfOpen
from kappamq.net.serving.limits import ConnectionLimits
from kappamq.net.serving.opening import OPENING_BYTES_MAX, Address, Kind, Opening, recognise
from kappamq.net.serving.strangers import Strangers, not_served

log = logging.getLogger(__name__)

_SNIFFING_MAX = 4096  # limit of connections whose protocol is not known yet; beyond it some are closed
_HANDSHAKE_S = 10.0  # for a peer that has begun a handshake
_OUT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)
_QUIET_S = 60.0  # the same problem is logged at most this often


class Factory(Protocol):
    def __call__(self, source: Address | None = None, *, header_seen: bool = False) -> asyncio.Protocol: ...


class Acceptor:
    """Turns sockets accepted by a listening socket into connections; one task, from `run` until it is cancelled."""

    def __init__(
        self,
        listener: socket.socket,
        factory: Factory,
        config: NetConfig,
        context: ssl.SSLContext | None,
        strangers: Strangers,
        half_open: HalfOpen | None = None,
        refuse: Callable[[object, str], None] = lambda who, reason: None,
    ) -> None:
        """`half_open`: shared by the acceptors of one server. `refuse` is called with the peer and the reason."""
        self._listener = listener
        self._factory = factory
        self._config = config
        self._context = context
        self._strangers = strangers
        self._half_open = HalfOpen(ConnectionLimits(config)) if half_open is None else half_open
        self._refuse = refuse
        self._adopting: set[asyncio.Task[None]] = set()
        self._silent: set[asyncio.Task[None]] = set()  # of those, the ones that have sent nothing yet
        # A reserve descriptor, closed for a moment when there is no other left, to accept a connection and close it.
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
                ends = _ends(accepted) if self._context is not None else None
                if not self._has_room(ends):
                    accepted.close()
                    continue
                task = asyncio.create_task(self._adopt(accepted, ends))
                self._adopting.add(task)
                task.add_done_callback(partial(self._done, accepted=accepted, ends=ends))
                if ends is not None:
                    self._silent.add(task)
                    self._half_open.begin(ends, partial(self._let_go, task))
        finally:
            for task in self._adopting:
                task.cancel()
            if self._spare >= 0:
                os.close(self._spare)

    def _has_room(self, ends: Ends | None) -> bool:
        if self._context is None:
            return len(self._adopting) < _SNIFFING_MAX  # they do not wait for the peer
        if ends is None:
            return False  # the peer has disconnected
        reason = self._half_open.make_room(ends[0][0], _SNIFFING_MAX)
        if reason is not None:
            self._refuse(ends[0][0], reason)
        return reason is None

    def _done(self, task: asyncio.Task[None], accepted: socket.socket, ends: Ends | None) -> None:
        self._adopting.discard(task)
        self._silent.discard(task)
        if ends is not None:
            self._half_open.end(ends)
        if task.cancelled():
            accepted.close()  # the task may have been cancelled before it could do so

    def _let_go(self, task: asyncio.Task[None]) -> None:
        """Close a connection to make room for others."""
        self._silent.discard(task)
        self._adopting.discard(task)
        task.cancel()

    async def _without(self, error: OSError) -> socket.socket | None:
        """Handle a failed accept. Without a descriptor peers would wait in the backlog: better to close them at once.

        Returns a socket if one could be accepted after all."""
        if error.errno not in _OUT_OF_DESCRIPTORS:
            log.info("a peer disconnected before its connection was accepted: %s", error)
            await asyncio.sleep(0)
            return None
        now = asyncio.get_running_loop().time()
        if self._complained is None or now - self._complained > _QUIET_S:
            self._complained = now
            log.error("refusing new connections: %s. Raise the limit of open files (ulimit -n)", error.strerror)
        # Without a descriptor, accept fails at once even when no connection is waiting: retrying in a loop would never yield.
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
                await asyncio.sleep(0.1)  # another thread took the descriptor; there will be one again

    async def _adopt(self, accepted: socket.socket, ends: Ends | None) -> None:
        loop, config, context = asyncio.get_running_loop(), self._config, self._context
        task = asyncio.current_task()
        assert task is not None
        source: Address | None = None
        try:
            if context is not None and ends is not None:
                # A PROXY header precedes TLS. Without TLS the connection itself examines what it reads.
                opening, source = await self._look(accepted, task, ends)
                reason = not_served(opening, tls_offered=True)
                if reason is None and opening.kind is not Kind.TLS:
                    context = None
                    if config.tls_mode == "enforcing" and opening.kind is not Kind.MORE:
                        reason = (
                            "it does not use TLS, which this port requires (tls.server.mode=enforcing): "
                            "enable TLS in the client"
                        )
                if reason is not None:
                    self._strangers.tell(_ip(accepted), opening.kind.value, reason)
                if reason is not None or opening.kind is Kind.MORE:
                    accepted.close()
                    return
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await loop.connect_accepted_socket(
                lambda: self._factory(source, header_seen=self._context is not None),
                accepted,
                ssl=context,
                ssl_handshake_timeout=self._begun_s if context is not None else None,
            )
        except ProtocolError as error:
            self._strangers.tell(_ip(accepted), "PROXY", str(error))
            accepted.close()
        except ssl.SSLError as error:
            self._strangers.tell(_ip(accepted), "handshake", f"TLS handshake failed: {error.reason or error}")
            accepted.close()
        except (OSError, TimeoutError) as error:
            log.info("%s did not complete its handshake: %s", _ip(accepted), str(error) or type(error).__name__)
            accepted.close()

    async def _look(
        self, accepted: socket.socket, task: asyncio.Task[None], ends: Ends
    ) -> tuple[Opening, Address | None]:
        """Return what the connection opens with, and the source address in a PROXY header. Only that header is taken off the
        socket. MORE: the peer disconnected before it was clear. Raises ProtocolError for a bad header, TimeoutError."""
        source: Address | None = None
        header_seen = False
        while True:
            try:
                await asyncio.wait_for(_at_least(accepted, 1), self._config.first_frame_s)
            finally:
                self._silent.discard(task)
                self._half_open.spoke(ends)
            _heed_cancel(task)
            opening = await asyncio.wait_for(_peek(accepted), self._begun_s)
            _heed_cancel(task)
            if opening.kind is not Kind.PROXY:
                return opening, source
            if header_seen:
                raise ProtocolError("a second PROXY header")
            header_seen, source = True, opening.source
            accepted.recv(opening.size)  # all of it has arrived

    @property
    def _begun_s(self) -> float:
        return min(self._config.first_frame_s, _HANDSHAKE_S)


async def _peek(accepted: socket.socket) -> Opening:
    """Wait until the first bytes show the protocol; they stay in the socket."""
    need = 1
    while True:
        data = await _at_least(accepted, need)
        opening = recognise(data)
        if opening.kind is not Kind.MORE or len(data) < need:
            return opening
        need = opening.size


async def _at_least(accepted: socket.socket, need: int) -> bytes:
    """Return the bytes in the socket once there are `need` of them; fewer if the peer has disconnected."""
    loop = asyncio.get_running_loop()
    # Set the low-water mark, or bytes that were peeked at already would wake us again and again.
    accepted.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, need)
    try:
        while True:
            readable: asyncio.Future[None] = loop.create_future()
            loop.add_reader(accepted.fileno(), _settle, readable)
            try:
                await readable
                return accepted.recv(OPENING_BYTES_MAX, socket.MSG_PEEK)
            except BlockingIOError:
                pass  # a spurious wake-up
            finally:
                loop.remove_reader(accepted.fileno())
    finally:
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)


def _heed_cancel(task: asyncio.Task[None]) -> None:
    """`wait_for` swallows a cancellation if its awaitable completes in the same turn."""
    if task.cancelling():
        raise asyncio.CancelledError


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _ends(accepted: socket.socket) -> Ends | None:
    """Return None if the peer has disconnected."""
    try:
        peer, local = accepted.getpeername(), accepted.getsockname()
    except OSError:
        return None
    return (str(peer[0]), int(peer[1])), (str(local[0]), int(local[1]))


def _ip(accepted: socket.socket) -> str:
    try:
        return str(accepted.getpeername()[0])
    except OSError:
        return "a disconnected peer"
