"""A listening server: accepts connections, enforces their limits, and passes their bytes to a receiver."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import socket
from collections.abc import Awaitable, Mapping
from typing import Protocol

from kappamq.clock import Clock
from kappamq.config.net import NetConfig
from kappamq.errors import ConfigError
from kappamq.net.requests.failures import failure
from kappamq.net.requests.reader import Answer, RequestReader
from kappamq.net.requests.sizes import RequestLimit
from kappamq.net.requests.unfinished import Unfinished, send_answer
from kappamq.net.serving.accepting import Acceptor
from kappamq.net.serving.connection import Connection, Receiver
from kappamq.net.serving.half_open import HalfOpen
from kappamq.net.serving.limits import ConnectionLimits, HeldBytes, overdue
from kappamq.net.serving.opening import Address
from kappamq.net.serving.strangers import Strangers
from kappamq.net.tls import server_context
from kappamq.protocol.frame import Frame

log = logging.getLogger(__name__)

_ROUND_S = 1.0
_PARTS = 10  # of a round, so that thousands of connections are not checked in one go
_QUIET_S = 60.0  # refusals are logged at most this often
_SLOW_BYTES = 16 << 10  # a peer that takes less than this in a round reads slowly


class Server:
    """Listens on one or more ports for one receiver."""

    def __init__(self, receiver: Receiver, config: NetConfig, clock: Clock) -> None:
        self.receiver = receiver
        self.config = config
        self.frame_bytes_max = config.frame_bytes_max
        self.write_pause_bytes = config.write_pause_bytes
        self.owed_bytes_max = config.connection_inflight_bytes_max
        self._clock = clock
        self.now = clock.liveness()  # as of the last round: precise enough for idle times, and cheap to read
        self.strangers = Strangers()
        self._limits = ConnectionLimits(config)
        self._half_open = HalfOpen(self._limits, self._is_trusted_proxy)
        self._connections: set[Connection] = set()
        self._listeners: list[asyncio.Task[None]] = []
        self._sockets: list[socket.socket] = []
        self._rounds: asyncio.TimerHandle | None = None
        self._part = 0
        self._looking_at: list[Connection] = []
        self._buffered: HeldBytes[Connection] = HeldBytes(config.inflight_bytes_max)
        self._unsent: HeldBytes[Connection] = HeldBytes(config.unsent_bytes_max)
        self._refused = 0
        self._refusal_told: float | None = None
        self._tls = server_context(config)

    async def start(self, host: str, port: int) -> int:
        """Listen on (host, port), port 0 for any free one; returns the port. May be called again for another port."""
        return self.serve(bind(host, port, self.config.listen_backlog))

    def serve(self, listener: socket.socket) -> int:
        """Accept connections from a listening socket, which belongs to the server from now on; returns its port."""
        self._sockets.append(listener)
        acceptor = Acceptor(
            listener, self._connection, self.config, self._tls, self.strangers, self._half_open, self._refuse
        )
        self._listeners.append(asyncio.create_task(acceptor.run()))
        if self._rounds is None:
            self._round()
        return int(listener.getsockname()[1])

    def _connection(self, source: Address | None = None, *, header_seen: bool = False) -> Connection:
        return Connection(self, source, header_seen=header_seen)

    def _round(self) -> None:
        """Check every connection once a second, and close those that have timed out."""
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
        self.unsent(connection)
        stalled = connection.write_stalled_since
        if stalled is not None:
            taken = connection.unsent_seen - unsent
            if taken >= _SLOW_BYTES:
                connection.slow_since = now
            if taken > 0:
                connection.write_stalled_since = now
            elif now - stalled > config.write_stall_s:
                return f"took none of the {unsent} bytes we have for it within {config.write_stall_s:g} s"
            connection.unsent_seen = unsent
        if connection.is_held or stalled is not None:
            return None  # we are not reading, so we cannot see what it has sent
        return overdue(
            config,
            now,
            opened=connection.opened,
            last_read=connection.last_read,
            last_write=connection.last_write,
            partial_since=connection.partial_since,
            spoken=connection.spoken,
        )

    def admit(self, connection: Connection) -> bool:
        connection.counted_as = self._counted_as(connection)
        # release its place among the half-open sockets
        self._half_open.end((connection.proxy or connection.peer, connection.local))
        reason = self._limits.admit(connection.counted_as)
        if reason is None:
            self._connections.add(connection)
            return True
        self._refuse(connection, reason)
        return False

    def proxied(self, connection: Connection) -> bool:
        counted_as = self._counted_as(connection)
        if counted_as == connection.counted_as:
            return True
        reason = self._limits.move(connection.counted_as, counted_as)
        if reason is None:
            connection.counted_as = counted_as
            return True
        self._refuse(connection, reason)
        return False

    def _counted_as(self, connection: Connection) -> str:
        """Return the address whose limit a connection counts towards. Any peer can send a PROXY header: only trusted proxies count."""
        proxy = connection.proxy
        if proxy is None or self._is_trusted_proxy(proxy[0]):
            return connection.peer[0]
        return proxy[0]

    def _is_trusted_proxy(self, ip: str) -> bool:
        trusted = self.config.proxies_trusted
        return bool(trusted) and any(_plain(ip) in network for network in trusted)

    def _refuse(self, who: object, reason: str) -> None:
        self._refused += 1
        if self._refusal_told is None or self.now - self._refusal_told > _QUIET_S:
            log.warning("refusing %s: %s; %d refused so far", who, reason, self._refused)
            self._refusal_told = self.now

    def leave(self, connection: Connection) -> None:
        self._connections.discard(connection)
        self._limits.leave(connection.counted_as)
        self._unsent.keep(connection, 0)

    def buffered(self, connection: Connection, more: int) -> bool:
        held = self._buffered
        held.keep(connection, max(0, held.of(connection) + more))
        if more <= 0:
            return True
        # Bytes that we hold back ourselves are not the peer's fault.
        cut = held.too_much(connection.counted_as, lambda other: other.is_open and not other.is_paused)
        if cut is None or cut is connection:
            return cut is None
        cut.abort(
            f"too many bytes of incomplete requests are buffered: {held.of(cut)} from this connection, {held.of_address(cut.counted_as)} "
            f"from its address, {held.total} in total (inflight_bytes_max)"
        )
        held.keep(cut, 0)  # at once, not when the loop reports the loss: else the next one to grow would close another
        return True

    def unsent(self, connection: Connection) -> None:
        """Every connection is accounted for once a second, a stalled one with each byte added: so bytes that are sent at once
        cost nothing."""
        held = self._unsent
        before, size = held.of(connection), connection.unsent_bytes if connection.is_open else 0
        if size == before:
            return
        held.keep(connection, size)
        while size > before:
            cut = held.too_much(connection.counted_as, lambda other: other.is_open, self._is_slow)
            if cut is None:
                return
            cut.abort(
                f"reads too slowly, and too many bytes wait to be written: {held.of(cut)} for it, "
                f"{held.of_address(cut.counted_as)} for its address, {held.total} in total (unsent_bytes_max)"
            )
            held.keep(cut, 0)

    def _is_slow(self, connection: Connection) -> bool:
        """Return whether it has been reading below the minimum rate for as long as a peer may read nothing at all."""
        since = connection.slow_since
        return since is not None and self.now - since > self.config.write_stall_s

    @property
    def _buffered_bytes(self) -> int:
        return self._buffered.total

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
        for _ in range(20):  # wait a moment for what was written to be sent, then abort
            if not self._connections:
                return
            await asyncio.sleep(0.01)
        for connection in list(self._connections):
            connection.abort()


def _plain(ip: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Convert an IPv4 address behind a dual-stack socket."""
    found = ipaddress.ip_address(ip)
    return getattr(found, "ipv4_mapped", None) or found


def bind(host: str, port: int, backlog: int) -> socket.socket:
    """Return a listening socket, or raise ConfigError, whose text says what to do."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol named, accepted sockets report TCP, and asyncio disables Nagle's algorithm for them.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setblocking(False)
        listener.bind((host, port))
        listener.listen(backlog)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(
                f"port {port} is in use: stop the program that uses it, or choose another port"
            ) from error
        raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
    return listener


class FrameService(Protocol):
    """A server that handles one frame at a time (the name server)."""

    def handle(self, connection: Connection, frame: Frame) -> Answer: ...

    def connection_lost(self, connection: Connection) -> None: ...


class FrameReceiver:
    """Splits bytes into frames for a FrameService and sends its answers. Errors become response codes."""

    def __init__(
        self, service: FrameService, config: NetConfig, sizes: Mapping[int, RequestLimit] | None = None
    ) -> None:
        self._service = service
        self._config = config
        self.reader = RequestReader(sizes or {}, config)
        self.unfinished = Unfinished(config)

    def received(self, connection: Connection, data: bytes | bytearray) -> int:
        position = 0
        while len(data) - position >= 4:
            total = int.from_bytes(data[position : position + 4], "big", signed=True)
            if not 4 <= total <= self._config.frame_bytes_max:
                connection.abort(f"a frame of {total} bytes (the limit is {self._config.frame_bytes_max})")
                return len(data)
            header_bytes = int.from_bytes(data[position + 5 : position + 8], "big")
            if header_bytes > self._config.header_bytes_max and len(data) - position >= 8:
                done = self.reader.refuse_long_header(connection, data, position)
                if done is None:
                    connection.abort(f"a header of {header_bytes} bytes (the limit is {self._config.header_bytes_max})")
                    return len(data)
                if done == position:
                    break
                position = done
                continue
            end = position + 4 + total
            if end > len(data):
                break
            if not self.reader.turns.has_time_for(connection):
                break
            with memoryview(data)[position:end] as frame_bytes:
                self.reader.take(connection, frame_bytes, self._handle)
            position = end
            if not connection.is_open:
                return len(data)
            if connection.must_wait:
                break
        return position

    def _handle(self, connection: Connection, frame: Frame, body: memoryview, header_bytes: int) -> None:
        answer: Frame | Awaitable[Frame | None] | None
        in_order = False
        try:
            answer, in_order = self.reader.call(self._service.handle, connection, frame, body, header_bytes)
        except Exception as error:
            answer = failure(frame, error)
        if isinstance(answer, Frame):
            send_answer(connection, frame, answer)
        elif answer is not None:
            answer_bytes = self.reader.limits.answer_bytes(frame.code)
            self.unfinished.add(
                connection, frame, answer, header_bytes + len(body), in_order=in_order, answer_bytes=answer_bytes
            )

    def lost(self, connection: Connection) -> None:
        self._service.connection_lost(connection)


class FrameServer(Server):
    def __init__(
        self, service: FrameService, config: NetConfig, clock: Clock, sizes: Mapping[int, RequestLimit] | None = None
    ) -> None:
        """`sizes`: size limits of its requests by code; others have the default limit."""
        frames = FrameReceiver(service, config, sizes)
        super().__init__(frames, config, clock)
        self.reader = frames.reader

    async def start(self, host: str, port: int) -> int:
        self.reader.start()
        return await super().start(host, port)

    async def stop(self) -> None:
        await super().stop()
        self.reader.stop()
