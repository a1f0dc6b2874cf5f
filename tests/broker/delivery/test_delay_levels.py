"""Delay levels: not early, in order, once, and with RocketMQ's file."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kappamq.errors import NotAvailable
from kappamq.protocol import fastjson
from kappamq.protocol.bodies.admin import DelayOffsets
from kappamq.protocol.codes import ResponseCode
from kappamq.protocol.headers.admin import GetAllDelayOffsets
from kappamq.protocol.names import SCHEDULE_TOPIC
from kappamq.store import snapshots
from tests.broker.running import crash_copy, on_disk, run
from tests.broker.timing import START_MS, MessageClock, timed
from tests.store.stores import kernels


@pytest.mark.parametrize("mode", kernels())
def test_each_level_waits_its_time(tmp_path: Path, mode: str) -> None:
    async def scenario() -> None:
        async with timed(tmp_path, mode) as it:
            for level in (2, 1, 18, 3, 99):
                await it.send(b"%d" % level, queue_id=2, DELAY=level)
            await it.send(b"at once", queue_id=2, DELAY=0)
            await it.send(b"at once, too", queue_id=2, DELAY=-1)
            assert await it.bodies(queue_id=2) == [b"at once", b"at once, too"]
            steps = [(999, 0), (1, 1), (3999, 1), (1, 2), (4999, 2), (1, 3), (7_189_999, 3), (1, 5)]
            for ms, count in steps:
                await it.pass_ms(ms)
                assert (await it.bodies(queue_id=2))[2:] == [b"1", b"2", b"3", b"18", b"99"][:count]
            first = (await it.read(queue_id=2))[2]
            parked = it.broker.store.entry(SCHEDULE_TOPIC, 0, 0)
            assert parked is not None
            assert first.prepared_offset == parked[0], "the copy names its source"
            assert parked[2] == START_MS + 1000
            names = first.property_map()
            assert (names["REAL_TOPIC"], names["REAL_QID"], names["DELAY"]) == ("tea", "2", "1")
            assert (first.born_ms, first.stored_ms) == (1_700_000_000_000, START_MS + 1000)
            assert it.broker.delivery.agenda.next_ms() is None

    run(scenario())


@pytest.mark.parametrize("clean", [True, False])
def test_a_restart_neither_forgets_nor_repeats(tmp_path: Path, clean: bool) -> None:
    async def scenario() -> None:
        async with timed(tmp_path / "a") as it:
            for number in range(200):
                await it.send(b"%d" % number, DELAY=1)
            await it.pass_ms(500)
            await it.send(b"later", DELAY=1)
            await it.pass_ms(500)
            assert len(await it.bodies()) == 200
            if not clean:
                await crash_copy(it.broker, tmp_path / "b")
        again = tmp_path / ("a" if clean else "b")
        async with timed(again, clock=MessageClock(START_MS + 1000)) as it:
            await it.settle()
            assert len(await it.bodies()) == 200
            assert it.broker.delivery.delays.position(1) == 200
            await it.pass_ms(499)
            assert len(await it.bodies()) == 200
            await it.pass_ms(1)
            assert await it.bodies() == [b"%d" % number for number in range(200)] + [b"later"]

    run(scenario())


def test_positions_in_rocketmqs_file(tmp_path: Path) -> None:
    async def scenario() -> None:
        path = tmp_path / "config" / "delayOffset.json"
        async with timed(tmp_path) as it:
            for number in range(4):
                await it.send(b"%d" % number, DELAY=2)
            await it.pass_ms(5000)
            told = DelayOffsets.decode((await it.client.ask(GetAllDelayOffsets())).body)
            assert told.offsets == {2: 4}
        table = snapshots.decode(path.read_bytes())
        assert table.table["offsetTable"] == {"2": 4}
        assert table.log_offset is not None
        # A Java broker writes it without our stamp: it is the truth then, in both directions, within what there is.
        for offset, expected in [(1, 4 + 3), (99, 7)]:
            path.write_bytes(
                fastjson.pretty(
                    {"dataVersion": {"counter": 9, "stateVersion": 0, "timestamp": 1}, "offsetTable": {2: offset}}
                )
            )
            async with timed(tmp_path, clock=MessageClock(START_MS + 9000)) as it:
                await it.settle()
                assert len(await it.bodies()) == expected
                assert it.broker.delivery.delays.position(2) == 4

    run(scenario())


def test_nonsense_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with timed(tmp_path) as it:
            for text in ("x", "1.5", "9" * 30, "3 "):
                answer = await it.client.send("tea", b"x", 0, f"UNIQ_KEY\x01U\x02DELAY\x01{text}\x02")
                assert answer.code == ResponseCode.MESSAGE_ILLEGAL
                assert "DELAY must be an integer" in (answer.remark or "")
            await it.send(b"fine")
            assert await it.bodies() == [b"fine"]

    run(scenario())


def test_a_deleted_topic_and_damage_cost_nobody_else_anything(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with timed(tmp_path) as it:
            await it.send(b"lost", DELAY=1)
            await it.send(b"gone", topic="gone", DELAY=1)
            await it.send(b"good", DELAY=1)
            it.broker.topics.delete("gone")
            lost = it.broker.store.entry(SCHEDULE_TOPIC, 0, 0)
            assert lost is not None
            log = it.broker.store.log
            fd = log.fd_at(lost[0])
            assert fd is not None
            it.broker.store.files.pwrite(fd, b"?", lost[0] + 86)
            await it.pass_ms(1000)
            assert await it.bodies() == [b"good"]
            assert "cannot be read" in caplog.text
            assert "was deleted" in caplog.text

    run(scenario())


def test_what_cannot_be_stored_now_is_delivered_later(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with timed(tmp_path) as it:
            await it.send(b"a", DELAY=1)
            it.broker.gate.close("test", NotAvailable("no room for now"))
            await it.pass_ms(1000)
            await it.pass_ms(1000)
            assert await it.bodies() == []
            assert caplog.text.count("no room for now") == 1
            it.broker.gate.open("test")
            await it.pass_ms(1000)
            assert await it.bodies() == [b"a"]

    run(scenario())


def test_a_copy_that_no_record_can_hold_is_passed_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with timed(tmp_path) as it:
            for body in (b"a", b"b", b"c"):
                await it.send(body, DELAY=1)
            append_group = it.broker.delivery.copies._kernel.append_group

            def choosy(members: list[tuple[object, ...]], now_ms: int) -> object:
                if any(member[8] == b"b" for member in members):
                    raise ValueError("properties are too long")
                return append_group(members, now_ms)

            class Choosy:
                def __getattr__(self, name: str) -> object:
                    return choosy if name == "append_group" else getattr(it.broker.kernel, name)

            it.broker.delivery.copies._kernel = Choosy()
            await it.pass_ms(1000)
            assert await it.bodies() == [b"a", b"c"]
            assert "skipped" in caplog.text

    run(scenario())


@pytest.mark.parametrize("mode", kernels())
def test_cold_messages_are_read_by_a_worker(tmp_path: Path, mode: str) -> None:
    async def scenario() -> None:
        async with timed(tmp_path, mode) as it:
            await asyncio.gather(*(it.send(b"%d" % number, DELAY=1) for number in range(700)))
            await it.send(b"young", DELAY=2)
        async with timed(tmp_path, mode, clock=MessageClock(START_MS + 1000)) as it:
            await it.settle()  # everything is cold after a start
            assert sorted(map(int, await it.bodies())) == list(range(700))
            await it.pass_ms(4000)
            assert len(await it.bodies()) == 701

    run(scenario())


def test_retention_waits_for_the_delayed(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = {
            "segment_bytes": 1 << 16,
            "message_bytes_max": 10_000,
            "retention_hours": 0,
            "delete_hours": tuple(range(24)),
        }
        # Files are as old as the machine says: a clock that is ahead of it makes them expire.
        async with timed(tmp_path, store=store, clock=MessageClock(4_000_000_000_000)) as it:
            await it.send(b"first", DELAY=18)
            for _ in range(20):
                await it.send(b"x" * 9000)
            await on_disk(it.broker)
            await it.broker.upkeep.delete_expired(asked=True)
            assert it.broker.store.log.min == 0
            await it.pass_ms(7_200_000)
            assert (await it.bodies())[-1] == b"first"
            await it.broker.upkeep.delete_expired(asked=True)
            assert it.broker.store.log.min > 0
            assert it.broker.delivery.delays.needed_from > it.broker.store.log.min

    run(scenario())


def test_sync_flush_shows_copies_only_when_they_are_safe(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with timed(tmp_path, store={"flush": "sync"}) as it:
            await it.send(b"a", DELAY=1)
            await it.pass_ms(1000)
            assert await it.bodies() == [b"a"]

    run(scenario())


def test_what_just_fitted_when_it_was_sent_is_delivered(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with timed(tmp_path) as it:
            accepted = 0
            for size in range(32_700, 32_460, -12):
                text = f"UNIQ_KEY\x01U{size}\x02DELAY\x011\x02long\x01" + "x" * size
                accepted += (await it.client.send("tea", b"%d" % size, 0, text)).code == 0
            assert 0 < accepted < 20, "some are too long, some just fit"
            await it.pass_ms(1000)
            assert len(await it.bodies()) == accepted

    run(scenario())


def test_a_power_cut_takes_copies_and_position_back_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The snapshot of the positions is written behind the log, not before it."""

    async def scenario() -> None:
        monkeypatch.setenv("KAPPAMQ_BOOT_ID", "one")
        async with timed(tmp_path / "a", store={"flush_interval_ms": 3_600_000}) as it:
            await it.send(b"precious", DELAY=1)
            await it.broker.writer.confirmed(it.broker.kernel.append_offset)
            await it.broker.upkeep.write_derived()
            await it.pass_ms(1000)
            assert await it.bodies() == [b"precious"]
            await it.broker.upkeep._record_and_save(last=True)
            flushed = it.broker.store.marks.flushed.offset
            await crash_copy(it.broker, tmp_path / "b")
        with min((tmp_path / "b" / "commitlog").iterdir()).open("r+b") as file:
            file.seek(flushed)  # the power fails: what was not flushed is gone
            file.write(bytes(4096))
        monkeypatch.setenv("KAPPAMQ_BOOT_ID", "two")
        async with timed(tmp_path / "b") as it:
            await it.pass_ms(10_000)
            assert await it.bodies() == [b"precious"]

    run(scenario())
