"""Every outcome of a wall clock that lies, with a clock that the test holds; `test_wall_clock.py` shifts a real one."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest

from kappamq.broker.upkeep.clock_watch import ClockTable, boot_of, duration, when
from kappamq.clock import SETTLE_MS
from kappamq.protocol.bodies.topics import KVTable
from kappamq.protocol.headers.admin import GetBrokerRuntimeInfo
from kappamq.protocol.headers.client import QueryMessage, SearchOffset, SendBack
from kappamq.protocol.recall import RecallHandle
from kappamq.state.metadata import TOPIC
from kappamq.store.log.clock_steps import ClockStep
from kappamq.store.reader import StoreReader
from kappamq.store.verify.verify import verify
from tests.broker.running import crash_copy, on_disk, run
from tests.broker.timing import START_MS, MessageClock, Timed, timed
from tests.waiting import eventually_async

DAY_MS = 86_400_000
DAY_S = 86_400
LEVELS = {"delay_levels": "1s 5s 10s"}


async def set_clock(it: Timed, seconds: float) -> None:
    """Set the wall clock; returns when the broker has noticed and has done what is due then."""
    jumps = it.broker.clock_watch.jumps
    it.clock.jump(seconds)
    await eventually_async(lambda: it.broker.clock_watch.jumps > jumps, text="the jump is noticed")
    await it.settle()


def clock_records(it: Timed) -> list[dict[str, Any]]:
    store, found = it.broker.store, []
    for offset in range(store.kernel.queue_state(TOPIC, 0).end):
        entry = store.entry(TOPIC, 0, offset)
        record = store.decoded(entry[0]) if entry is not None else None
        said = json.loads(record.body) if record is not None else {"kind": ""}
        if said["kind"] == "clock":
            found.append(said["change"])
    return found


def test_delays_of_all_kinds_outlast_a_day_of_one_second(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with timed(tmp_path, **LEVELS) as it:
            await it.send(b"level before", DELAY=3)
            await it.send(b"delay before", TIMER_DELAY_MS=10_000)
            await it.send(b"time within the jump", TIMER_DELIVER_MS=START_MS + DAY_MS // 2)
            await it.send(b"time behind the jump", TIMER_DELIVER_MS=START_MS + DAY_MS + 60_000)
            await it.pass_ms(500)
            await set_clock(it, DAY_S)
            # The jump itself is early, and nothing else: who asked for a delay waits on.
            assert await it.bodies() == [b"time within the jump"]
            await it.send(b"level during", DELAY=3)
            await it.send(b"delay during", TIMER_DELAY_MS=10_000)
            await it.pass_ms(1000)
            assert await it.bodies() == [b"time within the jump"]
            await set_clock(it, -DAY_S)
            await it.send(b"level after", DELAY=3)
            await it.send(b"delay after", TIMER_DELAY_MS=10_000)
            await it.send(b"time after", TIMER_DELIVER_MS=START_MS + 12_000)
            assert await it.bodies() == [b"time within the jump"]
            seen = {}
            for ms in range(1501, 13_000, 100):
                await it.pass_ms(START_MS + ms - it.clock.message_ms())
                for body in await it.bodies():
                    seen.setdefault(body, ms)
            assert {body: ms // 500 * 500 for body, ms in seen.items() if body != b"time within the jump"} == {
                b"level before": 10_000, b"delay before": 10_000, b"level during": 10_500, b"delay during": 10_500,
                b"level after": 11_500, b"delay after": 11_500, b"time after": 12_000,
            }  # fmt: skip
            assert len(await it.bodies()) == 8, "nothing came twice"
            await it.pass_ms(DAY_MS + 60_000)
            assert len(await it.bodies()) == 9

    with caplog.at_level(logging.WARNING):
        run(test())
    told = [record.getMessage() for record in caplog.records if "the wall clock was set " in record.getMessage()]
    assert any("forward by 1 days" in text or "forward by 24 hours" in text for text in told)
    assert "was set back by" in told[-1], "the last word about the clock is that it is right again"


def test_a_jump_is_marked_in_the_log_and_told(tmp_path: Path) -> None:
    async def test() -> None:
        async with timed(tmp_path) as it:
            await it.send(b"x")
            end = it.broker.kernel.append_offset
            await set_clock(it, DAY_S)
            await it.send(b"y")
            (mark,) = [record for record in clock_records(it) if "step" in record]
            assert mark["step"] == [end, DAY_MS, START_MS + DAY_MS]
            assert [record.stored_ms for record in await it.read()] == [START_MS, START_MS + DAY_MS]
            answer = await it.client.ask(GetBrokerRuntimeInfo())
            table = KVTable.decode(answer.body).table
            assert table["kappamqClock"].startswith("was set forward")
            assert table["kappamqClockJumps"] == "1 since the start, 1 in this store"
            assert table["kappamqClockLastJump"] == f"{START_MS} -> {START_MS + DAY_MS}"
        async with timed(tmp_path, clock=it.clock) as it:
            assert it.broker.tables.clock.jumps == 1
            assert it.broker.clock_watch.jumps == 0

    run(test())


@pytest.mark.parametrize("ends", ["clean", "crash"])
@pytest.mark.parametrize("when_set_back", ["before the restart", "while no broker ran", "after the restart"])
def test_over_a_restart(tmp_path: Path, ends: str, when_set_back: str) -> None:
    """Same start of the machine: how the clocks stand to each other is known."""

    async def test() -> None:
        clock = MessageClock()
        async with timed(tmp_path / "store", clock=clock, **LEVELS) as it:
            await it.send(b"before", DELAY=3)
            await it.send(b"timer before", TIMER_DELAY_MS=10_000)
            await it.send(b"absolute", TIMER_DELIVER_MS=START_MS + 5_000)
            await it.broker.upkeep._record_and_save()  # what is kept about the clock is in its file
            await set_clock(it, DAY_S)
            assert await it.bodies() == [b"absolute"]
            await it.send(b"during", DELAY=3)
            await it.send(b"timer during", TIMER_DELAY_MS=10_000)
            if when_set_back == "before the restart":
                await set_clock(it, -DAY_S)
            it.broker.writer.end_turn()
            root = tmp_path / "store"
            if ends == "crash":
                root = await crash_copy(it.broker, tmp_path / "crashed")
        if when_set_back == "while no broker ran":
            clock.jump(-DAY_S)
        clock.advance(2)
        async with timed(root, clock=clock, **LEVELS) as it:
            await it.settle()
            if when_set_back == "after the restart":
                await set_clock(it, -DAY_S)
            assert it.broker.clock.message_ms() == START_MS + 2000
            await it.send(b"after", DELAY=3)
            await it.send(b"timer after", TIMER_DELIVER_MS=START_MS + 12_000)
            assert await it.bodies() == [b"absolute"]
            await it.pass_ms(7999)
            assert await it.bodies() == [b"absolute"]
            await it.pass_ms(1)
            assert sorted(await it.bodies()) == [b"absolute", b"before", b"during", b"timer before", b"timer during"]
            await it.pass_ms(2000)
            assert sorted((await it.bodies())[5:]) == [b"after", b"timer after"]
        async with timed(root, clock=clock, **LEVELS) as it:
            await it.pass_ms(2 * DAY_MS)
            assert len(await it.bodies()) == 7, "nothing comes twice, and nothing is left"

    run(test())


def test_retries_and_transactions_go_on(tmp_path: Path) -> None:
    async def test() -> None:
        async with timed(tmp_path, transaction_timeout_ms=6000) as it:
            await it.send(b"half", TRAN_MSG="true", PGROUP="pg")
            await it.pass_ms(1000)
            await set_clock(it, DAY_S)
            checks = it.broker.delivery.checks
            assert checks.due_ms() == START_MS + DAY_MS + 6000
            await it.pass_ms(1000)
            await set_clock(it, -DAY_S)
            assert checks.due_ms() == START_MS + 6000
            (half,) = it.broker.delivery.halves.halves.below(1 << 60, 10)
            assert half.since_ms == START_MS
        async with timed(tmp_path, clock=it.clock, transaction_timeout_ms=6000) as it:
            assert it.broker.delivery.checks.due_ms() == START_MS + 6000

    run(test())


def test_what_a_consumer_sends_back_comes_again_in_time(tmp_path: Path) -> None:
    async def test() -> None:
        async with timed(tmp_path, **LEVELS) as it:
            await it.client.subscribe("g", "tea")
            for number, jump in enumerate((DAY_S, -DAY_S, 0)):
                await it.send(b"%d" % number)
                record = (await it.read())[-1]
                answer = await it.client.ask(
                    SendBack(log_offset=record.log_offset, group="g", delay_level=2, origin_topic="tea")
                )
                assert answer.code == 0, answer.remark
                if jump:
                    await set_clock(it, jump)
            assert await it.bodies("%RETRY%g") == []
            await it.pass_ms(4999)
            assert await it.bodies("%RETRY%g") == []
            await it.pass_ms(1)
            assert sorted(await it.bodies("%RETRY%g")) == [b"0", b"1", b"2"]

    run(test())


def test_the_store_is_in_good_order_and_others_can_read_it_by_time(tmp_path: Path) -> None:
    async def test() -> None:
        async with timed(tmp_path) as it:
            for number in range(9):
                if number in (3, 6):
                    await set_clock(it, DAY_S if number == 3 else -DAY_S)
                await it.send(b"%d" % number, key=f"U{number}", KEYS="k")
                await it.pass_ms(10_000)

    run(test())
    report = verify(tmp_path, index_slots=997, index_entries=10_000)
    assert report.ok, report
    reader = StoreReader(tmp_path, index_slots=997, index_entries=10_000)
    assert [reader.offset_at("tea", 0, START_MS + 10_000 * number - 1) for number in range(10)] == list(range(10))
    found = reader.by_key("tea", "k", begin_ms=START_MS + 40_000, end_ms=START_MS + 70_000)
    assert [record.body for record in found] == [b"4", b"5", b"6", b"7"]


def test_a_half_of_the_wrong_time_is_asked_about_at_the_right_one(tmp_path: Path) -> None:
    async def test() -> None:
        async with timed(tmp_path, transaction_timeout_ms=6000) as it:
            await set_clock(it, DAY_S)
            await it.send(b"half", TRAN_MSG="true", PGROUP="pg")
            await set_clock(it, -DAY_S)
            assert it.broker.delivery.checks.due_ms() == START_MS + 6000
        async with timed(tmp_path, clock=it.clock, transaction_timeout_ms=6000) as it:
            assert it.broker.delivery.checks.due_ms() == START_MS + 6000

    run(test())


def test_search_by_time_and_query_by_key_and_time(tmp_path: Path) -> None:
    async def test() -> None:
        async with timed(tmp_path) as it:
            for number in range(30):
                if number == 10:
                    await set_clock(it, DAY_S)
                if number == 20:
                    await set_clock(it, -DAY_S)
                await it.send(b"%d" % number, key=f"U{number}", KEYS="k")
                await it.pass_ms(10_000)

            async def offset_at(ms: int) -> int:
                answer = await it.client.ask(SearchOffset(topic="tea", queue_id=0, timestamp=ms))
                return int(answer.ext["offset"])

            for number in range(30):
                at_ms = START_MS + number * 10_000
                assert await offset_at(at_ms) == number
                assert await offset_at(at_ms - 5000) == number
            assert await offset_at(START_MS + 300_000) == 30

            async def keyed(begin_ms: int, end_ms: int, key: str = "k") -> list[bytes]:
                header = QueryMessage(topic="tea", key=key, count_max=64, begin_ms=begin_ms, end_ms=end_ms)
                answer = await it.client.ask(header)
                return [] if answer.code else sorted(record.body for record in iter_records(answer.body))

            assert await keyed(START_MS + 50_000, START_MS + 70_000) == [b"5", b"6", b"7"]
            assert await keyed(START_MS + 250_000, START_MS + 270_000) == [b"25", b"26", b"27"]
            assert await keyed(START_MS + 150_000, START_MS + 170_000) == [b"15", b"16", b"17"]
            # Who looks for the times that the records show finds them as well.
            assert await keyed(START_MS + DAY_MS + 150_000, START_MS + DAY_MS + 170_000) == [b"15", b"16", b"17"]
            assert await keyed(0, 1 << 60, "U15") == [b"15"]

    from kappamq.protocol.records.record import iter_records

    run(test())


def test_a_clock_that_stands_still_holds_up_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with timed(tmp_path, **LEVELS) as it:
            await it.send(b"level", DELAY=2)
            await it.send(b"delay", TIMER_DELAY_MS=5000)
            for _ in range(49):
                it.clock.stand_still(0.1)
                it.broker.clock_watch.look()
            await it.settle()
            assert it.broker.clock_watch.runtime()["kappamqClock"] == "stands still"
            assert await it.bodies() == []
            it.clock.stand_still(0.1)
            it.broker.clock_watch.look()
            await it.settle()
            assert sorted(await it.bodies()) == [b"delay", b"level"]
            await it.send(b"next", DELAY=2)
            await it.pass_ms(1)  # it moves again, from where it stood: five seconds behind
            await eventually_async(lambda: it.broker.clock_watch.jumps == 1)
            await it.pass_ms(4998)
            assert len(await it.bodies()) == 2
            await it.pass_ms(1)
            assert len(await it.bodies()) == 3

    with caplog.at_level(logging.WARNING):
        run(test())
    assert "the wall clock stands still" in caplog.text
    assert "the wall clock moves again" in caplog.text


def test_a_clock_that_is_behind_at_the_start_of_the_machine(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No battery: it begins in 1970, until a time server is heard. Nobody knows how long the machine was down."""
    monkeypatch.setenv("KAPPAMQ_BOOT_ID", "one")

    async def test() -> None:
        async with timed(tmp_path, **LEVELS) as it:
            await it.send(b"level", DELAY=3)
            await it.send(b"delay", TIMER_DELAY_MS=10_000)
            await it.send(b"time", TIMER_DELIVER_MS=START_MS + 20_000)
            await it.pass_ms(1000)
            await it.send(b"plain", topic="other")
        monkeypatch.setenv("KAPPAMQ_BOOT_ID", "two")
        async with timed(tmp_path, clock=MessageClock(1_000_000), **LEVELS) as it:
            await it.send(b"late", DELAY=2)
            await it.pass_ms(8_999)
            assert await it.bodies() == [b"late"]
            await it.pass_ms(1)
            assert sorted(await it.bodies()) == [b"delay", b"late", b"level"]
            await set_clock(it, (START_MS + 19_000 - it.clock.message_ms()) / 1000)
            assert len(await it.bodies()) == 3
            await it.pass_ms(1000)
            assert (await it.bodies())[3:] == [b"time"]

    with caplog.at_level(logging.WARNING):
        run(test())
    assert "the clock was ahead then, or it is behind now" in caplog.text


def test_a_clock_that_was_years_behind(tmp_path: Path) -> None:
    """Whoever named a time of those years is overdue by years, and must not disturb who is due today."""

    async def test() -> None:
        async with timed(tmp_path, clock=MessageClock(1_000_000), **LEVELS) as it:
            await it.send(b"level", DELAY=3)
            await it.send(b"delay", TIMER_DELAY_MS=10_000)
            await it.send(b"time", TIMER_DELIVER_MS=60_000_000)
            await set_clock(it, DAY_S * 14 * 1000)  # as many seconds as the timer wheel has, many times over
            assert await it.bodies() == [b"time"]
            await it.send(b"today", TIMER_DELIVER_MS=1_000_000 + DAY_MS * 14 * 1000 + 5000)
            await it.pass_ms(5000)
            assert await it.bodies() == [b"time", b"today"]
            await it.pass_ms(5000)
            assert sorted((await it.bodies())[2:]) == [b"delay", b"level"]

    run(test())


def test_a_clock_that_was_ahead_until_the_machine_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KAPPAMQ_BOOT_ID", "one")

    async def test() -> None:
        async with timed(tmp_path, clock=MessageClock(START_MS + 365 * DAY_MS), **LEVELS) as it:
            await it.send(b"level", DELAY=3)
            await it.send(b"delay", TIMER_DELAY_MS=10_000)
            await it.send(b"plain", topic="other")
        monkeypatch.setenv("KAPPAMQ_BOOT_ID", "two")
        async with timed(tmp_path, clock=MessageClock(), **LEVELS) as it:
            await it.send(b"next", DELAY=1)
            await it.send(b"next timer", TIMER_DELAY_MS=1000)
            await it.pass_ms(1000)
            assert sorted(await it.bodies()) == [b"next", b"next timer"]
            await it.pass_ms(9000)
            assert sorted((await it.bodies())[2:]) == [b"delay", b"level"]

    run(test())


def test_one_stamp_is_not_believed_against_the_file_it_lies_in(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint, or a last record, that says it is 2099."""
    monkeypatch.setenv("KAPPAMQ_BOOT_ID", "one")
    far_ms = START_MS + 70 * 365 * DAY_MS

    async def test() -> None:
        async with timed(tmp_path, clock=MessageClock(far_ms)) as it:
            await it.send(b"from the future")
        for path in (tmp_path / "commitlog").iterdir():
            os.utime(path, ns=(START_MS * 1_000_000, START_MS * 1_000_000))
        monkeypatch.setenv("KAPPAMQ_BOOT_ID", "two")
        async with timed(tmp_path, clock=MessageClock(START_MS + 1000)) as it:
            assert not it.broker.store.clock_steps
            await it.send(b"now")
            await it.pass_ms(1000)
            assert [record.stored_ms for record in await it.read()] == [far_ms, START_MS + 1000]

    with caplog.at_level(logging.WARNING):
        run(test())
    assert "that store time is ignored" in caplog.text


@pytest.mark.parametrize("step", [0, DAY_S])
def test_another_broker_whose_clock_was_ahead_does_not_hide_our_timers(tmp_path: Path, step: int) -> None:
    """Its checkpoint says that everything is delivered up to next week. Ours may be set, too, before that is found out."""

    async def test() -> None:
        async with timed(tmp_path) as it:
            await it.send(b"old", TIMER_DELIVER_MS=START_MS + 5000)
            await it.pass_ms(1000)
            it.broker.metadata.commit("timer", {"due": [START_MS + 7 * DAY_MS, 1 << 61]})
        it.clock.jump(step)
        async with timed(tmp_path, clock=it.clock) as it:
            await it.send(b"new", TIMER_DELIVER_MS=it.clock.message_ms() + 7000)
            await it.pass_ms(7000)
            assert await it.bodies() == [b"new"]

    run(test())


def test_old_files_are_not_deleted_by_a_clock_that_was_just_set(tmp_path: Path) -> None:
    async def test() -> None:
        store = {"segment_bytes": 65_536, "message_bytes_max": 40_000, "delete_hours": tuple(range(24))}
        async with timed(tmp_path, store=store) as it:
            body = bytes(30_000)
            for _ in range(8):
                await it.client.send("tea", body)
            for segment in it.broker.store.log.segments():
                os.utime(segment.path, ns=(START_MS * 1_000_000, START_MS * 1_000_000))
            await set_clock(it, 365 * DAY_S)
            await it.broker.upkeep.clean()
            assert it.broker.store.log.min == 0, "it may be right again in a second"
            await set_clock(it, -365 * DAY_S)
            await it.broker.upkeep.clean()
            assert it.broker.store.log.min == 0
            await set_clock(it, 365 * DAY_S)
            await it.pass_ms(SETTLE_MS)
            await on_disk(it.broker)  # what is not, does not expire
            await it.broker.upkeep.clean()
            assert it.broker.store.log.min > 0, "it was kept for long enough"

    run(test())


@pytest.mark.parametrize("ends", ["clean", "crash"])
def test_a_restart_does_not_make_a_clock_that_was_just_set_any_older(tmp_path: Path, ends: str) -> None:
    async def test() -> None:
        store = {"segment_bytes": 65_536, "message_bytes_max": 40_000, "delete_hours": tuple(range(24))}
        clock, root = MessageClock(), tmp_path / "store"
        async with timed(root, clock=clock, store=store) as it:
            for _ in range(8):
                await it.client.send("tea", bytes(30_000))
            for segment in it.broker.store.log.segments():
                os.utime(segment.path, ns=(START_MS * 1_000_000, START_MS * 1_000_000))
            await set_clock(it, 365 * DAY_S)
            it.broker.writer.end_turn()
            if ends == "crash":
                root = await crash_copy(it.broker, tmp_path / "crashed")
        for _ in range(2):
            async with timed(root, clock=clock, store=store) as it:
                await it.broker.upkeep.clean()
                assert it.broker.store.log.min == 0, "it was not kept for long enough yet"
        async with timed(root, clock=clock, store=store) as it:
            await it.pass_ms(SETTLE_MS)
            await on_disk(it.broker)  # what is not, does not expire
            await it.broker.upkeep.clean()
            assert it.broker.store.log.min > 0, "now it was"

    run(test())


def test_who_asks_for_it_gets_old_files_deleted_at_once(tmp_path: Path) -> None:
    async def test() -> None:
        async with timed(tmp_path, store={"segment_bytes": 65_536, "message_bytes_max": 40_000}) as it:
            for _ in range(8):
                await it.client.send("tea", bytes(30_000))
            for segment in it.broker.store.log.segments():
                os.utime(segment.path, ns=(START_MS * 1_000_000, START_MS * 1_000_000))
            await set_clock(it, 365 * DAY_S)
            await on_disk(it.broker)
            assert await it.broker.upkeep.delete_expired(asked=True) > 0

    run(test())


def test_a_recalled_delay_stays_recalled_when_the_clock_is_set(tmp_path: Path) -> None:
    async def test() -> None:
        async with timed(tmp_path) as it:
            await set_clock(it, DAY_S)
            await it.send(b"delay", key="K", TIMER_DELAY_MS=10_000)
            await it.send(b"kept", key="L", TIMER_DELAY_MS=10_000)
            handle = RecallHandle("tea", "b", START_MS + DAY_MS + 10_000, "K")
            await set_clock(it, -DAY_S)
            await it.recall(handle)
            await it.pass_ms(10_000)
            assert await it.bodies() == [b"kept"]
            await it.pass_ms(DAY_MS + 10_000)
            assert await it.bodies() == [b"kept"]

    run(test())


def test_a_clock_that_is_set_all_the_time_does_not_fill_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        async with timed(tmp_path) as it:
            for number in range(50):
                it.clock.jump(3600 if number % 2 else -3600)
                it.broker.clock_watch.look()
            assert len(told()) == 4
            it.broker.clock_watch._period_began -= 11  # so much later
            it.broker.clock_watch.look()
            assert len(told()) == 5
            assert "was set 46 more times in the last 11 s" in told()[-1]
            assert "it shows 2023-11-1" in told()[-1]
            await it.settle()

    def told() -> list[str]:
        return [text for text in map(logging.LogRecord.getMessage, caplog.records) if "the wall clock was set " in text]

    with caplog.at_level(logging.WARNING):
        run(test())
    assert len(told()) == 5


def test_a_jump_that_cannot_be_marked_is_followed_all_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        async with timed(tmp_path) as it:
            await it.send(b"x", TIMER_DELIVER_MS=START_MS + 1000)
            it.broker.store.fail("the test says so")
            it.broker.writer._fail("the test says so")
            it.clock.jump(DAY_S)
            await eventually_async(lambda: it.broker.clock.message_ms() == START_MS + DAY_MS)
            assert it.broker.store.clock_steps

    with caplog.at_level(logging.WARNING):
        run(test())
    assert "could not record the clock change in the log" in caplog.text


def test_the_table_is_a_fold() -> None:
    class Store:
        from kappamq.store.log.clock_steps import ClockSteps

        clock_steps = ClockSteps()

        class log:
            min = 0
            end = 1000

    table = ClockTable(Store())  # type: ignore[arg-type]
    change = {"step": [100, 5000, 1], "boot": "b", "offset": 7, "ahead": 5000}
    for _ in range(2):  # twice does no harm
        table.apply("clock", change)
    assert (table.jumps, table.boot, table.offset_ms, table.ahead_ms) == (1, "b", 7, 5000)
    again = ClockTable(Store())  # type: ignore[arg-type]
    again.from_snapshot(table.to_snapshot())
    assert again.to_snapshot() == table.to_snapshot()
    assert again._store.clock_steps.steps == (ClockStep(100, 5000, 1),)


def test_words() -> None:
    assert duration(-86_400_000) == "1 days"
    assert duration(2000) == "2 s"
    assert duration(5_400_000) == "90 minutes"
    assert when(1 << 60).endswith("ms")
    assert when(START_MS).startswith("2023-11-1")
    assert boot_of("x").startswith("x")
