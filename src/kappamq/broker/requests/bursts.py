"""A socket read -> kernel -> replies parked on a watermark; what the kernel leaves goes to the handler of its code.

One turn of the event loop serves every connection that had something to say. Their sends gather in the kernel; at the end of
the turn one write brings them to the log, and only then do the answers leave.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from kappamq.broker.requests.sizes import REQUEST_SIZES
from kappamq.broker.sending.gate import CONGESTED, FAILED, NO_ROOM, Gate
from kappamq.broker.telemetry.latency import PutLatency
from kappamq.clock import Clock
from kappamq.config.net import NetConfig
from kappamq.errors import Busy, IllegalMessage, NotAvailable, NotSupported, StoreReadOnly
from kappamq.native.layout import BAD, DONE, FULL, LEFT, PAUSE
from kappamq.net.requests.failures import failure
from kappamq.net.requests.reader import Answer, RequestReader
from kappamq.net.requests.unfinished import Unfinished, send_answer
from kappamq.net.serving.connection import Connection
from kappamq.protocol.codes import FLAG_RESPONSE, ResponseCode
from kappamq.protocol.frame import Frame, decode
from kappamq.store.message_store import MessageStore

log = logging.getLogger(__name__)

Handler = Callable[[Connection, Frame], Answer]
KernelPull = tuple[int, int, int, int, int, int, int, int, bool, object]
Waiter = tuple["Waits", bytes, float, int]
"""Who waits for the log: connection, answers, since when (liveness), bytes that the connection owes us patience for."""
_CONGESTION_S = 1.0


class Waits(Protocol):
    """Who gets the answers that waited for the log, and is no longer charged for them."""

    def send(self, data: bytes) -> None: ...

    def owe(self, size: int) -> None: ...

    def settle(self, size: int) -> None: ...


class Bursts:
    """The receiver of the broker's connections."""

    def __init__(self, store: MessageStore, gate: Gate, clock: Clock, net: NetConfig) -> None:
        self._store = store
        self._kernel = store.kernel
        self._gate = gate
        self._clock = clock
        self._net = net
        # Without sync flush an answer leaves in the turn of its request: nothing piles up that would have to be counted.
        self._counts = store.answerable is not store.written
        self._loop = asyncio.get_running_loop()
        self.reader = RequestReader(REQUEST_SIZES, net)
        self.handlers: dict[int, Handler] = {}
        self.on_pulls: Callable[[Connection, list[KernelPull]], None] = lambda connection, pulls: None
        self.on_commits: Callable[[Connection, list[tuple[int, int, int]]], None] = lambda connection, commits: None
        self.on_lost: list[Callable[[Connection], None]] = []
        self.finish_preparing: Callable[[], None] = lambda: None  # whoever makes the next log file is to be waited for
        self.latency = PutLatency(clock.liveness, self._kernel.put_count)
        self._turn_set = False
        self._turn_ms = 0  # message time of this turn
        self._congested = False  # as of the end of the last turn: who sends more is held
        self._held: set[Connection] = set()  # paused because the disk does not keep up
        self._held_since = 0.0
        self.unfinished = Unfinished(net)
        self.stopping = False

    # -- bytes in ----------------------------------------------------------------------------------------------------------

    def received(self, connection: Connection, data: bytes | bytearray) -> int:
        position = 0
        kernel = self._kernel
        start = before = kernel.append_offset
        while True:
            # One time for all that is appended in a turn: the clock is asked once, not once per connection.
            now_ms = self._turn_ms if self._turn_set else self._clock.message_ms()
            position, verdict, acks, end, replies, pulls, commits = kernel.burst(
                data, position, connection.born, now_ms
            )
            if end != before:
                if not self._turn_set:
                    self.set_turn(now_ms)
                if acks:
                    self._park(connection, acks, end, end - before)
                before = end
            if commits:
                self.on_commits(connection, commits)
            if replies:
                connection.send(replies)
            if pulls:
                self.on_pulls(connection, pulls)
            if verdict == DONE:
                if self._congested and end != start:
                    self._hold_if_congested(connection)
                return int(position)
            if verdict == PAUSE:
                if connection.must_wait:
                    return int(position)  # the rest waits until the peer has taken some of it
                continue
            if verdict == LEFT or (verdict == FULL and not self._make_room()):
                if not self.reader.turns.has_time_for(connection):
                    return int(position)
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

    def _handle(self, connection: Connection, frame: Frame, body: memoryview, header_bytes: int) -> None:
        """A request that the kernel left to us."""
        answer: Frame | Awaitable[Frame | None] | None
        in_order = False
        try:
            handler = self.handlers.get(frame.code)
            if handler is None:
                raise NotSupported(f" request type {frame.code} not supported")
            if self.stopping:
                raise NotAvailable("the broker is shutting down")
            answer, in_order = self.reader.call(handler, connection, frame, body, header_bytes)
        except Exception as error:
            answer = failure(frame, error)
        if inspect.isawaitable(answer):
            answer_bytes = self.reader.limits.answer_bytes(frame.code)
            self.unfinished.add(
                connection, frame, answer, header_bytes + len(body), in_order=in_order, answer_bytes=answer_bytes
            )
        elif answer is not None:
            self.answer(connection, frame, answer)

    def answer(self, connection: Connection, request: Frame, response: Frame) -> None:
        """Send a response now."""
        send_answer(connection, request, response)

    def answer_when_stored(
        self, connection: Connection, request: Frame, response: Frame, end: int, flushed: bool = True
    ) -> None:
        """Send a response when the log is safe up to `end` (with flushed=False: as soon as it is written)."""
        self.set_turn()
        if not request.is_oneway:
            self._park(connection, response.encode(), end, 4 + len(request.body), flushed)

    def stored(self, end: int, *, flushed: bool = True) -> asyncio.Future[None]:
        """Done when the log is safe up to `end` (with flushed=False: written); fails with NotAvailable if that cannot be."""
        self.set_turn()
        mark = self._store.answerable if flushed else self._store.written
        waiter = _Coroutine(self._loop.create_future(), lambda: mark.offset >= end)
        self._park(waiter, b"", end, 0, flushed)
        return waiter.future

    def on_disk(self, end: int) -> asyncio.Future[None]:
        """Done when the log survives a power cut up to `end`, whatever the broker's mode demands; fails with NotAvailable."""
        if end > self._store.log.end:
            self.end_turn()
        mark = self._store.flushed
        waiter = _Coroutine(self._loop.create_future(), lambda: mark.offset >= end)
        if self._store.failed is not None or not mark.wait(end, (waiter, b"", self._clock.liveness(), 0)):
            waiter.send(b"")
        else:
            self._store.request_flush()
        return waiter.future

    def _park(self, connection: Waits, answers: bytes, end: int, size: int, flushed: bool = True) -> None:
        mark = self._store.answerable if flushed else self._store.written
        if end <= mark.offset:
            connection.send(answers)
        elif self._store.failed is not None:
            connection.send(unknown(answers, self._store.failed))
        elif self._counts:
            connection.owe(size)
            mark.wait(end, (connection, answers, self._clock.liveness(), size))
        else:
            mark.wait(end, (connection, answers, 0.0, 0))

    def lost(self, connection: Connection) -> None:
        self._held.discard(connection)
        for callback in self.on_lost:
            callback(connection)

    # -- the turn ----------------------------------------------------------------------------------------------------------

    def set_turn(self, now_ms: int | None = None) -> None:
        """Something was appended: write it when everybody who is ready has had their say."""
        if not self._turn_set:
            self._turn_set = True
            self._turn_ms = self._clock.message_ms() if now_ms is None else now_ms
            self.latency.began()
            self._loop.call_soon(self.end_turn)

    def end_turn(self) -> None:
        self._turn_set = False
        try:
            reached = self._store.write(self._clock.message_ms())
        except StoreReadOnly as error:
            self._store_failed(str(error))
            return
        send_acks(reached)
        self.latency.written(self._store.written.offset, self._kernel.put_count)
        self.latency.reached(self._store.answerable.offset)
        self._congested = bool(self._congestion())

    def _make_room(self) -> bool:
        """The kernel has no room: write what is pending, and if that was not it, go on in the next file. False: no use."""
        log_files = self._store.log
        before = log_files.end
        try:
            send_acks(self._store.write(self._clock.message_ms()))
            if log_files.end != before:
                return True
            if log_files.is_fresh:
                return False  # more than a whole file
            if not log_files.next_is_ready:
                self.finish_preparing()
            self._store.roll()
            return True
        except StoreReadOnly as error:
            if self._store.failed is not None:
                self._store_failed(str(error))
            else:
                # No next file: the disk is full. Nothing is lost, reading goes on; upkeep tries again and reopens.
                self._gate.close(NO_ROOM, NotAvailable(f"{error}; free some space, writing resumes by itself"))
            return False

    def append(self, append: Callable[[], Any], *, own: bool = False) -> Any:
        """Run `append` (a call of the kernel), making room if there is none, and return what it says.

        With `own` it is a record of the broker itself, which may use the room that is refused to users."""
        while True:
            self._gate.check(own=own)
            try:
                appended = append()
                self._turn_ms = self._clock.message_ms()  # it carries its own time: nothing behind it may be older
                return appended
            except self._store.kernel_module.SegmentFull:
                if not self._make_room():
                    self._gate.check()
                    size = self._store.config.segment_bytes
                    raise IllegalMessage(
                        f"it does not fit into a log file of {size} bytes: send less at once"
                    ) from None

    # -- the disk reports --------------------------------------------------------------------------------------------------

    def flush_done(self) -> None:
        """The flusher's descriptor is readable."""
        send_acks(self._store.flush_done())
        self.latency.reached(self._store.answerable.offset)
        if self._store.failed is not None:
            self._store_failed(self._store.failed)
        else:
            self.release_if_possible()

    def _congestion(self) -> str:
        """What senders have to wait for, empty if nothing."""
        store = self._store
        behind = store.written.offset - store.flushed.offset
        if behind > store.config.unflushed_bytes_max:
            return f"the disk is {behind} bytes behind"
        waiting = store.written.offset - store.answerable.offset
        if waiting > self._net.inflight_bytes_max:
            return f"{waiting} bytes wait for the disk (inflight_bytes_max)"
        if store.log.is_cramped and not self._gate.has(NO_ROOM):
            return "the next log file is not ready yet"
        return ""

    def _hold_if_congested(self, connection: Connection) -> None:
        """Sockets wait first; when that has lasted for too long, the gate answers instead, and nobody is held."""
        if self._gate.has(CONGESTED) or not self._congestion():
            return
        if not self._held:
            self._held_since = self._clock.liveness()
            self._store.request_flush()
        self._held.add(connection)
        connection.pause()

    def release_if_possible(self) -> None:
        """The disk, or the next log file, has made progress."""
        if (self._held or self._gate.has(CONGESTED)) and not self._congestion():
            self._gate.open(CONGESTED)
            self._release()

    def _release(self) -> None:
        held, self._held = self._held, set()
        for connection in held:
            connection.resume()

    def check_waiting(self, flush_timeout_s: float) -> None:
        """From time to time: whoever waits for the disk for too long gets an answer."""
        now = self._clock.liveness()
        for connection, acks, _since, size in self._store.flushed.give_up(lambda w: now - w[2] > flush_timeout_s):
            text = "stored, but the disk has not confirmed it in time"
            connection.send(with_code(acks, ResponseCode.FLUSH_DISK_TIMEOUT, text))
            connection.settle(size)
        self.release_if_possible()
        if self._held and now - self._held_since > _CONGESTION_S:
            self._gate.close(CONGESTED, Busy(f"[PCBUSY] {self._congestion()}: try again later"))
            self._release()

    def _store_failed(self, why: str) -> None:
        """Nothing can be stored any more: everybody who waits is told so, and so is everybody who comes."""
        error = NotAvailable(f"the store is read-only: {why}; check the disk and restart the broker")
        self._gate.close(FAILED, error, for_all=True)
        for mark in (self._store.written, self._store.flushed):
            for connection, acks, _since, size in mark.give_up():
                connection.send(unknown(acks, why))
                connection.settle(size)
        self._release()


class _Coroutine:
    """Somebody of our own who waits as a connection does."""

    def __init__(self, future: asyncio.Future[None], is_stored: Callable[[], bool]) -> None:
        self.future = future
        self._is_stored = is_stored

    def send(self, data: bytes) -> None:
        if self.future.done():
            return  # nobody waits any more
        if self._is_stored():
            self.future.set_result(None)
        else:
            self.future.set_exception(
                NotAvailable("not known to be stored: the disk failed or did not confirm in time")
            )

    def owe(self, size: int) -> None: ...

    def settle(self, size: int) -> None: ...


def send_acks(reached: list[Waiter]) -> None:
    for connection, acks, _since, size in reached:
        connection.send(acks)
        if size:
            connection.settle(size)


def unknown(acks: bytes, why: str) -> bytes:
    """Answers to sends that may or may not survive a restart."""
    return with_code(acks, ResponseCode.SERVICE_NOT_AVAILABLE, f"not known to be stored: {why}")


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
