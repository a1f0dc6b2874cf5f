"""The one way into the log: turns, answers that wait for a mark, answers that change their mind, senders that are held."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from kappamq import native
from kappamq.broker.sending.gate import NO_ROOM, Gate
from kappamq.broker.sending.log_writer import LogWriter, unknown, with_code
from kappamq.clock import VirtualClock
from kappamq.errors import NotAvailable
from kappamq.protocol.codes import ResponseCode
from kappamq.protocol.frame import Frame, FrameDecoder
from kappamq.protocol.headers.client import GetMaxOffset
from kappamq.store.log.marks import AsyncFlush, SyncCopies
from kappamq.store.message_store import MessageStore
from tests.broker.running import MODES, run, running, speaking
from tests.store.faulty import FilesWithFlusher, SlowFlusher
from tests.store.stores import BOOT, config, kernels, make
from tests.waiting import eventually_async as eventually

KERNELS = kernels()
TIMEOUT_S = 5.0


class Peer:
    """Waits for answers, and can be paused: as much of a connection as the log writer sees."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.owed = 0
        self.paused = False

    def send(self, data: bytes) -> None:
        self.sent.append(data)

    def owe(self, size: int) -> None:
        self.owed += size

    def settle(self, size: int) -> None:
        self.owed -= size

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False


class Desk:
    """A log writer on a store whose disk syncs when the test says so."""

    def __init__(self, root: Path, kind: str, **settings: Any) -> None:
        wanted = config(root, **settings)
        plain = make(wanted, kind)
        self.store = MessageStore(wanted, native.load(kind), plain.kernel, FilesWithFlusher(SlowFlusher))
        self.store.open(BOOT)
        self.disk = SlowFlusher.made
        self.clock = VirtualClock()
        self.gate = Gate(self.store.kernel)
        self.writer = LogWriter(self.store, self.gate, self.clock, 1 << 20)

    def append(self, body: bytes = b"x") -> int:
        now = self.clock.message_ms()
        at, _number, size = self.writer.append(
            lambda: self.store.kernel.append("t", 0, 0, 0, now, bytes(8), 0, 0, body, b"", now)
        )
        return int(at) + int(size)

    def sync(self) -> None:
        """The disk has everything that was written."""
        self.store.request_flush()
        self.disk.sync()
        self.writer.flush_done()


def at_desk(root: Path, kind: str, test: Callable[[Desk], Coroutine[Any, Any, None]], **settings: Any) -> None:
    async def main() -> None:
        desk = Desk(root, kind, **settings)
        try:
            await test(desk)
        finally:
            desk.disk.sync()
            desk.store.close(clean=desk.store.failed is None)

    asyncio.run(asyncio.wait_for(main(), 30))


@pytest.mark.parametrize("kind", KERNELS)
def test_without_sync_flush_answers_leave_at_the_end_of_the_turn(tmp_path: Path, kind: str) -> None:
    async def test(desk: Desk) -> None:
        peer = Peer()
        end = desk.append()
        desk.writer.park(peer, b"answer", end, 100)
        assert (peer.sent, peer.owed) == ([], 0), "not before the write; nothing piles up that is charged"
        await asyncio.sleep(0)
        assert peer.sent == [b"answer"]
        marks = desk.store.marks
        assert (
            marks.answerable.offset == marks.visible.offset == marks.dispatched.offset == end > marks.confirmed.offset
        )
        desk.sync()
        assert marks.confirmed.offset == end

    at_desk(tmp_path, kind, test)


@pytest.mark.parametrize("kind", KERNELS)
def test_nobody_is_late_who_waits_for_the_end_of_the_turn(tmp_path: Path, kind: str) -> None:
    """The look at those who wait for too long may come between an append and the end of its turn."""

    async def test(desk: Desk) -> None:
        peer = Peer()
        desk.clock.advance(1000.0)
        desk.writer.park(peer, Frame(code=0, opaque=1, flag=1).encode(), desk.append(), 100)
        desk.writer.check_waiting(TIMEOUT_S)
        assert peer.sent == []
        await asyncio.sleep(0)
        (answer,) = FrameDecoder().feed(peer.sent[0])
        assert answer.code == 0

    at_desk(tmp_path, kind, test)


@pytest.mark.parametrize("kind", KERNELS)
def test_with_sync_flush_answers_wait_for_the_disk(tmp_path: Path, kind: str) -> None:
    async def test(desk: Desk) -> None:
        peer, hasty = Peer(), Peer()
        end = desk.append()
        desk.writer.park(peer, b"answer", end, 100)
        desk.writer.park(hasty, b"written", end, 7, flushed=False)
        await asyncio.sleep(0)
        assert (peer.sent, peer.owed) == ([], 100)
        assert (hasty.sent, hasty.owed) == ([b"written"], 0)
        marks = desk.store.marks
        assert marks.written.offset == end > marks.dispatched.offset, "nobody sees what a power cut may take back"
        desk.sync()
        assert (peer.sent, peer.owed) == ([b"answer"], 0)
        assert marks.dispatched.offset == end

    at_desk(tmp_path, kind, test, flush="sync")


@pytest.mark.parametrize("kind", KERNELS)
def test_what_becomes_visible_later_is_read_back_over_the_end_of_a_file(tmp_path: Path, kind: str) -> None:
    async def test(desk: Desk) -> None:
        count = 3 * desk.store.config.segment_bytes // 2000
        for _ in range(count):
            desk.append(bytes(1500))
        desk.writer.end_turn()
        assert desk.store.log.end > 2 * desk.store.config.segment_bytes
        assert desk.store.kernel.queue_state("t", 0).end == 0
        desk.sync()
        assert desk.store.kernel.queue_state("t", 0).end == count
        assert desk.store.marks.dispatched.offset == desk.store.log.end

    at_desk(tmp_path, kind, test, flush="sync")


@pytest.mark.parametrize("kind", KERNELS)
def test_a_page_of_the_map_that_is_lost_is_read_from_the_file(tmp_path: Path, kind: str) -> None:
    async def test(desk: Desk) -> None:
        desk.append(b"read me")
        desk.writer.end_turn()
        desk.store.log.slice = lambda offset, size: memoryview(bytes(size))  # type: ignore[method-assign]
        desk.sync()
        assert desk.store.failed is None
        assert desk.store.kernel.queue_state("t", 0).end == 1

    at_desk(tmp_path, kind, test, flush="sync")


@pytest.mark.parametrize("flush", ["async", "sync"])
def test_a_failure_that_a_write_finds_closes_the_gate_at_once(tmp_path: Path, flush: str) -> None:
    async def test(desk: Desk) -> None:
        desk.append()
        desk.store.fail("the test says so")
        desk.writer.end_turn()
        desk.gate.open(NO_ROOM)
        assert not desk.store.kernel.accepting
        with pytest.raises(NotAvailable, match="the test says so"):
            desk.append()

    at_desk(tmp_path, "twin", test, flush=flush)


@pytest.mark.parametrize("kind", KERNELS)
@pytest.mark.parametrize("flush", ["async", "sync"])
def test_what_is_visible_is_in_its_queue(tmp_path: Path, kind: str, flush: str) -> None:
    async def test(desk: Desk) -> None:
        waiting = desk.writer.visible(desk.append())
        await asyncio.sleep(0)
        assert waiting.done() == (flush == "async")
        desk.sync()
        await waiting
        assert desk.store.kernel.queue_state("t", 0).end == 1

    at_desk(tmp_path, kind, test, flush=flush)


@pytest.mark.parametrize("flush", ["async", "sync"])
def test_confirmed_is_what_a_power_cut_cannot_take_back(tmp_path: Path, flush: str) -> None:
    async def test(desk: Desk) -> None:
        end = desk.append()
        waiting = desk.writer.confirmed(end)
        await asyncio.sleep(0)
        assert not waiting.done()
        desk.sync()
        await waiting
        assert desk.writer.confirmed(end).done(), "and later it is so at once"

    at_desk(tmp_path, "twin", test, flush=flush)


def test_all_who_wait_for_the_disk_in_a_turn_share_a_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(desk: Desk) -> None:
        writes: list[int] = []
        write = desk.store.write
        monkeypatch.setattr(desk.store, "write", lambda now_ms: writes.append(now_ms) or write(now_ms))
        waiting = [desk.writer.confirmed(desk.append()) for _ in range(3)]
        assert not writes
        await asyncio.sleep(0)
        assert len(writes) == 1
        assert desk.disk.behind == desk.store.log.end, "the disk was asked for all of it, and by nobody else"
        desk.disk.sync()
        desk.writer.flush_done()
        await asyncio.gather(*waiting)

    at_desk(tmp_path, "twin", test)


def test_the_disk_follows_what_nobody_waits_for_yet(tmp_path: Path) -> None:
    async def test(desk: Desk) -> None:
        size = desk.append()
        desk.writer.flush_along(size)
        await asyncio.sleep(0)
        assert desk.disk.behind == 0, "that few may be behind"
        end = desk.append()
        desk.writer.flush_along(size)
        await asyncio.sleep(0)
        assert desk.disk.behind == end
        desk.disk.sync()
        desk.writer.flush_done()
        assert desk.store.marks.confirmed.offset == end
        desk.append()
        desk.writer.flush_along(size)
        await asyncio.sleep(0)
        assert desk.disk.behind == 0

    at_desk(tmp_path, "twin", test)


@pytest.mark.parametrize("flush", ["async", "sync"])
def test_a_disk_that_fails_is_told_to_everybody_who_waits(tmp_path: Path, flush: str) -> None:
    async def test(desk: Desk) -> None:
        peer = Peer()
        end = desk.append()
        desk.writer.park(peer, Frame(code=0, opaque=1, flag=1).encode(), end, 100)
        waiting = desk.writer.confirmed(end)
        desk.writer.end_turn()
        desk.disk.break_down()
        desk.writer.flush_done()
        with pytest.raises(NotAvailable, match="not known to be stored"):
            await waiting
        (answer,) = FrameDecoder().feed(peer.sent[0])
        assert answer.code == (ResponseCode.SUCCESS if flush == "async" else ResponseCode.SERVICE_NOT_AVAILABLE)
        assert peer.owed == 0
        with pytest.raises(NotAvailable, match="read-only"):
            desk.append()

    at_desk(tmp_path, "twin", test, flush=flush)


class Slaves:
    """What a master knows of its slaves, as the test says."""

    def __init__(self) -> None:
        self.end = 0
        self.why: str | None = None

    def held(self) -> int:
        return self.end

    def missing(self) -> str | None:
        return self.why


def codes(peer: Peer) -> list[tuple[int, str]]:
    return [(one.code, one.remark or "") for data in peer.sent for one in FrameDecoder().feed(data)]


def test_a_promise_that_slaves_do_not_keep_is_told_to_those_who_asked_for_it(tmp_path: Path) -> None:
    async def test(desk: Desk) -> None:
        slaves = Slaves()
        desk.writer.take_mode(SyncCopies(AsyncFlush(), slaves, 3.0))
        answer = Frame(code=0, opaque=7).encode()
        kept, broken, late = Peer(), Peer(), Peer()
        first = desk.append()
        desk.writer.park(kept, answer, first, 10)
        second = desk.append()
        desk.writer.park(broken, answer, second, 10)
        desk.writer.end_turn()
        assert (kept.owed, broken.owed) == (10, 10)
        slaves.end = first
        slaves.why = "no slave is there"
        desk.writer.follow_marks()
        assert (kept.owed, broken.owed) == (0, 0)
        assert codes(kept) == [(0, "")], "a slave has it, whether or not it is still there"
        assert codes(broken) == [(ResponseCode.SLAVE_NOT_AVAILABLE, "stored, but no slave is there")]
        desk.writer.park(late, answer, second, 10)
        assert codes(late) == [(ResponseCode.SLAVE_NOT_AVAILABLE, "stored, but no slave is there")]

    at_desk(tmp_path, "twin", test)


def test_a_role_that_ends_keeps_its_promise_or_says_that_it_does_not(tmp_path: Path) -> None:
    async def test(desk: Desk) -> None:
        slaves = Slaves()
        desk.writer.take_mode(SyncCopies(AsyncFlush(), slaves, 3.0))
        peer = Peer()
        desk.writer.park(peer, Frame(code=0, opaque=7).encode(), desk.append(), 10)
        desk.writer.end_turn()
        slaves.why = "no slave is there"
        desk.writer.take_mode(AsyncFlush())
        assert codes(peer) == [(ResponseCode.SLAVE_NOT_AVAILABLE, "stored, but no slave is there")]

    at_desk(tmp_path, "twin", test)


def test_what_may_not_be_stored_is_not_called_stored_for_want_of_slaves(tmp_path: Path) -> None:
    async def test(desk: Desk) -> None:
        slaves = Slaves()
        desk.writer.take_mode(SyncCopies(AsyncFlush(), slaves, 3.0))
        peer = Peer()
        desk.writer.park(peer, Frame(code=0, opaque=7).encode(), desk.append(), 10)
        desk.writer.end_turn()
        slaves.why = "no slave is there"
        desk.writer.give_up("the disk is gone")
        assert codes(peer) == [(ResponseCode.SERVICE_NOT_AVAILABLE, "not known to be stored: the disk is gone")]

    at_desk(tmp_path, "twin", test)


def test_a_sender_is_held_while_the_disk_is_behind_and_refused_when_that_lasts(tmp_path: Path) -> None:
    async def test(desk: Desk) -> None:
        peer = Peer()
        for _ in range(40):
            desk.append(bytes(2000))
        desk.writer.end_turn()
        desk.writer.hold_if_congested(peer)
        assert peer.paused
        desk.sync()
        assert not peer.paused
        for _ in range(40):
            desk.append(bytes(2000))
        desk.writer.end_turn()
        desk.writer.hold_if_congested(peer)
        desk.clock.advance(2.0)
        desk.writer.check_waiting(TIMEOUT_S)
        assert not peer.paused, "the gate refuses now, nobody is held"
        with pytest.raises(Exception, match="PCBUSY"):
            desk.append()
        desk.sync()
        desk.append()

    at_desk(tmp_path, "twin", test, unflushed_bytes_max=64 << 10)


# -- answers with another code ---------------------------------------------------------------------------------------------


def test_answers_get_another_code_one_by_one() -> None:
    answers = [
        Frame(code=0, opaque=1, flag=1, ext={"msgId": "A", "queueId": "0"}),
        Frame(code=0, opaque=2, flag=1, ext={"msgId": "B" * 300}, binary=True),
        Frame(code=0, opaque=3, flag=1, remark="fine", body=b"with a body"),
    ]
    changed = with_code(
        b"".join(frame.encode() for frame in answers), ResponseCode.FLUSH_DISK_TIMEOUT, "the disk is slow — wait"
    )
    frames = FrameDecoder().feed(changed)
    assert [frame.opaque for frame in frames] == [1, 2, 3]
    assert {(frame.code, frame.remark, frame.flag) for frame in frames} == {
        (ResponseCode.FLUSH_DISK_TIMEOUT, "the disk is slow — wait", 1)
    }
    assert [frame.binary for frame in frames] == [False, True, False]
    assert [frame.ext for frame in frames] == [frame.ext for frame in answers], "where it was stored is still told"
    assert frames[2].body == b"with a body"


def test_no_answers_stay_none() -> None:
    assert with_code(b"", ResponseCode.SYSTEM_ERROR, "x") == b""


def test_whoever_may_have_been_stored_is_told_that_nobody_knows() -> None:
    (frame,) = FrameDecoder().feed(unknown(Frame(code=0, opaque=9, flag=1).encode(), "errno 5"))
    assert (frame.code, frame.remark) == (ResponseCode.SERVICE_NOT_AVAILABLE, "not known to be stored: errno 5")


@pytest.mark.parametrize("mode", MODES)
def test_real_answers_of_the_kernel_are_changed(tmp_path: Path, mode: str) -> None:
    """Many sends in one read, their answers parked together: each gets its own, with what it said before."""

    async def test() -> None:
        store = {"flush": "sync", "sync_flush_timeout_ms": 100}
        async with running(tmp_path, mode, flusher=SlowFlusher, store=store) as broker, speaking(broker) as client:
            SlowFlusher.made.sync()
            asked = asyncio.ensure_future(client.ask(GetMaxOffset(topic="t", queue_id=0)))
            await asked
            sends = [asyncio.ensure_future(client.send("t", b"%d" % n)) for n in range(20)]
            answers = await asyncio.gather(*sends)
            assert {answer.code for answer in answers} == {ResponseCode.FLUSH_DISK_TIMEOUT}
            assert [int(answer.ext["queueOffset"]) for answer in answers] == list(range(20))
            assert all("not confirmed it in time" in (answer.remark or "") for answer in answers)
            SlowFlusher.made.sync()
            await eventually(lambda: broker.store.marks.flushed.offset == broker.store.log.end)
            assert len(await client.read("t")) == 20, "it was stored after all"
            connection = next(iter(broker.server.connections))
            assert connection._owed_bytes == 0
            SlowFlusher.made.sync()

    run(test())
