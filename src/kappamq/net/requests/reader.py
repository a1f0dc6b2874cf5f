"""From the bytes of one frame to a request that a handler can be given: for all servers.

Headers are read on the loop, and what may be large in them is limited. Bodies are read by whoever wants them, but a large one that
is JSON is read beside the loop first. Requests share the turns of the loop (fair_turns.py), and long ones are noticed.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NamedTuple

from kappamq.config.net import NetConfig
from kappamq.errors import ProtocolError
from kappamq.net.requests.loop_share import LoopShare
from kappamq.net.requests.sizes import RequestLimit, RequestLimits
from kappamq.net.serving.connection import Connection
from kappamq.protocol.fastjson import LooseJsonTooLong
from kappamq.protocol.frame import Frame, TooManyFields, decode_header, refusal_of_unread


class InOrder(NamedTuple):
    """What a handler returns if the requests that follow on the connection have to wait for its answer."""

    answer: Awaitable[Frame | None]


Answer = Frame | Awaitable[Frame | None] | InOrder | None
Handler = Callable[[Connection, Frame], Answer]

LOOSE_HEADER_BYTES_MAX: Final = 4 << 10
"""A longer header must be proper JSON: the loop itself reads it."""


class RequestReader:
    """Belongs to one server and its loop."""

    def __init__(self, table: Mapping[int, RequestLimit], config: NetConfig) -> None:
        self.limits = RequestLimits(table, config)
        self._config = config
        self._share = LoopShare.of_this_loop()
        self._share.watch.server_starts()  # its store is read next
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
        self._end_start()  # it may never have been ready
        if self._is_started:
            self._is_started = False
            self._share.stop()

    def refuse_long_header(self, connection: Connection, data: bytes | bytearray, position: int) -> int | None:
        """Whoever splits frames does not like the one at `position`. If only its header is too long, refuse it when it has come.

        Returns how many bytes of `data` are done with then; None if this is no frame at all."""
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
        why = f"the header of the request has {header_bytes} bytes, {limit} at most: send less, or raise net.header_bytes_max"
        with memoryview(data)[position:end] as frame:
            refusal = refusal_of_unread(frame, why)
        if refusal is None:
            return None
        connection.send(refusal.encode())
        return end

    def take(
        self, connection: Connection, data: memoryview, handle: Callable[[Connection, Frame, memoryview, int], None]
    ) -> None:
        """Read the header of the frame in `data`, and have `handle` go on with a request: with its body still to be read.

        Answers of the peer are handed to whoever waits for them. What is no frame ends the connection."""
        began = time.perf_counter()
        try:
            frame, header_end = decode_header(data, loose_bytes_max=LOOSE_HEADER_BYTES_MAX)
        except (LooseJsonTooLong, TooManyFields) as error:
            refusal = refusal_of_unread(data, f"the header of the request cannot be read: {error}")
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
        seconds = time.perf_counter() - began
        self.turns.spend(seconds)
        self.turns.charge(connection, seconds)
        self.watch.took(frame.code, connection, seconds)

    def call(
        self, handler: Handler, connection: Connection, frame: Frame, body: memoryview, header_bytes: int
    ) -> tuple[Frame | Awaitable[Frame | None] | None, bool]:
        """What the handler says, and whether later requests of the connection have to wait for it.

        Raises InvalidParameter, before anything is read, if the request is larger than it may be."""
        self.limits.check(frame.code, header_bytes, len(body))
        frame.body = bytes(body)
        if self.limits.is_for_beside(frame):
            return self._read_first(handler, connection, frame), True
        answer = handler(connection, frame)
        return (answer.answer, True) if isinstance(answer, InOrder) else (answer, False)

    async def _read_first(self, handler: Handler, connection: Connection, frame: Frame) -> Frame | None:
        """Have a large body read beside the loop, then go on as with any other."""
        frame.parsed = await self.beside.run(connection, self.limits.read, frame, size=len(frame.body))
        if not connection.is_open:
            return None  # who has gone must not be entered as if it were here
        answer = handler(connection, frame)
        if isinstance(answer, InOrder):
            return await answer.answer
        return await answer if inspect.isawaitable(answer) else answer
