"""A socket read -> kernel -> answers; what the kernel leaves goes to the handler of its code.

One turn of the event loop serves every readable connection. Their sends gather in the kernel, and `LogWriter` writes
them to the log at the end of the turn, or before a slow request if others have taken long already; only then do their answers leave.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Mapping
from functools import partial
from typing import Final, Protocol

from kappamq.broker.events import ConnectionLost, KernelNoted
from kappamq.broker.requests.declaration import Declaration
from kappamq.broker.requests.request import Handler, merged
from kappamq.broker.requests.table import REQUESTS
from kappamq.broker.sending.log_writer import LogWriter
from kappamq.clock import Clock
from kappamq.config.net import NetConfig
from kappamq.errors import NotAvailable, NotSupported
from kappamq.events import Events
from kappamq.native.interface import Kernel
from kappamq.native.layout import BAD, DONE, FULL, LEFT, PAUSE, PullTuple
from kappamq.net.requests.failures import failure
from kappamq.net.requests.reader import Answer, RequestReader
from kappamq.net.requests.unfinished import Unfinished, send_answer
from kappamq.net.serving.connection import Connection
from kappamq.protocol.frame import Frame

_LARGE_READ_BYTES: Final = 512 << 10
_ANSWER_S: Final = 0.001
"""Messages stored in a turn wait no longer than this for slow requests of others: they are answered before the next of them."""


class PullsOfKernel(Protocol):
    """Handles the requests of a burst that the kernel does not finish itself."""

    def left_by_kernel(self, connection: Connection, pulls: list[PullTuple]) -> None: ...

    def commits_by_kernel(self, connection: Connection, commits: list[tuple[int, int, int]]) -> None: ...


class Bursts:
    """The receiver of the broker's connections."""

    def __init__(
        self,
        kernel: Kernel,
        writer: LogWriter,
        clock: Clock,
        net: NetConfig,
        reader: RequestReader,
        pulls: PullsOfKernel,
        events: Events,
    ) -> None:
        self._kernel = kernel
        self._writer = writer
        self._clock = clock
        self.reader = reader
        self.handlers: dict[int, Handler] = {}
        self._calls = {code: partial(self._call, declared) for code, declared in REQUESTS.items()}
        self._on_pulls = pulls.left_by_kernel
        self._on_commits = pulls.commits_by_kernel
        self._events = events
        self.unfinished = Unfinished(net)
        self._stopping = False

    def add_handlers(self, handlers: Mapping[int, Handler]) -> None:
        """Raises RuntimeError if a code has a handler already."""
        self.handlers = merged((self.handlers, handlers))

    def replace_handlers(self, handlers: Mapping[int, Handler]) -> None:
        """Replace handlers from the next request on. Each code must have a handler already."""
        unknown = handlers.keys() - self.handlers.keys()
        if unknown:
            raise RuntimeError(f"request codes {sorted(unknown)} have no handler that could be replaced")
        self.handlers = {**self.handlers, **handlers}

    def stop(self) -> None:
        """Refuse requests from now on; what the kernel answers alone is still answered."""
        self._stopping = True

    # -- bytes in ----------------------------------------------------------------------------------------------------------

    def received(self, connection: Connection, data: bytes | bytearray) -> int:
        if len(data) < _LARGE_READ_BYTES:
            return self._serve(connection, data)
        # Storing megabytes takes milliseconds, in the kernel too: they share the turns of the loop as slow requests do.
        turns = self.reader.turns
        if not turns.has_time_for(connection):
            return 0
        self._answer_early()
        began, charged = time.perf_counter(), turns.spent
        consumed = self._serve(connection, data)
        # slow requests among them were charged
        seconds = max(0.0, time.perf_counter() - began - (turns.spent - charged))
        turns.spend(seconds)
        turns.charge(connection, seconds)
        return consumed

    def _serve(self, connection: Connection, data: bytes | bytearray) -> int:
        position = 0
        kernel, writer = self._kernel, self._writer
        start = before = kernel.append_offset
        while True:
            # One time for everything appended in a turn: the clock is read once, not once per connection.
            now_ms = self._clock.message_ms() if writer.turn_ms is None else writer.turn_ms
            position, verdict, acks, end, replies, pulls, commits, notes = kernel.burst(
                data, position, connection.born, now_ms
            )
            if end != before:
                writer.set_turn(now_ms)
                if acks:
                    writer.park(connection, acks, end, end - before)
                before = end
            if notes:
                self._events.publish(KernelNoted(notes))
            if commits:
                self._on_commits(connection, commits)
            if replies:
                connection.send(replies)
            if pulls:
                self._on_pulls(connection, pulls)
            if verdict == DONE:
                if end != start:
                    writer.hold_if_congested(connection)
                return int(position)
            if verdict == PAUSE:
                if connection.must_wait:
                    return int(position)  # the rest waits until the peer has taken some of it
                continue
            if verdict == LEFT or (verdict == FULL and not writer.make_room()):
                if not self.reader.turns.has_time_for(connection):
                    return int(position)
                self._answer_early()
                size = 4 + int.from_bytes(data[position : position + 4], "big")
                with memoryview(data)[position : position + size] as frame_bytes:
                    self.reader.take(connection, frame_bytes, self._handle)
                position += size
                if not connection.is_open:
                    return len(data)
                if connection.must_wait:
                    return int(position)
            elif verdict == BAD:
                done = self.reader.refuse_long_header(connection, data, int(position))
                if done is not None and done != position:
                    position = done
                    before = kernel.append_offset
                    continue
                if done is not None:
                    return int(position)  # the rest of it is still to come
                connection.abort("sent bytes that are no frame (length or header length out of bounds)")
                return len(data)
            before = kernel.append_offset

    def _answer_early(self) -> None:
        writer = self._writer
        if writer.turn_ms is not None and writer.latency.turn_s > _ANSWER_S:
            writer.end_turn()

    def _handle(self, connection: Connection, frame: Frame, body: memoryview, header_bytes: int) -> None:
        """A request that the kernel left to us."""
        answer: Frame | Awaitable[Frame | None] | None
        in_order = False
        try:
            call = self._calls.get(frame.code)
            if call is None:
                raise NotSupported(f" request type {frame.code} not supported")
            if self._stopping:
                raise NotAvailable("the broker is shutting down")
            answer, in_order = self.reader.call(call, connection, frame, body, header_bytes)
        except Exception as error:
            answer = failure(frame, error)
        if isinstance(answer, Frame):
            send_answer(connection, frame, answer)
        elif answer is not None:
            answer_bytes = self.reader.limits.answer_bytes(frame.code)
            self.unfinished.add(
                connection, frame, answer, header_bytes + len(body), in_order=in_order, answer_bytes=answer_bytes
            )

    def _call(self, declared: Declaration, connection: Connection, frame: Frame) -> Answer:
        """The only place where headers of requests are decoded: handlers get valid ones."""
        request = declared.request(connection, frame)
        return self.handlers[declared.code](request)

    def lost(self, connection: Connection) -> None:
        self._writer.forget(connection)
        self._events.publish(ConnectionLost(connection))
