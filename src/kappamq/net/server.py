"""A listening server: accepts connections, keeps their limits, and hands their bytes to a receiver."""

from __future__ import annotations

import asyncio
import errno
import inspect
import logging
import socket
from collections.abc import Awaitable
from typing import Protocol

from kappamq.clock import Clock
from kappamq.config.net import NetConfig
from kappamq.errors import ConfigError, KappaError, ProtocolError
from kappamq.net.accepting import Acceptor
from kappamq.net.connection import Connection, Receiver
from kappamq.net.limits import ConnectionLimits, overdue
from kappamq.net.tls import server_context
from kappamq.protocol.codes import ResponseCode
from kappamq.protocol.frame import Frame, decode, reply

log = logging.getLogger(__name__)

_ROUND_S = 1.0
_PARTS = 10  # of a round: thousands of connections are not looked at in one go
_QUIET_S = 60.0  # refusals are told once in this time


class Server:
    """Listens on one or more ports for one receiver."""

    def __init__(self, receiver: Receiver, config: NetConfig, clock: Clock) -> None:
        self.receiver = receiver
        self.config = config
        self.frame_bytes_max = config.frame_bytes_max
        self.write_pause_bytes = config.write_pause_bytes
        self.owed_bytes_max = config.connection_inflight_bytes_max
        self._clock = clock
        self.now = clock.liveness()  # of the last look at the clock: good enough for idle times, and free to read
        self._limits = ConnectionLimits(config)
        self._connections: set[Connection] = set()
        self._listeners: list[asyncio.Task[None]] = []
        self._sockets: list[socket.socket] = []
        self._rounds: asyncio.TimerHandle | None = None
        self._part = 0
        self._looking_at: list[Connection] = []
        self._buffered_bytes = 0
        self._refused = 0
        self._refusal_told: float | None = None
        self._tls = server_context(config)

    async def start(self, host: str, port: int) -> int:
        """Listen on (host, port), port 0 for any free one; returns the port. May be called again for another port."""
        listener = bind(host, port, self.config.listen_backlog)
        self._sockets.append(listener)
        acceptor = Acceptor(listener, lambda: Connection(self), self.config, self._tls)
        self._listeners.append(asyncio.create_task(acceptor.run()))
        if self._rounds is None:
            self._round()
        return int(listener.getsockname()[1])

    def _round(self) -> None:
        """Everybody is looked at once a second: who has kept us waiting for too long is let go."""
        self.now = self._clock.liveness()
        if self._part == 0:
            self._looking_at = list(self._connections)
        for connection in self._looking_at[self._part :: _PARTS]:
            reason = self._overdue(connection)
            if reason is not None:
                connection.abort(reason)
        self._part = (self._part + 1) % _PARTS
        self._rounds = asyncio.get_running_loop().call_later(_ROUND_S / _PARTS, self._round)

    def _overdue(self, connection: Connection) -> str | None:
        config, now = self.config, self.now
        unsent = connection.unsent_bytes
        if unsent > config.write_pending_bytes_max:
            return f"reads too slowly: {unsent} bytes wait for it (write_pending_bytes_max)"
        stalled = connection.write_stalled_since
        if stalled is not None:
            if unsent < connection.unsent_seen:
                connection.write_stalled_since = now
            elif now - stalled > config.write_stall_s:
                return f"took none of the {unsent} bytes we have for it within {config.write_stall_s:g} s"
            connection.unsent_seen = unsent
        if connection.is_held or stalled is not None:
            return None  # we are not reading: what it has sent meanwhile cannot be seen
        return overdue(
            config, now, opened=connection.opened, last_read=connection.last_read, last_write=connection.last_write,
            partial_since=connection.partial_since, spoken=connection.spoken,
        )  # fmt: skip

    def admit(self, connection: Connection) -> bool:
        reason = self._limits.admit(connection.peer[0])
        if reason is None:
            self._connections.add(connection)
            return True
        self._refused += 1
        if self._refusal_told is None or self.now - self._refusal_told > _QUIET_S:
            log.warning("refusing %s: %s; %d refused so far", connection, reason, self._refused)
            self._refusal_told = self.now
        return False

    def leave(self, connection: Connection) -> None:
        self._connections.discard(connection)
        self._limits.leave(connection.peer[0])

    def buffered(self, connection: Connection, more: int) -> bool:
        self._buffered_bytes += more
        return more <= 0 or self._buffered_bytes <= self.config.inflight_bytes_max

    @property
    def connections(self) -> set[Connection]:
        return self._connections

    async def stop_listening(self) -> None:
        for listener in self._listeners:
            listener.cancel()
        await asyncio.gather(*self._listeners, return_exceptions=True)
        for sock in self._sockets:
            sock.close()
        self._listeners.clear()
        self._sockets.clear()

    async def stop(self) -> None:
        if self._rounds is not None:
            self._rounds.cancel()
            self._rounds = None
        await self.stop_listening()
        for connection in list(self._connections):
            connection.close()
        for _ in range(20):  # what was sent gets a moment to leave; then it is cut
            if not self._connections:
                return
            await asyncio.sleep(0.01)
        for connection in list(self._connections):
            connection.abort()


def bind(host: str, port: int, backlog: int) -> socket.socket:
    """A listening socket, or ConfigError that says what to do."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol named, accepted sockets say that they are TCP, and asyncio switches Nagle off for them.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setblocking(False)
        listener.bind((host, port))
        listener.listen(backlog)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(f"port {port} is taken: stop who uses it, or choose another port") from error
        raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
    return listener


class FrameService(Protocol):
    """A server that looks at one frame at a time (the name server)."""

    def handle(self, connection: Connection, frame: Frame) -> Frame | Awaitable[Frame | None] | None: ...

    def connection_lost(self, connection: Connection) -> None: ...


class FrameReceiver:
    """Splits bytes into frames for a FrameService and sends its answers. Errors become response codes."""

    def __init__(self, service: FrameService, config: NetConfig) -> None:
        self._service = service
        self._config = config
        self._tasks: set[asyncio.Task[None]] = set()

    def received(self, connection: Connection, data: bytes | bytearray) -> int:
        position = 0
        while len(data) - position >= 4:
            total = int.from_bytes(data[position : position + 4], "big", signed=True)
            if not 4 <= total <= self._config.frame_bytes_max:
                connection.abort(f"a frame of {total} bytes (the limit is {self._config.frame_bytes_max})")
                return len(data)
            header_bytes = int.from_bytes(data[position + 5 : position + 8], "big")
            if header_bytes > self._config.header_bytes_max and len(data) - position >= 8:
                connection.abort(f"a header of {header_bytes} bytes (the limit is {self._config.header_bytes_max})")
                return len(data)
            end = position + 4 + total
            if end > len(data):
                break
            try:
                frame = decode(bytes(data[position:end]))
            except ProtocolError as error:
                connection.abort(f"not a frame: {error}")
                return len(data)
            position = end
            if frame.is_response:
                connection.answered(frame)
            else:
                self._answer(connection, frame)
        return position

    def _answer(self, connection: Connection, frame: Frame) -> None:
        try:
            answer = self._service.handle(connection, frame)
        except Exception as error:
            answer = failure(frame, error)
        if inspect.isawaitable(answer):
            task = asyncio.ensure_future(self._later(connection, frame, answer))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        elif answer is not None and not frame.is_oneway:
            connection.send(answer.encode())

    async def _later(self, connection: Connection, frame: Frame, answer: Awaitable[Frame | None]) -> None:
        try:
            result = await answer
        except Exception as error:
            result = failure(frame, error)
        if result is not None and not frame.is_oneway:
            connection.send(result.encode())

    def lost(self, connection: Connection) -> None:
        self._service.connection_lost(connection)


class FrameServer(Server):
    def __init__(self, service: FrameService, config: NetConfig, clock: Clock) -> None:
        super().__init__(FrameReceiver(service, config), config, clock)


def failure(request: Frame, error: Exception) -> Frame:
    """The answer to a request that raised: its code and text if it is one of ours, else SYSTEM_ERROR and a line in the log."""
    if isinstance(error, ProtocolError):
        return reply(request, ResponseCode.SYSTEM_ERROR, str(error))
    if isinstance(error, KappaError) and error.code is not None:
        return reply(request, error.code, str(error))
    log.exception("request %d failed", request.code, exc_info=error)
    return reply(request, ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}")
