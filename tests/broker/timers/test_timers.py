"""Timers: never early, to the millisecond, once; in any order, after any end."""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import random
import shutil
import threading
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from kappamq.broker.timers.upcoming import Bucket, Timer, Upcoming
from kappamq.errors import NotAvailable, StoreDamaged
from kappamq.protocol.codes import ResponseCode
from kappamq.protocol.names import TIMER_TOPIC
from kappamq.protocol.recall import RecallHandle
from kappamq.store.files import Files
from kappamq.store.timer.entries import ROLL_MS, UNIT
from tests.broker.running import crash_copy, run, running, speaking
from tests.broker.timing import START_MS, MessageClock, timed
from tests.dialogue import Scenario, Script, scripts
from tests.store.stores import kernels
from tests.waiting import eventually_async


@pytest.mark.parametrize("flush", ["async", "sync"])
def test_many_in_the_same_second(tmp_path: Path, flush: str) -> None:
    async def scenario() -> None:
        dice = random.Random(5)
        dues = [START_MS + 5000 + dice.randrange(1000) for _ in range(3000)]
        async with timed(tmp_path, kernels()[-1], store={"flush": flush}) as it:
            await asyncio.gather(
                *(it.send(b"%d" % number, key=f"K{number}", TIMER_DELIVER_MS=due) for number, due in enumerate(dues))
            )
            await it.settle()
            assert it.broker.delivery_tables.timer_metrics.total == 3000
            for until in (4999, 5250, 5251, 5999):
                await it.pass_ms(START_MS + until - it.clock.message_ms())
                found = [dues[int(body)] for body in await it.bodies()]
                assert found == sorted(due for due in dues if due <= START_MS + until)

    run(scenario())


@pytest.mark.parametrize("damage", ["garbage", "cut off", "zeros"])
def test_damaged_files_are_built_again(tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with timed(tmp_path) as it:
            for number in range(20):
                await it.send(b"%d" % number, TIMER_DELAY_MS=60_000 + number)
            await it.pass_ms(30_000)
        path = tmp_path / "timerlog" / f"{0:020d}"
        size = path.stat().st_size
        with path.open("r+b") as file:
            if damage == "cut off":
                file.truncate(100)
            else:
                file.seek(520)
                file.write((b"?" if damage == "garbage" else b"\0") * 300)
        async with timed(tmp_path, clock=MessageClock(START_MS + 30_000)) as it:
            await it.pass_ms(30_019)
            assert sorted(await it.bodies(), key=int) == [b"%d" % number for number in range(20)]
            assert "rebuilding the timer files" in caplog.text
        assert path.stat().st_size == size

    run(scenario())


def test_no_timers_no_files_no_thread(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with timed(tmp_path) as it:
            await it.send(b"plain")
            await it.send(b"level", DELAY=1)
            await it.pass_ms(5000)
            assert not it.broker.delivery.timers._pool._threads
        assert not (tmp_path / "timerwheel").exists()
        assert not (tmp_path / "config" / "timercheck").exists()

    run(scenario())


def test_timer_files_that_cannot_be_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Full(Files):
        full = True

        def pwrite(self, fd: int, data: bytes | memoryview, at: int) -> None:
            if self.full and len(data) == 52:
                raise OSError(28, "No space left on device")
            super().pwrite(fd, data, at)

    async def scenario() -> None:
        files = Full()
        async with timed(tmp_path, files=files) as it:
            await it.send(b"a", TIMER_DELAY_MS=500)
            await it.settle()
            await it.pass_ms(1000)
            assert await it.bodies() == []
            assert "timer files cannot be used" in caplog.text
            files.full = False
            await it.pass_ms(5000)
            assert await it.bodies() == [b"a"]

    run(scenario())


def test_nothing_is_lost_in_the_hurry(tmp_path: Path) -> None:
    """On the clock of the wall: sends and deliveries at the same time, many of them due at once."""

    async def scenario() -> None:
        async with running(tmp_path, kernels()[-1]) as broker, speaking(broker) as client:
            dice = random.Random(7)
            for number in range(400):
                text = f"UNIQ_KEY\x01K{number}\x02TIMER_DELAY_MS\x01{dice.randrange(1, 300)}\x02"
                assert (await client.send("tea", b"%d" % number, 0, text)).code == 0
            await eventually_async(lambda: broker.kernel.queue_state("tea", 0).end == 400, timeout=20)
            records = await client.read("tea")
            assert sorted(int(record.body) for record in records) == list(range(400))
            for record in records:
                assert record.stored_ms >= int(record.property_map()["TIMER_DELIVER_MS"])

    run(scenario())


def test_a_stop_after_the_log_has_failed_loses_nothing(tmp_path: Path) -> None:
    """Copies that were appended but never written do not count as delivered, whatever the timer files say."""

    def failing() -> None:
        raise OSError(5, "Input/output error")

    async def scenario() -> None:
        bodies = [b"%d" % number for number in range(10)]
        async with timed(tmp_path) as it:
            for number, body in enumerate(bodies):
                await it.send(body, TIMER_DELIVER_MS=START_MS + 5000 + number * 10)
            await it.pass_ms(3000)
            it.broker.store.log.write = failing  # type: ignore[method-assign, assignment]
            it.clock.advance(ms=2200)
            it.broker.delivery.agenda.wake()
            await eventually_async(lambda: it.broker.store.failed is not None)
            assert it.broker.delivery.timers.delivered == 10
        async with timed(tmp_path, clock=MessageClock(START_MS + 6000)) as it:
            await it.settle()
            assert await it.bodies() == bodies

    run(scenario())


@pytest.mark.parametrize("code", [errno.EMFILE, errno.EIO])
def test_timer_files_that_cannot_be_opened(tmp_path: Path, code: int) -> None:
    """One try every five seconds, and one job; files that are only out of reach for now are not thrown away."""

    class Short(Files):
        tries = removed = 0
        failing = False

        def open(self, path: Path, *arguments: Any, **options: Any) -> int:
            if self.failing and "timer" in path.name:
                self.tries += 1
                raise OSError(code, os.strerror(code))
            return super().open(path, *arguments, **options)

        def remove(self, path: Path) -> None:
            self.removed += path.name == "timerwheel"
            super().remove(path)

    async def scenario() -> None:
        files = Short()
        async with timed(tmp_path, files=files) as it:
            await it.send(b"x", TIMER_DELAY_MS=60_000)
            await it.settle()
            files.failing, files.removed = True, 0
            await it.send(b"y", TIMER_DELAY_MS=60_000)
            await it.settle()
            for _ in range(3):
                await it.pass_ms(5000)
                await it.pass_ms(1)
            assert files.tries <= 8
            files.failing = False
            await it.pass_ms(45_000)
            assert await it.bodies() == [b"x", b"y"]
            assert bool(files.removed) == (code == errno.EIO)

    run(scenario())


def test_built_again_while_one_is_entered(tmp_path: Path) -> None:
    """What was found out about the files before does not count for the new ones."""

    async def scenario() -> None:
        async with timed(tmp_path, store={"flush": "sync"}) as it:
            timers, loop = it.broker.delivery.timers, asyncio.get_running_loop()
            for number in range(5):
                await it.send(b"%d" % number, TIMER_DELIVER_MS=START_MS + 60_000 + number)
            await it.send(b"near", TIMER_DELIVER_MS=START_MS + 10_000)
            await it.settle()
            seen, rebuild = it.broker.delivery.copies.visible, timers._book.rebuild
            waiting, building = asyncio.Event(), asyncio.Event()
            gone_on = threading.Event()

            async def slowly_seen(end: int) -> None:
                waiting.set()
                await building.wait()
                await seen(end)
                loop.call_later(0.02, gone_on.set)  # whoever waited has handed in what follows

            def slow_rebuild(*arguments: Any) -> Any:
                loop.call_soon_threadsafe(building.set)
                assert gone_on.wait(10)
                return rebuild(*arguments)

            it.broker.delivery.copies.visible = slowly_seen  # type: ignore[method-assign, assignment]
            timers._book.rebuild = slow_rebuild  # type: ignore[method-assign]
            await it.send(b"new", TIMER_DELIVER_MS=START_MS + 61_000)
            await asyncio.wait_for(waiting.wait(), 10)
            timers._let_go(StoreDamaged("a damaged unit"))
            it.broker.delivery.agenda.wake()
            await it.settle()
            await it.pass_ms(100_000)
            assert await it.bodies() == [b"near", b"0", b"1", b"2", b"3", b"4", b"new"]

    run(scenario())


def test_a_recall_outlives_a_crash_between_it_and_its_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wish was due to go on while the broker was away; it is done with, its message is next, and the broker is killed."""
    monkeypatch.setattr("kappamq.broker.delivery.record_copies.GROUP_MAX", 1)

    async def scenario() -> None:
        due = START_MS + ROLL_MS * 3 // 2
        clock = MessageClock(due + 60_000)
        async with timed(tmp_path / "a") as it:
            await it.send(b"far", key="K", TIMER_DELIVER_MS=due)
            await it.send(b"other", TIMER_DELIVER_MS=due)
            await it.pass_ms(3_600_000)
            await it.recall(RecallHandle("tea", "b", due, "K"))
            await it.pass_ms(ROLL_MS - 1_800_000)
        async with timed(tmp_path / "a", clock=clock) as it:
            progress = it.broker.delivery_tables.timer_progress
            store_copies = it.broker.delivery.copies.append_copies

            def only_the_wish(copies: Any, changes: Any) -> None:
                if copies:
                    raise NotAvailable("the disk is full")
                store_copies(copies, changes)

            it.broker.delivery.copies.append_copies = only_the_wish  # type: ignore[method-assign]
            it.broker.delivery.agenda.wake()
            await eventually_async(lambda: bool(progress.recalls))
            await it.broker.delivery.appender.answerable(it.broker.kernel.append_offset)
            await crash_copy(it.broker, tmp_path / "b")
        async with timed(tmp_path / "b", clock=clock) as it:
            await it.settle()
            assert await it.bodies() == [b"other"]
            await it.send(b"later", TIMER_DELAY_MS=5000)
            await it.pass_ms(5000)
            assert it.broker.delivery_tables.timer_progress.recalls == {}, "forgotten with the second of its message"

    run(scenario())


def test_an_overdue_crowd_is_not_held_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files are lost, and meanwhile the time of everything has come: it passes through memory a little at a time."""
    monkeypatch.setattr("kappamq.broker.timers.timers.ENTER_MAX", 16)
    monkeypatch.setattr("kappamq.broker.timers.timers._LOAD_BELOW", 20)
    monkeypatch.setattr("kappamq.broker.timers.timers._LOAD_MAX", 40)
    monkeypatch.setattr("kappamq.broker.timers.timers._NEAR_MAX", 60)
    most = 0

    class Watched(Upcoming):
        def add(self, timer: Timer) -> None:
            super().add(timer)
            self.look()

        def load(self, buckets: list[Bucket]) -> None:
            super().load(buckets)
            self.look()

        def look(self) -> None:
            nonlocal most
            most = max(most, len(self))

    async def scenario() -> None:
        dues = {}
        async with timed(tmp_path) as it:
            for number in range(600):
                body = b"%d" % number
                dues[body] = it.clock.message_ms() + 60_000 + number * 37 % 7000
                await it.send(body, TIMER_DELIVER_MS=dues[body])
                it.clock.advance(ms=20)
            await it.settle()
        shutil.rmtree(tmp_path / "timerlog")
        monkeypatch.setattr("kappamq.broker.timers.due.Upcoming", Watched)
        async with timed(tmp_path, clock=MessageClock(START_MS + 3_600_000)) as it:
            await it.settle()
            found = await it.bodies()
            assert sorted(found, key=int) == sorted(dues, key=int)
            assert [dues[body] for body in found] == sorted(dues.values())
        assert 0 < most < 200

    run(scenario())


def test_a_crowd_is_delivered_though_many_more_come_for_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is entered while a long load is under way waits in memory behind it: that must not keep the rest from being loaded."""
    for name, value in {"ENTER_MAX": 10, "_LOAD_BELOW": 40, "_LOAD_MAX": 50, "_NEAR_MAX": 400}.items():
        monkeypatch.setattr(f"kappamq.broker.timers.timers.{name}", value)

    async def scenario() -> None:
        async with timed(tmp_path) as it:
            for second in range(40):
                for number in range(50):
                    due = START_MS + 60_000 + second * 1000 + 1 + number
                    await it.send(b"c%d" % (second * 50 + number), TIMER_DELIVER_MS=due)
            await it.settle()
        async with timed(tmp_path, clock=MessageClock(START_MS + 3_600_000)) as it:
            for batch in range(60):
                await asyncio.gather(
                    *(it.send(b"n%d" % (batch * 10 + number), TIMER_DELAY_MS=1500 + number) for number in range(10))
                )
            await it.pass_ms(10_000)
            assert len(await it.bodies()) == 2600

    run(scenario())


def test_a_load_that_fails_is_done_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with timed(tmp_path) as it:
            for number in range(5):
                await it.send(b"%d" % number, TIMER_DELAY_MS=60_500 + number)
            await it.settle()
        async with timed(tmp_path, clock=MessageClock(START_MS + 30_000)) as it:
            book = it.broker.delivery.timers._book
            load = book.load

            def fail_once(*arguments: Any) -> Any:
                book.load = load  # type: ignore[method-assign]
                raise MemoryError("for once")

            book.load = fail_once  # type: ignore[method-assign]
            it.clock.advance(ms=60_000)
            it.broker.delivery.agenda.wake()
            await eventually_async(lambda: it.broker.delivery.timers.delivered == 5)

    run(scenario())


def test_a_unit_that_is_due_outside_its_slot_is_damage(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with timed(tmp_path) as it:
            for number in range(5):
                await it.send(b"%d" % number, TIMER_DELAY_MS=60_500 + number)
            await it.settle()
        with (tmp_path / "timerlog" / f"{0:020d}").open("r+b") as file:
            at = 2 * UNIT.size + UNIT.size - 8
            file.seek(at)
            due = int.from_bytes(file.read(8), "big")
            file.seek(at)
            file.write((due ^ 1 << 16).to_bytes(8, "big"))  # one bit
        async with timed(tmp_path, clock=MessageClock(START_MS + 30_000)) as it:
            await it.pass_ms(60_000)
            assert await it.bodies() == [b"0", b"1", b"2", b"3", b"4"]
            assert "rebuilding the timer files" in caplog.text

    run(scenario())


class Dialogue:
    """A broker on a message clock that stands still, topic `tea`. Times are ms from its start; `d` are days, `h` hours."""

    def __init__(self, folder: Path, mode: str) -> None:
        self.folder, self.mode = folder, mode
        self.life = 0
        self.clock = MessageClock()
        self.options: dict[str, Any] = {}
        self.end = AsyncExitStack()

    async def given_broker(self, *, delay_max_s: int = 259_200) -> None:
        self.options = {"timer_delay_max_s": delay_max_s}
        await self._start(self.folder / "0")

    async def _start(self, root: Path, **options: Any) -> None:
        self.root = root
        self.it = await self.end.enter_async_context(
            timed(root, self.mode, clock=self.clock, **(self.options | options))
        )
        await self.it.settle()

    async def when_stopped(self, *, away: str = "0") -> None:
        """And started again, after so long."""
        await self.end.aclose()
        self.clock = MessageClock(self.clock.message_ms() + ms(away))
        await self._start(self.root)

    async def when_killed(self, *, away: str = "0") -> None:
        """As kill -9 leaves it; the process that is left over ends without touching the copy."""
        self.life += 1
        photo = await crash_copy(self.it.broker, self.folder / str(self.life))
        await self.end.aclose()
        self.clock = MessageClock(self.clock.message_ms() + ms(away))
        await self._start(photo)

    async def when_stopped_and_timers_are_off(self) -> None:
        await self.end.aclose()
        await self._start(self.root, timers=False)

    async def when_send(self, body: str, *pairs: str, key: str = "") -> str | None:
        """`at=` stands for TIMER_DELIVER_MS, counted from the start; the rest are properties as they are."""
        named = dict(pair.split("=", 1) for pair in pairs)
        if "at" in named:
            named["TIMER_DELIVER_MS"] = str(START_MS + ms(named.pop("at")))
        text = "".join(f"{name}\x01{value}\x02" for name, value in {"UNIQ_KEY": key or body, **named}.items())
        answer = await self.it.client.send("tea", body.encode(), 0, text)
        return f"{body}: {ResponseCode(answer.code).name}: {answer.remark}" if answer.code else None

    async def when_send_into_the_timer_topic(self) -> str:
        properties = f"UNIQ_KEY\x01U\x02TIMER_OUT_MS\x01{START_MS}\x02"
        answer = await self.it.client.send(TIMER_TOPIC, b"x", 0, properties)
        return ResponseCode(answer.code).name

    async def when_send_many(self, count: int, *, first: str) -> None:
        """Bodies 0, 1, 2 ... are due one after the other, each a millisecond later."""
        for number in range(count):
            assert await self.when_send(str(number), f"at={ms(first) + number}") is None

    async def when_recall(self, key: str, *, at: str) -> None:
        await self.it.recall(RecallHandle("tea", "b", START_MS + ms(at), key))

    async def when_writes_are_refused(self) -> None:
        await self.it.settle()
        self.it.broker.gate.close("test", NotAvailable("no room for now"))

    def when_writes_are_allowed(self) -> None:
        self.it.broker.gate.open("test")

    async def when_time_passes(self, duration: str) -> None:
        await self.it.pass_ms(ms(duration))

    async def then_delivered(self) -> str:
        await self.it.settle()
        return f"{self.clock.message_ms() - START_MS} ms: {b' '.join(await self.it.bodies()).decode() or 'nothing'}"

    async def then_delivered_count(self) -> str:
        """With the order checked: bodies are numbers."""
        bodies = [int(body) for body in await self.it.bodies()]
        assert bodies == list(range(len(bodies)))
        return f"{self.clock.message_ms() - START_MS} ms: {len(bodies)}"

    async def then_record(self, body: str) -> list[str]:
        """Times as they are in its properties, from the start."""
        (record,) = [record for record in await self.it.read() if record.body == body.encode()]
        source = self.it.broker.store.decoded(record.prepared_offset)
        assert source is not None
        pairs = record.property_map()
        return [
            f"copy of {source.body.decode()} in {source.topic}",
            *(
                f"{name} {int(value) - START_MS if int(value) > START_MS // 2 else value}"
                for name, value in sorted(pairs.items())
                if name.startswith("TIMER_")
            ),
        ]

    async def then_pending(self) -> str:
        await self.it.settle()
        return f"pending {self.it.broker.delivery_tables.timer_metrics.total}, next {self.it.broker.delivery.agenda.next_ms()}"


def ms(text: str) -> int:
    """5, 5s, 2h, 3d"""
    units = {"s": 1000, "h": 3_600_000, "d": 86_400_000}
    return int(text[:-1]) * units[text[-1]] if text[-1] in units else int(text)


@pytest.mark.parametrize("mode", kernels())
@scripts(__file__, "timers")
def test_timers(tmp_path: Path, script: Script, mode: str) -> None:
    folders = (tmp_path / str(number) for number in itertools.count())

    async def played(scenario: Scenario) -> None:
        dialogue = Dialogue(next(folders), mode)
        async with dialogue.end:
            await scenario.play(dialogue)

    script.replay(lambda scenario: run(played(scenario)))
