"""From the bytes of a frame to a request for a handler, for all servers.

Headers are decoded on the loop, so their size is limited. Bodies are decoded by the handlers, except large JSON bodies, which are
decoded in the worker thread first. Requests share the turns of the loop (fair_turns.py), and long ones are logged.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Final, NamedTuple

from kappamq.config.net import NetConfig
from kappamq.errors import ProtocolError
from kappamq.net.requests.charged import Charged
from kappamq.net.requests.loop_share import LoopShare
from kappamq.net.requests.sizes import RequestLimit, RequestLimits
from kappamq.net.serving.connection import Connection
from kappamq.protocol.fastjson import LooseJsonTooLong
from kappamq.protocol.frame import Frame, TooManyFields, decode_header, refusal_of_unread


class InOrder(NamedTuple):
    """Returned by a handler if later requests of the connection must wait for its answer."""

    answer: Awaitable[Frame | None]


Answered = Frame | Awaitable[Frame | None] | None
Answer = Answered | InOrder
Handler = Callable[[Connection, Frame], Answer]

LOOSE_HEADER_BYTES_MAX: Final = 4 << 10
"""A longer header must be valid JSON: the loop itself decodes it."""


class RequestReader:
    """For one server and its loop."""

    def __init__(self, table: Mapping[int, RequestLimit], config: NetConfig) -> None:
        self.limits = RequestLimits(table, config)
        self._config = config
        self._share = LoopShare.of_this_loop()
        self._share.watch.server_starts()  # it reads its store next
        self._is_starting = True
        self._is_started = False
        self.turns, self.beside, self.watch = self._share.turns, self._share.beside, self._share.watch

    def start(self) -> None:
        if not self._is_started:
            self._is_started = True
            self._share.start()
            self._end_start()

    def _end_start(self) -> None:
        if self._is_starting:
            self._is_starting = False
            self._share.watch.server_is_ready()

    def stop(self) -> None:
        self._end_start()  # it may never have become ready
        if self._is_started:
            self._is_started = False
            self._share.stop()

    def refuse_long_header(self, connection: Connection, data: bytes | bytearray, position: int) -> int | None:
        """Handle a frame at `position` that could not be split off. If only its header is too long, refuse it once it is complete.

        Returns how many bytes of `data` are consumed; None if this is not a frame at all."""
        if len(data) - position < 8:
            return None  # its length alone was refused
        total = int.from_bytes(data[position : position + 4], "big", signed=True)
        form, header_bytes = data[position + 4], int.from_bytes(data[position + 5 : position + 8], "big")
        end = position + 4 + total
        if not 4 <= total <= self._config.frame_bytes_max or form > 1 or header_bytes > total - 4:
            return None
        if end > len(data):
            return position
        limit = self._config.header_bytes_max
        why = f"the header of the request has {header_bytes} bytes, the limit is {limit}: send less, or raise net.header_bytes_max"
        with memoryview(data)[position:end] as frame:
            refusal = refusal_of_unread(frame, why)
        if refusal is None:
            return None
        connection.send(refusal.encode())
        return end

    def take(
        self, connection: Connection, data: memoryview, handle: Callable[[Connection, Frame, memoryview, int], None]
    ) -> None:
        """Decode the header of the frame in `data`, and pass a request, with its body still encoded, to `handle`.

        Responses of the peer are passed to their waiting requests. Anything that is not a frame ends the connection."""
        began = time.perf_counter()
        try:
            frame, header_end = decode_header(data, loose_bytes_max=LOOSE_HEADER_BYTES_MAX)
        except (LooseJsonTooLong, TooManyFields) as error:
            refusal = refusal_of_unread(data, f"the header of the request cannot be decoded: {error}")
            if refusal is None:
                connection.abort(f"not a frame: {error}")
            else:
                connection.send(refusal.encode())
            return
        except ProtocolError as error:
            connection.abort(f"not a frame: {error}")
            return
        if frame.is_response:
            frame.body = bytes(data[header_end:])
            connection.answered(frame)
            return
        with data[header_end:] as body:
            handle(connection, frame, body, header_end)
        self._took(connection, frame.code, time.perf_counter() - began)

    def _took(self, connection: Connection, code: int, seconds: float) -> None:
        self.turns.spend(seconds)
        self.turns.charge(connection, seconds)
        self.watch.took(code, connection, seconds)

    def call(
        self, handler: Handler, connection: Connection, frame: Frame, body: memoryview, header_bytes: int
    ) -> tuple[Answered, bool]:
        """Return the handler's answer, and whether later requests of the connection must wait for it.

        Raises InvalidParameter, before anything is decoded, if the request is too large."""
        self.limits.check(frame.code, header_bytes, len(body))
        frame.body = bytes(body)
        if self.limits.is_for_beside(frame):
            return self._charged(self._read_first(handler, connection, frame), connection, frame), True
        answer = handler(connection, frame)
        if answer is None or isinstance(answer, Frame):
            return answer, False
        if isinstance(answer, InOrder):
            return self._charged(answer.answer, connection, frame), True
        return self._charged(answer, connection, frame), False

    def _charged(self, answer: Answered, connection: Connection, frame: Frame) -> Answered:
        if not inspect.iscoroutine(answer):
            return answer
        return Charged(
            answer,
            connection,
            self.turns,
            partial(self._took, connection, frame.code),
            is_wanted=lambda: frame.is_oneway or connection.is_open,
        )

    async def _read_first(self, handler: Handler, connection: Connection, frame: Frame) -> Frame | None:
        """Decode a large body in the worker thread, then continue as usual."""
        frame.parsed = await self.beside.run(connection, self.limits.read, frame, size=len(frame.body))
        if not connection.is_open:
            return None  # a peer that has disconnected must not be registered
        answer = handler(connection, frame)
        if isinstance(answer, InOrder):
            return await answer.answer
        return await answer if inspect.isawaitable(answer) else answer
