"""One outgoing connection that many requests share.

Rules of this file:
- A request and its answer find each other by `opaque`; answers come in any order, and an answer that nobody waits for
  any more is dropped.
- What is written within one turn of the loop leaves in one piece.
- Nothing waits for ever: each request has a time limit, the table of waiting requests and the bytes not yet taken by
  the peer are bounded, and when the connection goes every waiting request fails at once with NotConnected.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import ssl
from collections.abc import Awaitable, Callable
from typing import Any, Final, Self

from kappamq.errors import FrameTooLarge, NotConnected, NotUnderstood, ProtocolError, RequestTimeout, TooManyRequests
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
"""Requests without an answer that one connection may have; RocketMQ's clients allow as many."""
WRITE_PAUSE_BYTES: Final = 1 << 20
"""Beyond this many unsent bytes new requests wait until the peer has taken some."""
TURN_BYTES: Final = 256 << 10
"""Beyond this a turn's writes are handed to the socket before the turn ends."""
SILENCE_S: Final = 3.0
"""A request that got no answer for at least this long, while nothing else came either, means the connection is dead."""
SERVING_MAX: Final = 256
"""Requests of the peer that may be in work at once."""
PROBE_S: Final = 1.0
"""How long we look whether a server that closed without a word would have spoken TLS."""
_FIRST_BYTES: Final = 16
"""Enough to tell what a server speaks that does not send frames."""
CLOSE_S: Final = 1.0
"""How long closing waits for the peer to take what was written before."""


def split_address(address: str) -> tuple[str, int]:
    """`host:port` -> (host, port); an IPv6 host may stand in brackets. Raises NotConnected for anything else."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65_536:
        raise NotConnected(f"{address!r} is not an address: expected host:port, for example 127.0.0.1:9876")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _tls_only(address: str) -> NotUnderstood:
    return NotUnderstood(
        f"{address} speaks TLS only: switch TLS on (in Python tls=True, in Spark the option tls, for kappamq --tls, in broker.conf "
        "tls.enable=true)"
    )


def _without_tls(address: str) -> NotUnderstood:
    return NotUnderstood(
        f"{address} ended the TLS handshake: most likely it does not offer TLS. Connect without it (in Python and Spark tls=False, for "
        "kappamq without --tls), or give the server a certificate (tls.server.certPath and tls.server.keyPath)"
    )


class Channel(asyncio.BufferedProtocol):
    """Made by `connect`; belongs to the loop that made it.

    `on_request` is called for each request the peer sends; what it returns (or what its awaitable gives) is the answer,
    and None to a request that wants one becomes "not supported". `on_closed` is called once, whoever closed.
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
        self._pending: dict[int, asyncio.Future[Frame]] = {}
        self._unanswered = 0
        self._outgoing: list[bytes] = []
        self._outgoing_bytes = 0
        self._room: asyncio.Future[None] | None = None  # there is one while the peer is slower than we are
        self._serving: set[asyncio.Task[None]] = set()
        self._heard = self._loop.time()
        self._encrypted = False
        self._spoken = False  # the other side has said anything at all
        self._gone: NotConnected | None = None
        self._closed: asyncio.Future[None] = self._loop.create_future()

    @classmethod
    async def connect(
        cls, address: str, *, timeout: float = 3.0, tls: ssl.SSLContext | None = None, **options: Any
    ) -> Self:
        """Return an open channel; `options` are those of the constructor. Raises NotConnected, which says why."""
        host, port = split_address(address)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout):
                _, channel = await loop.create_connection(
                    lambda: cls(address, **options), host, port, ssl=tls, server_hostname=host if tls else None
                )
        except ssl.SSLCertVerificationError as error:
            raise NotUnderstood(
                f"no TLS with {address}: {error.verify_message}. Name the authority that signed its certificate (in Python "
                "tls_trust, in Spark the option tlsCa, for kappamq --tls-ca), or connect under the name it was made for"
            ) from error
        except ssl.SSLError as error:
            if error.reason is None or "ALERT" not in error.reason:
                raise _without_tls(address) from error
            raise NotUnderstood(f"no TLS with {address}: it refuses us ({error.reason})") from error
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
        """How many requests wait for their answer."""
        return len(self._pending)

    @property
    def unanswered(self) -> int:
        """The same without pulls, which a broker holds until there is something to read."""
        return self._unanswered

    async def request(
        self, what: Frame | Header, body: bytes = b"", timeout: float = 3.0, *, code: int | None = None
    ) -> Frame:
        """Send a request and return the answer, whatever its code.

        The channel gives the frame its `opaque`. `timeout` covers everything, also waiting for a slow peer.
        Raises RequestTimeout, NotConnected, TooManyRequests, and FrameTooLarge before anything is sent.
        """
        started = self._loop.time()
        frame = what if isinstance(what, Frame) else request_frame(what, body, code=code)
        await self._wait_for_room(frame.code, timeout)
        if len(self._pending) >= self._pending_max:
            raise TooManyRequests(f"{len(self._pending)} requests wait for {self.address} already: send slower")
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
        """Send a request that wants no answer. Returns when it is on its way; nobody will say whether it arrived."""
        frame = what if isinstance(what, Frame) else request_frame(what, body, code=code)
        frame.flag |= FLAG_ONEWAY
        await self._wait_for_room(frame.code, timeout)
        self._write(self._encode(frame))

    def close(self) -> None:
        """Send what was written, then close. Requests that wait fail at once with NotConnected."""
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
        """A server that takes TLS only closes without a word when it is greeted in plain text: look whether this is one."""
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

    # --- requests of the peer ---

    def _serve(self, frame: Frame) -> None:
        if len(self._serving) >= SERVING_MAX:
            self._answer(frame, reply(frame, ResponseCode.SYSTEM_BUSY, f"{SERVING_MAX} requests are in work already"))
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


def _stranger(address: str, data: bytes, error: ProtocolError) -> NotUnderstood:
    """Who it may be that answers with something else than a frame."""
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
