"""One outgoing connection that many requests share.

Rules of this file:
- A request and its answer are matched by `opaque`; answers arrive in any order, and an answer without a waiting request
  is dropped.
- All writes within one turn of the loop are sent together.
- Nothing waits for ever: each request has a timeout, the number of requests in flight and the unsent bytes are bounded,
  and when the connection is lost every request in flight fails at once with NotConnected.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import ssl
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol, Self

from kappamq.config.checks import could_be_host
from kappamq.errors import (
    FrameTooLarge,
    KappaError,
    NotConnected,
    NotUnderstood,
    ProtocolError,
    RequestTimeout,
    TooManyRequests,
)
from kappamq.net.tls import offers_tls
from kappamq.protocol.codes import FLAG_ONEWAY, RequestCode, ResponseCode
from kappamq.protocol.frame import FRAME_BYTES_MAX, Frame, FrameDecoder, next_opaque, reply
from kappamq.protocol.frame import request as request_frame
from kappamq.protocol.headers.header import Header

log = logging.getLogger(__name__)

OnRequest = Callable[["Channel", Frame], Frame | Awaitable[Frame | None] | None]
OnClosed = Callable[["Channel"], None]

HELD_CODES: Final = frozenset({RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE})
PENDING_MAX: Final = 65_535
"""Limit of requests in flight per connection; the same as in RocketMQ's clients."""
WRITE_PAUSE_BYTES: Final = 1 << 20
"""With this many unsent bytes new requests wait until the peer has read some."""
TURN_BYTES: Final = 256 << 10
"""With this many bytes the writes of a turn are sent before it ends."""
SILENCE_S: Final = 3.0
"""If a request gets no answer for this long, and nothing else arrives either, the connection is dead."""
SERVING_MAX: Final = 256
"""Limit of concurrent requests from the peer."""
PROBE_S: Final = 1.0
"""How long to probe whether a server that closed the connection without an answer requires TLS."""
_FIRST_BYTES: Final = 16
"""How many bytes to read to find out what a server speaks that does not send frames."""
CLOSE_S: Final = 1.0
"""How long closing waits until the peer has read what was written."""


def split_address(address: str) -> tuple[str, int]:
    """`host:port` -> (host, port); an IPv6 host may be in brackets. Raises NotConnected for anything else."""
    host, colon, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    is_port = port.isdecimal() and len(port) <= 5 and 0 < int(port) < 65_536
    if not colon or not is_port or not could_be_host(host):
        raise NotConnected(f"{address[:300]!r} is not an address: expected host:port, for example 127.0.0.1:9876")
    return host, int(port)


def _tls_only(address: str) -> NotUnderstood:
    return NotUnderstood(
        f"{address} requires TLS: enable it (in Python tls=True, in Spark the option tls, for kappamq --tls, in broker.conf "
        "tls.enable=true)"
    )


def _without_tls(address: str) -> NotUnderstood:
    return NotUnderstood(
        f"{address} ended the TLS handshake: most likely it does not offer TLS. Connect without it (in Python and Spark tls=False, for "
        "kappamq without --tls), or give the server a certificate (tls.server.certPath and tls.server.keyPath)"
    )


class Waiter(Protocol):
    """Gets one answer, or one error, as a future does."""

    def done(self) -> bool: ...

    def set_result(self, answer: Frame, /) -> None: ...

    def set_exception(self, error: Any, /) -> None: ...


class Posted(Protocol):
    """Called at once with the answer to a posted request, or an error: no task has to wake up for it. Must not raise."""

    def answered(self, answer: Frame) -> None: ...

    def failed(self, error: KappaError) -> None: ...


class Channel(asyncio.BufferedProtocol):
    """Created by `connect`; bound to the loop that created it.

    `on_request` is called for each request of the peer; what it returns (or awaits to) is the answer, and None becomes
    "not supported" if the request expects an answer. `on_closed` is called once, whichever side closed.
    """

    def __init__(
        self,
        address: str,
        *,
        on_request: OnRequest | None = None,
        on_closed: OnClosed | None = None,
        frame_bytes_max: int = FRAME_BYTES_MAX,
        pending_max: int = PENDING_MAX,
    ) -> None:
        self.address = address
        self.local_address = ""
        self._loop = asyncio.get_running_loop()
        self._on_request = on_request
        self._on_closed = on_closed
        self._frame_bytes_max = frame_bytes_max
        self._pending_max = pending_max
        self._decoder = FrameDecoder(frame_bytes_max)
        self._transport: asyncio.Transport | None = None
        self._pending: dict[int, Waiter] = {}
        self._unanswered = 0
        self._outgoing: list[bytes] = []
        self._outgoing_bytes = 0
        self._room: asyncio.Future[None] | None = None  # present while the peer reads too slowly
        self._serving: set[asyncio.Task[None]] = set()
        self._heard = self._loop.time()
        self._encrypted = False
        self._spoken = False  # the peer has sent anything at all
        self._gone: NotConnected | None = None
        self._closed: asyncio.Future[None] = self._loop.create_future()

    @classmethod
    async def connect(
        cls, address: str, *, timeout: float = 3.0, tls: ssl.SSLContext | None = None, **options: Any
    ) -> Self:
        """Return an open channel; `options` are those of the constructor. Raises NotConnected, whose text says why."""
        host, port = split_address(address)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout):
                _, channel = await loop.create_connection(
                    lambda: cls(address, **options), host, port, ssl=tls, server_hostname=host if tls else None
                )
        except ssl.SSLCertVerificationError as error:
            raise NotUnderstood(
                f"TLS handshake with {address} failed: {error.verify_message}. Set the CA that signed its certificate (in Python "
                "tls_trust, in Spark the option tlsCa, for kappamq --tls-ca), or connect by the host name in its certificate"
            ) from error
        except ssl.SSLError as error:
            if error.reason is None or "ALERT" not in error.reason:
                raise _without_tls(address) from error
            raise NotUnderstood(f"TLS handshake with {address} failed: it refused us ({error.reason})") from error
        except TimeoutError:
            raise NotConnected(
                f"no connection to {address} within {timeout:g} s: is the address right, and reachable?"
            ) from None
        except OSError as error:
            if tls is not None and isinstance(error, (ConnectionResetError, ConnectionAbortedError, BrokenPipeError)):
                raise _without_tls(address) from error
            why = error.strerror or str(error) or "closed by the other side"
            raise NotConnected(f"no connection to {address}: {why}") from error
        return channel

    @property
    def is_open(self) -> bool:
        return self._gone is None

    @property
    def pending(self) -> int:
        """How many requests are in flight."""
        return len(self._pending)

    @property
    def unanswered(self) -> int:
        """How many requests are in flight, without pulls, which a broker may hold until there are messages."""
        return self._unanswered

    @property
    def has_room(self) -> bool:
        """Whether `post` may be called now."""
        # On a connection that has not answered yet, `request` finds out what is at its other end.
        return self._spoken and self._gone is None and self._room is None and len(self._pending) < self._pending_max

    def post(self, frame: Frame, waiter: Posted, timeout: float) -> None:
        """Send a request at once, which needs `has_room`. The waiter gets its answer, or RequestTimeout or NotConnected.

        Raises FrameTooLarge, and nothing is sent."""
        opaque = frame.opaque = self._free_opaque()
        data = self._encode(frame)
        started = self._loop.time()
        timer = self._loop.call_at(started + timeout, self._expire, opaque, frame.code, started)
        self._pending[opaque] = _Posted(self, waiter, timer)
        self._unanswered += 1
        self._write(data)

    def was_answered(self) -> None:
        """Time out a posted request."""
        self._unanswered -= 1

    def flush(self) -> None:
        """Hand everything written so far to the system, without waiting for the end of the turn."""
        self._flush()

    async def request(
        self, what: Frame | Header, body: bytes = b"", timeout: float = 3.0, *, code: int | None = None
    ) -> Frame:
        """Send a request and return the answer, whatever its code.

        The channel assigns the `opaque` of the frame. `timeout` includes waiting for a slow peer.
        Raises RequestTimeout, NotConnected, TooManyRequests, and FrameTooLarge before anything is sent.
        """
        started = self._loop.time()
        frame = what if isinstance(what, Frame) else request_frame(what, body, code=code)
        await self._wait_for_room(frame.code, timeout)
        if len(self._pending) >= self._pending_max:
            raise TooManyRequests(f"{len(self._pending)} requests to {self.address} are in flight already: send slower")
        opaque = frame.opaque = self._free_opaque()
        data = self._encode(frame)
        answer: asyncio.Future[Frame] = self._loop.create_future()
        self._pending[opaque] = answer
        is_held = frame.code in HELD_CODES
        self._unanswered += not is_held
        timer = self._loop.call_at(started + timeout, self._expire, opaque, frame.code, started)
        self._write(data)
        try:
            return await answer
        except NotConnected as error:
            if self._spoken or isinstance(error, NotUnderstood):
                raise
            raise await self._why_without_a_word(error, started + timeout) from None
        finally:
            timer.cancel()
            self._unanswered -= not is_held
            self._pending.pop(opaque, None)

    async def oneway(
        self, what: Frame | Header, body: bytes = b"", timeout: float = 3.0, *, code: int | None = None
    ) -> None:
        """Send a request without an answer. Returns when it was written; whether it arrives is unknown."""
        frame = what if isinstance(what, Frame) else request_frame(what, body, code=code)
        frame.flag |= FLAG_ONEWAY
        await self._wait_for_room(frame.code, timeout)
        self._write(self._encode(frame))

    def close(self) -> None:
        """Send what was written, then close. Requests in flight fail at once with NotConnected."""
        if self._gone is not None:
            return
        self._flush()
        self._fail(NotConnected(f"the connection to {self.address} was closed by this side"))
        if self._transport is not None:
            self._transport.close()
            self._loop.call_later(CLOSE_S, self._transport.abort)

    async def wait_closed(self) -> None:
        """Return when the socket is closed, at most CLOSE_S after `close` was called."""
        await asyncio.shield(self._closed)

    async def _why_without_a_word(self, error: NotConnected, deadline: float) -> NotConnected:
        """A server that requires TLS closes a plain-text connection without an answer: probe whether this is one."""
        left = min(PROBE_S, deadline - self._loop.time())
        if self._encrypted or left <= 0 or not await offers_tls(*split_address(self.address), left):
            return error
        return _tls_only(self.address)

    # --- called by asyncio ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "writelines")
        self._transport = transport  # type: ignore[assignment]
        transport.set_write_buffer_limits(high=WRITE_PAUSE_BYTES)  # type: ignore[attr-defined]
        self._encrypted = transport.get_extra_info("ssl_object") is not None
        name = transport.get_extra_info("sockname")
        self.local_address = f"[{name[0]}]:{name[1]}" if ":" in name[0] else f"{name[0]}:{name[1]}"

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._decoder.room()

    def buffer_updated(self, nbytes: int) -> None:
        self._heard = self._loop.time()
        first = b"" if self._spoken else bytes(self._decoder.room()[: min(nbytes, _FIRST_BYTES)])
        self._spoken = True
        try:
            frames = self._decoder.received(nbytes)
        except ProtocolError as error:
            self._lose(_stranger(self.address, first, error))
            return
        for frame in frames:
            if frame.is_response:
                answer = self._pending.pop(frame.opaque, None)
                if answer is not None and not answer.done():
                    answer.set_result(frame)
            else:
                self._serve(frame)

    def pause_writing(self) -> None:
        self._room = self._loop.create_future()

    def resume_writing(self) -> None:
        if self._room is not None and not self._room.done():
            self._room.set_result(None)
        self._room = None

    def connection_lost(self, error: Exception | None) -> None:
        why = f": {error}" if error else " by the other side"
        self._fail(NotConnected(f"the connection to {self.address} was closed{why}"))
        for task in self._serving:
            task.cancel()
        if not self._closed.done():
            self._closed.set_result(None)
        if self._on_closed is not None:
            self._on_closed(self)

    # --- writing ---

    async def _wait_for_room(self, code: int, timeout: float) -> None:
        if self._room is not None:
            try:
                async with asyncio.timeout(timeout):
                    while self._room is not None:
                        await asyncio.shield(self._room)
            except TimeoutError:
                raise RequestTimeout(
                    f"{self.address} did not take request {_name(code)} within {timeout:g} s: it reads too slowly"
                ) from None
        if self._gone is not None:
            raise type(self._gone)(str(self._gone))

    def _free_opaque(self) -> int:
        while (opaque := next_opaque()) in self._pending:
            pass
        return opaque

    def _encode(self, frame: Frame) -> bytes:
        data = frame.encode()
        if len(data) > self._frame_bytes_max:
            raise FrameTooLarge(
                f"request {_name(frame.code)} has {len(data)} bytes, the limit is {self._frame_bytes_max}: send less "
                "at once"
            )
        return data

    def _write(self, data: bytes) -> None:
        if not self._outgoing:
            self._loop.call_soon(self._flush)
        self._outgoing.append(data)
        self._outgoing_bytes += len(data)
        if self._outgoing_bytes > TURN_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._outgoing and self._transport is not None and self._gone is None:
            data = self._outgoing[0] if len(self._outgoing) == 1 else b"".join(self._outgoing)
            self._transport.write(data)
        self._outgoing = []
        self._outgoing_bytes = 0

    # --- ends ---

    def _expire(self, opaque: int, code: int, started: float) -> None:
        answer = self._pending.pop(opaque, None)
        if answer is None or answer.done():
            return
        waited = self._loop.time() - started
        answer.set_exception(
            RequestTimeout(f"{self.address} did not answer request {_name(code)} within {waited:.1f} s")
        )
        if waited >= SILENCE_S and self._heard <= started:
            self._lose(NotConnected(f"{self.address} has been silent for {waited:.1f} s"))

    def _lose(self, why: NotConnected) -> None:
        if self._gone is None:
            self._fail(why)
            if self._transport is not None:
                self._transport.abort()

    def _fail(self, error: NotConnected) -> None:
        if self._gone is not None:
            return
        self._gone = error
        pending, self._pending = self._pending, {}
        for answer in pending.values():
            if not answer.done():
                # Each waiter gets an error of its own: a shared one would collect the tracebacks of all.
                answer.set_exception(type(error)(str(error)))
        self.resume_writing()

    # --- requests from the peer ---

    def _serve(self, frame: Frame) -> None:
        if len(self._serving) >= SERVING_MAX:
            self._answer(
                frame, reply(frame, ResponseCode.SYSTEM_BUSY, f"{SERVING_MAX} requests are being processed already")
            )
            return
        try:
            result = self._on_request(self, frame) if self._on_request is not None else None
        except Exception as error:
            log.exception("request %s from %s failed", _name(frame.code), self.address)
            self._answer(frame, reply(frame, ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}"))
            return
        if inspect.isawaitable(result):
            task = self._loop.create_task(self._serve_later(frame, result))
            self._serving.add(task)
            task.add_done_callback(self._serving.discard)
        else:
            self._answer(frame, result)

    async def _serve_later(self, frame: Frame, result: Awaitable[Frame | None]) -> None:
        try:
            answer = await result
        except Exception as error:
            log.exception("request %s from %s failed", _name(frame.code), self.address)
            answer = reply(frame, ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}")
        self._answer(frame, answer)

    def _answer(self, frame: Frame, answer: Frame | None) -> None:
        if frame.is_oneway or self._gone is not None:
            return
        if answer is None:
            text = f" request type {frame.code} not supported"
            answer = reply(frame, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, text)
        self._write(answer.encode())


class _Posted:
    """A posted request, from its sending to its answer."""

    __slots__ = ("_channel", "_timer", "_waiter")

    def __init__(self, channel: Channel, waiter: Posted, timer: asyncio.TimerHandle) -> None:
        self._channel = channel
        self._waiter = waiter
        self._timer = timer

    def done(self) -> bool:
        return False

    def set_result(self, answer: Frame) -> None:
        self._timer.cancel()
        self._channel.was_answered()
        self._waiter.answered(answer)

    def set_exception(self, error: KappaError) -> None:
        self._timer.cancel()
        self._channel.was_answered()
        self._waiter.failed(error)


def _stranger(address: str, data: bytes, error: ProtocolError) -> NotUnderstood:
    """Return an error that says what the peer is likely to be, given an answer that is not a frame."""
    if data[:2] in (b"\x15\x03", b"\x16\x03"):  # a TLS alert, or a handshake
        return _tls_only(address)
    if data.startswith(b"HTTP/"):
        return NotUnderstood(f"{address} answers like a web server, not like RocketMQ: check the port")
    return NotUnderstood(f"{address} sent bytes that are not a frame ({error}): is that a RocketMQ port?")


def _name(code: int) -> str:
    try:
        return f"{code} ({RequestCode(code).name})"
    except ValueError:
        return str(code)
