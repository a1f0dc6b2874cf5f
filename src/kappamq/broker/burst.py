"""A socket read -> kernel -> replies parked on a watermark; what the kernel leaves goes to the handler of its code.

One turn of the event loop serves every connection that had something to say. Their sends gather in the kernel; at the end of
the turn one write brings them to the log, and only then do the answers leave.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable

from kappamq.broker.gate import Gate
from kappamq.clock import Clock
from kappamq.errors import Busy, NotAvailable, NotSupported, ProtocolError, StoreReadOnly
from kappamq.native.layout import BAD, DONE, LEFT
from kappamq.net.connection import Connection
from kappamq.net.server import failure
from kappamq.protocol.codes import FLAG_RESPONSE, ResponseCode
from kappamq.protocol.frame import Frame, decode
from kappamq.store.message_store import MessageStore

log = logging.getLogger(__name__)

Handler = Callable[[Connection, Frame], Frame | Awaitable[Frame | None] | None]
KernelPull = tuple[int, int, int, int, int, int, int, int, bool, object]
CONGESTED = "congested"
FAILED = "failed"
_CONGESTION_S = 1.0
_TASKS_MAX = 10_000


class Bursts:
    """The receiver of the broker's connections."""

    def __init__(self, store: MessageStore, gate: Gate, clock: Clock) -> None:
        self._store = store
        self._kernel = store.kernel
        self._gate = gate
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self.handlers: dict[int, Handler] = {}
        self.on_pulls: Callable[[Connection, list[KernelPull]], None] = lambda connection, pulls: None
        self.on_commits: Callable[[Connection, list[tuple[int, int, int]]], None] = lambda connection, commits: None
        self.on_lost: list[Callable[[Connection], None]] = []
        self._turn_set = False
        self._held: set[Connection] = set()  # paused because the disk does not keep up
        self._held_since = 0.0
        self._tasks: set[asyncio.Future[None]] = set()
        self.stopping = False

    # -- bytes in ----------------------------------------------------------------------------------------------------------

    def received(self, connection: Connection, data: bytes | bytearray) -> int:
        position = 0
        kernel = self._kernel
        while True:
            before = kernel.append_offset
            position, verdict, acks, end, replies, pulls, commits = kernel.burst(
                data, position, connection.born, self._clock.message_ms()
            )
            if end != before:
                self.set_turn()
                if acks:
                    self._store.answerable.wait(end, (connection, acks, self._clock.liveness()))
            if commits:
                self.on_commits(connection, commits)
            if replies:
                connection.send(replies)
            if pulls:
                self.on_pulls(connection, pulls)
            if verdict == DONE:
                if self._store.congested:
                    self._hold(connection)
                return int(position)
            if verdict == LEFT:
                size = 4 + int.from_bytes(data[position : position + 4], "big")
                frame_bytes = bytes(data[position : position + size])
                position += size
                if not self._left(connection, frame_bytes):
                    return len(data)
            elif verdict == BAD:
                connection.abort("sent bytes that are no frame (length or header length out of bounds)")
                return len(data)
            else:
                self._make_room()

    def _left(self, connection: Connection, data: bytes) -> bool:
        """Handle a frame the kernel left to us; False if the connection is not worth going on with."""
        try:
            frame = decode(data)
        except ProtocolError as error:
            connection.abort(f"not a frame: {error}")
            return False
        if frame.is_response:
            connection.answered(frame)
            return True
        try:
            handler = self.handlers.get(frame.code)
            if handler is None:
                raise NotSupported(f" request type {frame.code} not supported")
            if self.stopping:
                raise NotAvailable("the broker is shutting down")
            answer = handler(connection, frame)
        except Exception as error:
            answer = failure(frame, error)
        if inspect.isawaitable(answer):
            if len(self._tasks) >= _TASKS_MAX:
                answer.close() if inspect.iscoroutine(answer) else None
                self.answer(
                    connection,
                    frame,
                    failure(frame, Busy(f"{_TASKS_MAX} requests are being worked on already: try again later")),
                )
                return True
            task = asyncio.ensure_future(self._later(connection, frame, answer))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        elif answer is not None:
            self.answer(connection, frame, answer)
        return True

    async def _later(self, connection: Connection, frame: Frame, answer: Awaitable[Frame | None]) -> None:
        try:
            result = await answer
        except Exception as error:
            result = failure(frame, error)
        if result is not None:
            self.answer(connection, frame, result)

    def answer(self, connection: Connection, request: Frame, response: Frame) -> None:
        """Send a response now; a one-way request gets none, whatever happened."""
        if not request.is_oneway:
            connection.send(response.encode())

    def answer_when_stored(
        self, connection: Connection, request: Frame, response: Frame, end: int, flushed: bool = True
    ) -> None:
        """Send a response when the log is safe up to `end` (with flushed=False: as soon as it is written)."""
        self.set_turn()
        if not request.is_oneway:
            mark = self._store.answerable if flushed else self._store.written
            if not mark.wait(end, (connection, response.encode(), self._clock.liveness())):
                connection.send(response.encode())

    def lost(self, connection: Connection) -> None:
        self._held.discard(connection)
        for callback in self.on_lost:
            callback(connection)

    # -- the turn ----------------------------------------------------------------------------------------------------------

    def set_turn(self) -> None:
        """Something was appended: write it when everybody who is ready has had their say."""
        if not self._turn_set:
            self._turn_set = True
            self._loop.call_soon(self.end_turn)

    def end_turn(self) -> None:
        self._turn_set = False
        try:
            reached = self._store.write(self._clock.message_ms())
        except StoreReadOnly as error:
            self._store_failed(str(error))
            return
        send_acks(reached)

    def _make_room(self) -> None:
        try:
            send_acks(self._store.make_room(self._clock.message_ms()))
        except StoreReadOnly as error:
            if self._store.failed is not None:
                self._store_failed(str(error))
            else:
                # No next file: the disk is full. Nothing is lost, reading goes on; upkeep tries again and reopens.
                self._gate.close("no room", NotAvailable(f"{error}; free some space, writing resumes by itself"))

    def append(self, append: Callable[[], tuple[int, int, int]]) -> tuple[int, int, int]:
        """Run `append` (a call of the kernel), making room if there is none: (log offset, queue offset, size)."""
        for _ in range(3):
            self._gate.check()
            try:
                return append()
            except self._store.kernel_module.SegmentFull:
                self._make_room()
        raise NotAvailable("the record does not fit into a log file")

    # -- the disk reports --------------------------------------------------------------------------------------------------

    def flush_done(self) -> None:
        """The flusher's descriptor is readable."""
        send_acks(self._store.flush_done())
        if self._store.failed is not None:
            self._store_failed(self._store.failed)
        elif not self._store.congested:
            self._release()

    def _hold(self, connection: Connection) -> None:
        if not self._held:
            self._held_since = self._clock.liveness()
            self._store.request_flush()
        self._held.add(connection)
        connection.pause()

    def _release(self) -> None:
        self._gate.open(CONGESTED)
        held, self._held = self._held, set()
        for connection in held:
            connection.resume()

    def check_waiting(self, flush_timeout_s: float) -> None:
        """From time to time: whoever waits for the disk for too long gets an answer."""
        now = self._clock.liveness()
        late = self._store.flushed.give_up(lambda waiter: now - waiter[2] > flush_timeout_s)
        for connection, acks, _since in late:
            connection.send(
                with_code(acks, ResponseCode.FLUSH_DISK_TIMEOUT, "stored, but the disk has not confirmed it in time")
            )
        if self._held and now - self._held_since > _CONGESTION_S:
            behind = self._store.written.offset - self._store.flushed.offset
            if self._gate.close(CONGESTED, Busy(f"[PCBUSY] the disk is {behind} bytes behind: try again later")):
                held, self._held = self._held, set()
                for connection in held:
                    connection.resume()
        if not self._store.congested:
            self._release()

    def _store_failed(self, why: str) -> None:
        """Nothing can be stored any more: everybody who waits is told so, and so is everybody who comes."""
        self._gate.close(FAILED, NotAvailable(f"the store is read-only: {why}; check the disk and restart the broker"))
        for mark in (self._store.written, self._store.flushed):
            for connection, acks, _since in mark.give_up():
                connection.send(with_code(acks, ResponseCode.SERVICE_NOT_AVAILABLE, f"not known to be stored: {why}"))
        self._release()


def send_acks(reached: list[tuple[Connection, bytes, float]]) -> None:
    for connection, acks, _since in reached:
        connection.send(acks)


def with_code(acks: bytes, code: ResponseCode, remark: str) -> bytes:
    """The same answers with another code: the kernel wrote them when all was still well."""
    changed: list[bytes] = []
    position = 0
    while position < len(acks):
        end = position + 4 + int.from_bytes(acks[position : position + 4], "big")
        frame = decode(acks[position:end])
        frame.code, frame.remark, frame.flag = code, remark, FLAG_RESPONSE
        changed.append(frame.encode())
        position = end
    return b"".join(changed)
