"""One accepted connection: reads and writes bytes and enforces limits. The receiver interprets the bytes."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Any, Protocol, cast

from kappamq.errors import NotConnected, ProtocolError, RequestTimeout
from kappamq.net.serving.opening import Address, Kind, recognise
from kappamq.net.serving.strangers import Strangers, not_served
from kappamq.protocol.frame import Frame

log = logging.getLogger(__name__)

HELD = 1
"""Pause reason: the disk does not keep up, and the server holds back all senders."""
BUSY = 2
"""Pause reason: one of its requests is processed in the worker thread; later ones wait, to keep the order."""
WAITING = 4
"""Pause reason: its requests took much time, and it waits for its share of the next turn (fair_turns.py)."""
READ_IN_ROW_BYTES = 1 << 20
"""This much of a large frame is read before other connections are served."""
_SPARED_BYTES = 64 << 10  # a connection that buffers less than this is not closed when there is too much in total


class Receiver(Protocol):
    """Interprets the bytes of a server's connections."""

    def received(self, connection: Connection, data: bytes | bytearray) -> int:
        """Process the frames in `data`; return how many bytes were consumed. Called again when more has arrived."""
        ...

    def lost(self, connection: Connection) -> None: ...


class Host(Protocol):
    """The server of a connection, as far as the connection uses it."""

    receiver: Receiver
    frame_bytes_max: int
    write_pause_bytes: int
    owed_bytes_max: int
    now: float
    strangers: Strangers

    def admit(self, connection: Connection) -> bool: ...

    def proxied(self, connection: Connection) -> bool:
        """Account for the source address in a PROXY header; False if that peer is refused."""
        ...

    def leave(self, connection: Connection) -> None: ...

    def buffered(self, connection: Connection, more: int) -> bool:
        """Account for `more` buffered bytes of incomplete requests; False if the limit is exceeded and this connection is the
        one to close."""
        ...

    def unsent(self, connection: Connection) -> None:
        """Note that more bytes wait for a slow peer."""
        ...


def host_bytes(address: Address) -> bytes:
    """Encode an address as in records and ids: 4 or 16 bytes of ip, 4 bytes of port."""
    ip, port = address
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    packed = socket.inet_pton(family, ip.partition("%")[0])
    if packed.startswith(b"\0" * 10 + b"\xff\xff"):
        packed = packed[12:]  # IPv4 behind a dual-stack socket
    return packed + port.to_bytes(4, "big")


class Connection(asyncio.Protocol):
    __slots__ = (
        "_buffer",
        "_calls",
        "_counted",
        "_header_seen",
        "_host",
        "_need",
        "_opaque",
        "_opening",
        "_owed_bytes",
        "_owing",
        "_paused",
        "_read_in_row",
        "_source",
        "_stalled",
        "_transport",
        "admitted",
        "born",
        "cost",
        "cost_at",
        "counted_as",
        "last_read",
        "last_write",
        "local",
        "on_lost",
        "on_writable",
        "opened",
        "partial_since",
        "peer",
        "proxy",
        "slow_since",
        "spoken",
        "state",
        "unsent_seen",
        "write_stalled_since",
    )

    def __init__(self, host: Host, source: Address | None = None, *, header_seen: bool = False) -> None:
        """`header_seen`: the acceptor has already looked for a PROXY header, and `source` is the address in it."""
        self._host = host
        self._source = source
        self._header_seen = header_seen
        self._opening: bytes | None = b""  # the first bytes, until they show what the peer speaks
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()  # bytes of a frame that is incomplete or has to wait
        self._counted = 0  # how much of `_buffer` is accounted for at the host
        self._need = 0  # how long `_buffer` must be for its first frame
        self._read_in_row = 0  # bytes of a large frame since we last let others go first
        self._paused = 0  # paused for these reasons
        self._stalled = False  # the peer reads slower than we write
        self._owing = False  # the limit of requests in flight is reached; reading resumes when some are answered
        self._owed_bytes = 0
        self._calls: dict[int, asyncio.Future[Frame]] = {}
        self._opaque = 0
        self.peer: Address = ("", 0)  # the client, also behind a proxy
        self.proxy: Address | None = None  # the proxy that connected for it
        self.counted_as = ""  # the address whose limit it counts towards; set by the server
        self.local: Address = ("", 0)
        self.born = b""
        self.admitted = False
        self.spoken = False  # a complete frame has arrived
        self.opened = self.last_read = self.last_write = host.now
        self.partial_since: float | None = None
        self.write_stalled_since: float | None = None
        self.slow_since: float | None = None  # stalled, and reading below the minimum rate
        self.unsent_seen = 0  # at the server's last check
        self.on_lost: list[Callable[[Connection], None]] = []
        # Each is called once, when the connection is no longer stalled.
        self.on_writable: list[Callable[[Connection], None]] = []
        self.state: Any = None  # for the receiver
        # seconds its requests took lately, as of then by the loop's clock (fair_turns.py)
        self.cost = self.cost_at = 0.0

    # -- called by asyncio -------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast(asyncio.Transport, transport)  # uvloop's transports do not inherit from it
        peer, local = transport.get_extra_info("peername"), transport.get_extra_info("sockname")
        if not peer or not local:
            transport.abort()  # already disconnected
            return
        self.peer, self.local = (str(peer[0]), int(peer[1])), (str(local[0]), int(local[1]))
        if self._source is not None:
            self.proxy, self.peer = self.peer, self._source
        self.born = host_bytes(self.peer)
        transport.set_write_buffer_limits(high=self._host.write_pause_bytes)
        self.admitted = self._host.admit(self)
        if not self.admitted:
            transport.abort()

    def data_received(self, data: bytes) -> None:
        self.last_read = self._host.now
        if self._opening is not None:
            data = self._open(self._opening + data)
            if not data:
                return
        if self._buffer or self._paused or self._stalled or self._owing:
            self._buffer += data
            if len(self._buffer) >= self._need and not self.must_wait:
                self._drain()
            else:
                self._count()
                self._read_in_row += len(data)
                if self._read_in_row > READ_IN_ROW_BYTES:
                    self._rest()
            return
        consumed = self._host.receiver.received(self, data)
        if consumed < len(data):
            self._buffer += data[consumed:]
            self._expect()
        if consumed:
            self.spoken = True

    def _rest(self) -> None:
        """Read on in the next turn: libuv would read 32 times in a row, and no other connection would be served meanwhile."""
        self._read_in_row = 0
        if self._transport is not None and self._transport.is_reading():
            self._transport.pause_reading()
            asyncio.get_running_loop().call_soon(self._rested)

    def _rested(self) -> None:
        transport = self._transport
        if transport is not None and not transport.is_closing() and not self.must_wait and not transport.is_reading():
            transport.resume_reading()

    def pause_writing(self) -> None:
        self._stalled = True
        self.write_stalled_since = self.slow_since = self._host.now
        self._flow()
        self._host.unsent(self)

    def resume_writing(self) -> None:
        self._stalled = False
        self.write_stalled_since = self.slow_since = None
        self._host.unsent(self)
        callbacks, self.on_writable = self.on_writable, []
        for callback in callbacks:
            callback(self)
        self._flow()
        self._go_on()  # with requests that waited because there was too much to send

    def _go_on(self) -> None:
        if self._buffer and self._transport is not None and not self.must_wait:
            self._drain()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._buffer.clear()
        self._count()
        for call in self._calls.values():
            if not call.done():
                call.set_exception(NotConnected(f"{self} was closed before it answered"))
        self._calls.clear()
        if self.admitted:
            self._host.leave(self)
            for callback in self.on_lost:
                callback(self)
            self._host.receiver.lost(self)

    # -- receiving ---------------------------------------------------------------------------------------------------------

    def _open(self, data: bytes) -> bytes:
        """Examine the first bytes. Returns what is left for the receiver: nothing until it is clear what the peer speaks,
        and nothing if it was refused."""
        try:
            while (opening := recognise(data)).kind is Kind.PROXY:
                if self._header_seen:
                    raise ProtocolError("a second PROXY header")
                self._header_seen = True
                data = data[opening.size :]
                if opening.source is not None and not self._speak_for(opening.source):
                    return b""
        except ProtocolError as error:
            self._turn_away("PROXY", str(error))
            return b""
        if opening.kind is Kind.MORE:
            self._opening = data  # short: we wait only for a limited number of bytes
            return b""
        self._opening = None
        reason = not_served(opening, tls_offered=False)
        if reason is not None:
            self._turn_away(opening.kind.value, reason)
            return b""
        return data

    def _speak_for(self, source: Address) -> bool:
        self.proxy, self.peer = self.peer, source
        self.born = host_bytes(source)
        if self._host.proxied(self):
            return True
        self.abort()
        return False

    def _turn_away(self, what: str, reason: str) -> None:
        # Identified by its own address, not a claimed one, since the memory of logged peers is small.
        self._host.strangers.tell((self.proxy or self.peer)[0], what, reason)
        self.abort()

    def _drain(self) -> None:
        data = self._buffer
        consumed = self._host.receiver.received(self, data)
        if consumed:
            self.spoken = True
            del data[:consumed]
        self._expect()

    def _expect(self) -> None:
        """Compute how much must arrive before it is worth looking again. The length is the peer's claim: nothing is allocated."""
        if len(self._buffer) < 4:
            self._need = 4
        else:
            total = int.from_bytes(self._buffer[:4], "big", signed=True)
            self._need = 4 + total if 0 <= total <= self._host.frame_bytes_max else 8
        self.partial_since = self._host.now if self._buffer else None
        self._count()

    def _count(self) -> None:
        more = len(self._buffer) - self._counted
        if more:
            self._counted += more
            too_much = not self._host.buffered(self, more)
            # Bytes that we hold back ourselves (paused) are not the peer's fault.
            if too_much and len(self._buffer) > _SPARED_BYTES and not self._paused:
                self.abort(
                    f"too many bytes of incomplete requests are buffered, {len(self._buffer)} of them from this connection"
                )
                self._buffer.clear()  # at once, not when the loop reports the loss: others must not be closed for it
                self._count()

    def pause(self, reason: int = HELD) -> None:
        """Stop reading, and keep what is buffered, until `resume` was called for every reason."""
        self._paused |= reason
        self._flow()

    def resume(self, reason: int = HELD) -> None:
        if self._paused & reason:
            self._paused &= ~reason
            if self._paused:
                return
            self._flow()
            self._go_on()

    @property
    def is_paused(self) -> bool:
        return bool(self._paused)

    @property
    def must_wait(self) -> bool:
        """Whether no further request may be started: it is paused, has to read answers first, or has too many in flight."""
        return bool(self._paused) or self._stalled or self._owing

    def owe(self, size: int) -> None:
        """Account for a request of `size` bytes in flight. Beyond the limit per connection we stop reading from it."""
        self._owed_bytes += size
        if not self._owing and self._owed_bytes > self._host.owed_bytes_max:
            self._owing = True
            self._flow()

    def settle(self, size: int) -> None:
        """Account for an answered request."""
        self._owed_bytes -= size
        if self._owing and self._owed_bytes <= self._host.owed_bytes_max // 2:
            self._owing = False
            self._flow()
            if self._buffer:
                # Not here: the caller may be processing these very bytes.
                asyncio.get_running_loop().call_soon(self._go_on)

    def _flow(self) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        stop = bool(self._paused) or self._stalled or self._owing
        if stop == transport.is_reading():
            if stop:
                transport.pause_reading()
            else:
                transport.resume_reading()
                # Nothing arrived meanwhile because we did not read.
                self.last_read = self._host.now
                if self.partial_since is not None:
                    self.partial_since = self._host.now

    # -- sending -----------------------------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    @property
    def is_stalled(self) -> bool:
        return self._stalled

    @property
    def is_held(self) -> bool:
        """Whether we have stopped reading: its silence is not the peer's fault."""
        return bool(self._paused) or self._owing

    @property
    def unsent_bytes(self) -> int:
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def send(self, data: bytes) -> None:
        """Send; does nothing if the peer has disconnected."""
        transport = self._transport
        if transport is not None:
            self.last_write = self._host.now
            transport.write(data)
            if self._stalled:
                self._host.unsent(self)

    def close(self, reason: str = "") -> None:
        """Close the connection after everything written has been sent."""
        if self._transport is not None:
            if reason:
                log.info("closing %s: %s", self, reason)
            self._transport.close()

    def abort(self, reason: str = "") -> None:
        if self._transport is not None:
            if reason:
                log.info("dropping %s: %s", self, reason)
            self._transport.abort()

    # -- calling the peer --------------------------------------------------------------------------------------------------

    async def request(self, frame: Frame, timeout_s: float) -> Frame:
        """Send a request to the peer over the connection it opened. Raises NotConnected, RequestTimeout."""
        if not self.is_open:
            raise NotConnected(f"{self} is closed")
        self._opaque = (self._opaque + 1) & 0x7FFFFFFF
        frame.opaque = opaque = self._opaque
        answer: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()
        self._calls[opaque] = answer
        try:
            self.send(frame.encode())
            return await asyncio.wait_for(answer, timeout_s)
        except TimeoutError as error:
            raise RequestTimeout(f"{self} did not answer request {frame.code} within {timeout_s:g} s") from error
        finally:
            self._calls.pop(opaque, None)

    def answered(self, frame: Frame) -> None:
        """Pass a response to its waiting request; late ones are dropped."""
        answer = self._calls.get(frame.opaque)
        if answer is not None and not answer.done():
            answer.set_result(frame)

    def __repr__(self) -> str:
        shown = f"{self.peer[0]}:{self.peer[1]}"
        return shown if self.proxy is None else f"{shown} (through {self.proxy[0]}:{self.proxy[1]})"
