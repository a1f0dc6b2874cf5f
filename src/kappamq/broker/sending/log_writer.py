"""The only writer of the log: append, write once per turn, answer when the mark is reached, hold senders when the disk is behind.

A *turn* is one round of the event loop. Everything appended in it, by the kernel or by the broker itself, gathers in the kernel's
buffer; at its end one write brings it to the log, and the answers that this makes possible leave. Answers that have to wait longer (for the
disk, for copies) are parked on a mark of the log. This file does not know connections: a peer that waits for an answer is a `Waiting`.

Rules of this file:
- No sender is answered before the mark of the mode has passed what it stored, and every sender is answered: with success, with the
  mode's code if the mark is late, or with "not known to be stored" if the store has failed.
- What is written and not yet flushed is bounded: senders are paused first, then the gate refuses.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any, Protocol

from kappamq.broker.events import LogFilePrepared
from kappamq.broker.sending.gate import CONGESTED, FAILED, NO_ROOM, Gate
from kappamq.broker.telemetry.latency import PutLatency
from kappamq.clock import Clock
from kappamq.errors import Busy, IllegalMessage, MaybeStored, NotAvailable, StoreReadOnly
from kappamq.protocol.codes import FLAG_RESPONSE, ResponseCode
from kappamq.protocol.frame import decode
from kappamq.protocol.leader_hint import not_known
from kappamq.store.log.marks import Mode
from kappamq.store.message_store import MessageStore

_CONGESTION_S = 1.0


class Waiting(Protocol):
    """Gets answers that waited for the log; until then it is charged for what it sent."""

    def send(self, data: bytes) -> None: ...

    def owe(self, size: int) -> None: ...

    def settle(self, size: int) -> None: ...


class Sender(Protocol):
    """Can be paused while the disk is behind."""

    def pause(self) -> None: ...

    def resume(self) -> None: ...


Waiter = tuple[Waiting, bytes, float, int, int]
"""The waiting peer, the answers, since when (liveness time), the bytes charged, and the end of the message if the mode's whole promise was
asked for (else 0)."""


class Incoming(Protocol):
    """Bytes of another broker's log that are to be stored here."""

    start: int

    @property
    def data(self) -> memoryview: ...

    def stored(self, end: int) -> None: ...


class LogWriter:
    def __init__(
        self,
        store: MessageStore,
        gate: Gate,
        clock: Clock,
        inflight_bytes_max: int,
        finish_preparing: Callable[[], None] = lambda: None,
    ) -> None:
        """`finish_preparing`: waits for the worker that makes the next log file."""
        self._store = store
        self._marks = store.marks
        self._gate = gate
        self._clock = clock
        self._inflight_bytes_max = inflight_bytes_max
        self._loop = asyncio.get_running_loop()
        self.latency = PutLatency(clock.liveness, store.put_count)
        self.turn_ms: int | None = None  # message time of the turn, once something was appended in it
        self._flush_at_end = False  # of the turn: somebody waits for the disk
        self._congested = False  # as of the end of the last turn: connections that send more are paused
        self._held: set[Sender] = set()
        self._held_since = 0.0
        self._finish_preparing = finish_preparing

    # -- appending ---------------------------------------------------------------------------------------------------------

    def append(self, append: Callable[[], Any], *, own: bool = False) -> Any:
        """Run `append` (a call of the kernel), making room if there is none, and return what it says. The turn is set.

        With `own` it is a record of the broker itself, which may use the room that is refused to users."""
        while True:
            self._gate.check(own=own)
            try:
                appended = append()
            except self._store.kernel_module.SegmentFull:
                if not self.make_room():
                    self._gate.check()
                    size = self._store.config.segment_bytes
                    raise IllegalMessage(
                        f"it does not fit into a log file of {size} bytes: send less at once"
                    ) from None
                continue
            self.set_turn()
            self.turn_ms = self._clock.message_ms()  # it carries its own time: nothing behind it may be older
            return appended

    def make_room(self) -> bool:
        """The kernel has no room: write what is pending, and if that was not it, go on in the next file. False: no use."""
        log_files = self._store.log
        before = log_files.end
        try:
            release(self._store.write(self._clock.message_ms()), self._marks.mode)
            if log_files.end == before:
                if log_files.is_fresh:
                    return False  # more than a whole file
                if not log_files.next_is_ready:
                    self._finish_preparing()
                release(self._store.roll(), self._marks.mode)
            return not self._has_failed()
        except StoreReadOnly as error:
            if self._store.failed is not None:
                self._fail(str(error))
            else:
                # No next file: the disk is full. Nothing is lost, reading goes on; upkeep tries again and reopens.
                self._gate.close(NO_ROOM, NotAvailable(f"{error}; free some space, writing resumes by itself"))
            return False

    def receive(self, incoming: Incoming) -> None:
        """Store what is whole of a master's log. Raises StoreReadOnly, and ForeignBytes for what does not fit ours."""
        store = self._store
        while len(incoming.data):
            if store.log.is_cramped_behind(incoming.start + len(incoming.data)):
                self._finish_preparing()  # an end mark among them needs the next file, and nobody else may make it then
            end = self.store_copy(incoming.start, incoming.data)
            if end == incoming.start:
                break  # the rest of it is still to come
            incoming.stored(end)
        # Nothing was received, but the master may show more of what we have.
        self.follow_marks()

    def store_copy(self, log_offset: int, data: memoryview) -> int:
        """Store what is whole of a leader's log, up to the end of a file; returns the log's new end. Raises StoreReadOnly, ForeignBytes."""
        try:
            end, reached = self._store.receive(log_offset, data)
        except StoreReadOnly as error:
            if self._store.failed is not None:
                self._fail(str(error))
            raise
        release(reached, self._marks.mode)
        return end

    def cut(self, offset: int) -> None:
        """End the log there; senders that wait for what lies behind hear that it is not known to be stored. Raises StoreReadOnly."""
        for waiting, answers, _since, size, _promised in self._store.cut(offset):
            waiting.send(unknown(answers, "another broker leads now"))
            waiting.settle(size)

    def take_mode(self, mode: Mode) -> None:
        """The marks of the log move by another mode from now on."""
        former = self._marks.mode
        release(self._store.take_mode(mode), former)

    def follow_marks(self) -> None:
        """Something has changed that the marks depend on, outside of this node."""
        release(self._store.follow_marks(), self._marks.mode)

    # -- waiting -----------------------------------------------------------------------------------------------------------

    def park(self, waiting: Waiting, answers: bytes, end: int, size: int, *, flushed: bool = True) -> None:
        """Send `answers` when the log is answerable up to `end` (with flushed=False: as soon as it is written).

        `size` bytes are charged to `waiting` for as long as that takes longer than this turn."""
        flushed = flushed or self._marks.mode.waits_always
        mark = self._marks.answerable if flushed else self._marks.written
        promised = end if flushed and answers else 0
        if end <= mark.offset:
            release([(waiting, answers, 0, 0, promised)], self._marks.mode)
        elif self._store.failed is not None:
            waiting.send(unknown(answers, self._store.failed))
        elif self._marks.mode.in_turn:
            # nothing piles up that would have to be charged or be late
            mark.wait(end, (waiting, answers, math.inf, 0, promised))
        else:
            waiting.owe(size)
            mark.wait(end, (waiting, answers, self._clock.liveness(), size, promised))

    def answerable(self, end: int, *, flushed: bool = True) -> asyncio.Future[None]:
        """Done when a message up to `end` may be answered (with flushed=False: is written); fails with NotAvailable."""
        self.set_turn()
        mark = self._marks.answerable if flushed or self._marks.mode.waits_always else self._marks.written
        waiter = _Coroutine(self._loop.create_future(), lambda: mark.offset >= end)
        self.park(waiter, b"", end, 0, flushed=flushed)
        return waiter.future

    def visible(self, end: int) -> asyncio.Future[None]:
        """Done when consumers may see the log up to `end`, and it is in the queues; fails with NotAvailable."""
        self.set_turn()
        mark = self._marks.visible
        waiter = _Coroutine(self._loop.create_future(), lambda: mark.offset >= end)
        if self._store.failed is not None or not mark.wait(end, (waiter, b"", self._clock.liveness(), 0, 0)):
            waiter.send(b"")
        return waiter.future

    def confirmed(self, end: int) -> asyncio.Future[None]:
        """Done when nobody can take back the log up to `end`, whatever the mode demands of answers; fails with NotAvailable."""
        mark = self._marks.confirmed
        waiter = _Coroutine(self._loop.create_future(), lambda: mark.offset >= end)
        if self._store.failed is not None or not mark.wait(end, (waiter, b"", self._clock.liveness(), 0, 0)):
            waiter.send(b"")
        elif end > self._store.log.end:
            self._flush_this_turn()  # with whatever else is appended in it
        else:
            self._store.request_flush()
        return waiter.future

    def flush_along(self, behind_max: int) -> None:
        """Ask for an fdatasync if more bytes than that are not on disk, so that a later wait for the last of them is short."""
        if self._store.append_offset - self._marks.flushed.offset > behind_max:
            self._flush_this_turn()

    def _flush_this_turn(self) -> None:
        self._flush_at_end = True
        self.set_turn()

    def when_flushed(self, end: int, then: Callable[[], None]) -> None:
        """Ask for an fdatasync, and call `then` when the log is on disk up to `end`, or is known not to get there."""
        if self._store.failed is None and self._marks.flushed.wait(
            end, (_Call(then), b"", self._clock.liveness(), 0, 0)
        ):
            self._store.request_flush()

    # -- the turn ----------------------------------------------------------------------------------------------------------

    def set_turn(self, now_ms: int | None = None) -> None:
        """Something was appended: write it when all readable connections were served."""
        if self.turn_ms is None:
            self.turn_ms = self._clock.message_ms() if now_ms is None else now_ms
            self.latency.began()
            self._loop.call_soon(self.end_turn)

    def end_turn(self, now_ms: int | None = None) -> None:
        """`now_ms`: what it is by the records that were appended, if not by our clock."""
        self.turn_ms = None
        flush, self._flush_at_end = self._flush_at_end, False
        try:
            reached = self._store.write(self._clock.message_ms() if now_ms is None else now_ms)
            if flush:
                self._store.request_flush()
        except StoreReadOnly as error:
            self._fail(str(error))
            return
        release(reached, self._marks.mode)
        self.latency.written(self._marks.written.offset, self._store.put_count)
        self.latency.reached(self._marks.answerable.offset)
        self._congested = bool(self._congestion())
        if self._store.failed is not None:
            self._fail(self._store.failed)

    def flush_done(self) -> None:
        """The flusher's descriptor is readable."""
        release(self._store.flush_done(), self._marks.mode)
        self.latency.reached(self._marks.answerable.offset)
        if not self._has_failed():
            self.release_if_possible()

    def check_waiting(self, timeout_s: float) -> None:
        """Called periodically: senders that have waited for a mark for too long get an answer."""
        now, marks = self._clock.liveness(), self._marks
        patience_s = marks.mode.patience_s(timeout_s, marks.written.offset, marks.flushed.offset)
        for mark in (marks.answerable, marks.visible, marks.confirmed):
            limit_s = patience_s if mark is marks.answerable else timeout_s
            for waiting, answers, _since, size, _promised in mark.give_up(
                lambda waiter, limit_s=limit_s: now - waiter[2] > limit_s  # type: ignore[misc]
            ):
                late = marks.mode.late(marks.written.offset, marks.flushed.offset)
                waiting.send(with_code(answers, late.code, late.why))
                waiting.settle(size)
        self.release_if_possible()
        if self._held and now - self._held_since > _CONGESTION_S:
            self._gate.close(CONGESTED, Busy(f"[PCBUSY] {self._congestion()}: try again later"))
            self._release_held()

    # -- congestion --------------------------------------------------------------------------------------------------------

    def _congestion(self) -> str:
        """What senders have to wait for, empty if nothing."""
        store, marks = self._store, self._marks
        behind = marks.written.offset - marks.flushed.offset
        if behind > store.config.unflushed_bytes_max:
            return f"the disk is {behind} bytes behind"
        waiting = marks.written.offset - marks.answerable.offset
        if waiting > self._inflight_bytes_max:
            return f"{waiting} bytes wait for the disk (inflight_bytes_max)"
        if store.log.is_cramped and not self._gate.has(NO_ROOM):
            return "the next log file is not ready yet"
        return ""

    def hold_if_congested(self, sender: Sender) -> None:
        """Pause a sender while the disk is behind. When that has lasted for too long the gate refuses instead."""
        if not self._congested or self._gate.has(CONGESTED) or not self._congestion():
            return
        if not self._held:
            self._held_since = self._clock.liveness()
            self._store.request_flush()
        self._held.add(sender)
        sender.pause()

    def forget(self, sender: Sender) -> None:
        """Its connection is lost."""
        self._held.discard(sender)

    def release_if_possible(self) -> None:
        """The disk, or the next log file, has made progress."""
        if (self._held or self._gate.has(CONGESTED)) and not self._congestion():
            self._gate.open(CONGESTED)
            self._release_held()

    def log_file_prepared(self, event: LogFilePrepared) -> None:
        self.release_if_possible()

    def _release_held(self) -> None:
        held, self._held = self._held, set()
        for sender in held:
            sender.resume()

    def give_up(self, why: str) -> None:
        """Senders that still wait are answered that it is not known whether their messages are stored."""
        for mark in self._marks.all():
            for waiting, answers, _since, size, _promised in mark.give_up():
                waiting.send(unknown(answers, why))
                waiting.settle(size)
        self._release_held()

    # -- failure -----------------------------------------------------------------------------------------------------------

    def _has_failed(self) -> bool:
        """Whether the store has failed; then the gate refuses, and senders that wait are answered with the failure."""
        if self._store.failed is not None:
            self._fail(self._store.failed)
        return self._store.failed is not None

    def _fail(self, why: str) -> None:
        """Nothing can be stored any more: senders that wait are answered so, and new ones are refused."""
        error = NotAvailable(f"the store is read-only: {why}; check the disk and restart the broker")
        self._gate.close(FAILED, error, for_all=True)
        self.give_up(why)


class _Coroutine:
    """A coroutine of the broker that waits as a connection does."""

    def __init__(self, future: asyncio.Future[None], is_reached: Callable[[], bool]) -> None:
        self.future = future
        self._is_reached = is_reached

    def send(self, data: bytes) -> None:
        if self.future.done():
            return  # nobody waits any more
        if self._is_reached():
            self.future.set_result(None)
        else:
            self.future.set_exception(
                MaybeStored.because("the disk failed, or neither it nor the group has confirmed it in time")
            )

    def owe(self, size: int) -> None: ...

    def settle(self, size: int) -> None: ...


class _Call:
    """Something to be done when a mark is reached."""

    def __init__(self, then: Callable[[], None]) -> None:
        self._then = then

    def send(self, data: bytes) -> None:
        self._then()

    def owe(self, size: int) -> None: ...

    def settle(self, size: int) -> None: ...


def release(reached: list[Waiter], mode: Mode) -> None:
    """Send the answers whose mark was reached. A sender that was promised more than the mode could keep gets the missing guarantee's
    code instead of success."""
    if mode.lacks:
        reached = [_with_shortfall(waiter, mode) for waiter in reached]
    for waiting, answers, _since, size, _promised in reached:
        waiting.send(answers)
        if size:
            waiting.settle(size)


def _with_shortfall(waiter: Waiter, mode: Mode) -> Waiter:
    waiting, answers, since, size, promised = waiter
    lacking = mode.shortfall(promised) if promised else None
    if lacking is None:
        return waiter
    return waiting, with_code(answers, lacking.code, lacking.why), since, size, 0


def unknown(answers: bytes, why: str) -> bytes:
    """Answers to sends that may or may not survive a restart."""
    return with_code(answers, ResponseCode.SERVICE_NOT_AVAILABLE, not_known(why))


def with_code(answers: bytes, code: ResponseCode, remark: str) -> bytes:
    """The same answers with another code: the kernel wrote them when all was still well."""
    changed: list[bytes] = []
    position = 0
    while position < len(answers):
        end = position + 4 + int.from_bytes(answers[position : position + 4], "big")
        frame = decode(answers[position:end])
        frame.code, frame.remark, frame.flag = code, remark, FLAG_RESPONSE
        changed.append(frame.encode())
        position = end
    return b"".join(changed)
