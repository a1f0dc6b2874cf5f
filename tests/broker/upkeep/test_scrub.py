"""The scrub of a running broker: when it runs, what it finds, and that it is in nobody's way."""

from __future__ import annotations

import asyncio
import json
import logging
import struct
import threading
from pathlib import Path

import pytest

from kappamq.broker.broker import Broker
from kappamq.broker.upkeep import scrub as scrub_module
from kappamq.broker.upkeep.scrub import Load
from kappamq.clock import VirtualClock
from kappamq.protocol.headers.admin import GetBrokerRuntimeInfo
from kappamq.store.timer.entries import UNIT
from kappamq.store.verify.report import Kind, Problem
from kappamq.store.verify.scrub import ScrubPosition
from kappamq.store.verify.verify import verify
from tests.broker.running import MODES, Speaker, run, running, speaking
from tests.broker.timing import timed
from tests.broker.upkeep.test_clock_watch import set_clock
from tests.broker.upkeep.test_damage import drain, fill, flip
from tests.waiting import eventually_async as eventually

pytestmark = pytest.mark.timeout(120)
FAST = {"scrub_bytes_per_second": 1 << 30}


@pytest.fixture(autouse=True)
def _all_the_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrub_module, "_SHARE", 1)


async def runtime(client: Speaker) -> dict[str, str]:
    table: dict[str, str] = json.loads((await client.ask(GetBrokerRuntimeInfo())).body)["table"]
    return table


@pytest.mark.parametrize("mode", MODES)
def test_damage_is_found_told_and_repaired(tmp_path: Path, mode: str, caplog: pytest.LogCaptureFixture) -> None:
    """A tag that would be filtered out for ever, a key, a slot, a snapshot: none of them shows to a reader."""

    async def test() -> None:
        async with running(tmp_path, mode) as broker, speaking(broker) as client:
            bodies = await fill(client, 60)
        async with running(tmp_path, mode, store=FAST) as broker, speaking(broker) as client:
            broker.scrubber.is_busy = lambda: False
            assert await broker.scrubber.run_pass() == []
            flip(tmp_path / "consumequeue" / "t" / "0" / f"{0:020d}", 41 * 160 + 150)
            flip(next((tmp_path / "index").iterdir()), 8 * (40 + 4 * 997 + 20 * 30) + 20)
            flip(tmp_path / "config" / "topics.json", 8 * 60 + 2)
            flip(tmp_path / "kappamq.position", 8 * 20 + 2)
            found = await broker.scrubber.run_pass()
            assert {problem.kind for problem in found} == {Kind.QUEUE, Kind.INDEX, Kind.CONFIG}
            assert len(found) == 4
            assert caplog.text.count("; repaired") == 4
            assert await broker.scrubber.run_pass() == []
            assert await drain(client, 60) == bodies
            table = await runtime(client)
            assert (table["kappamqDamageFound"], table["kappamqDamageRepaired"]) == ("4", "4")
            assert (table["kappamqScrub"], table["kappamqScrubPasses"]) == ("waiting", "3")
            assert table["kappamqScrubLastPass"].endswith("0 problems")

    with caplog.at_level(logging.WARNING):
        run(test())


def slots(index: Path) -> tuple[int, ...]:
    return struct.unpack_from(">997i", index.read_bytes(), 40)


def check_repaired(before: tuple[int, ...], repaired: tuple[int, ...], at_last: tuple[int, ...]) -> None:
    """A slot that has got an entry since is not repaired: the next flush, at the latest that of the stop, writes it."""
    newer = {slot for slot, number in enumerate(at_last) if number > max(before)}
    assert [slot for slot in range(997) if repaired[slot] != before[slot] and slot not in newer] == []
    assert len(newer) <= 2, "one message, with an id and perhaps a key"


async def keys_are_in_files(broker: Broker) -> None:
    """A pass looks at what is finished, and after a start the index has some way to go."""

    async def is_so() -> bool:
        await broker.upkeep.write_derived()
        return broker.store.derived.noted.index == broker.store.marks.dispatched.offset

    await eventually(is_so)


def test_more_damage_in_one_place_than_is_kept_at_once_is_repaired_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kappamq.store.verify.scrub._PROBLEMS_MAX", 20)
    monkeypatch.setattr("kappamq.store.verify.index._SLOTS_AT_ONCE", 10)

    async def test() -> None:
        async with running(tmp_path) as broker, speaking(broker) as client:
            for number in range(200):
                assert (await client.send("t", b"x", properties=f"KEYS\x01key{number}")).code == 0
        index = next((tmp_path / "index").iterdir())
        before = slots(index)
        async with running(tmp_path, store=FAST) as broker, speaking(broker) as client:
            broker.scrubber.is_busy = lambda: False
            await fill(client, 1)
            await keys_are_in_files(broker)
            with index.open("r+b") as file:
                file.seek(40)
                file.write(bytes(4 * 997))
            found = await broker.scrubber.run_pass()
            assert len(found) == broker.damage.repaired > 100
            repaired = slots(index)
        check_repaired(before, repaired, slots(index))

    run(test())


def test_what_one_step_finds_beyond_that_is_left_to_the_next_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("kappamq.store.verify.scrub._PROBLEMS_MAX", 20)

    async def test() -> None:
        async with running(tmp_path) as broker, speaking(broker) as client:
            for number in range(60):
                assert (await client.send("t", b"x", properties=f"KEYS\x01key{number}")).code == 0
        index = next((tmp_path / "index").iterdir())
        before = slots(index)
        async with running(tmp_path, store=FAST) as broker, speaking(broker) as client:
            broker.scrubber.is_busy = lambda: False
            await fill(client, 1)
            await keys_are_in_files(broker)
            with index.open("r+b") as file:
                file.seek(40)
                file.write(bytes(4 * 997))
            passes = 0
            while not broker.scrubber._is_first_done:
                await broker.scrubber.run_pass()
                passes += 1
            assert passes > 1
            repaired = slots(index)
        check_repaired(before, repaired, slots(index))

    with caplog.at_level(logging.ERROR):
        run(test())
    assert "more problems in one place are not listed" in caplog.text


def test_a_damaged_record_is_told_and_the_rest_is_looked_at(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with running(tmp_path, store=FAST) as broker, speaking(broker) as client:
            await fill(client, 60)
            await broker.upkeep.write_derived()
            broker.scrubber.is_busy = lambda: False
            entry = broker.store.entry("t", 0, 41)
            assert entry is not None
            flip(tmp_path / "commitlog" / f"{0:020d}", 8 * (entry[0] + 100))
            flip(tmp_path / "consumequeue" / "t" / "0" / f"{0:020d}", 50 * 160 + 40)
            found = await broker.scrubber.run_pass()
            assert (Kind.LOG, entry[0]) in [(problem.kind, problem.offset) for problem in found]
            assert (Kind.QUEUE, 50) in [(problem.kind, problem.offset) for problem in found]
            assert "cannot be repaired: restore the file from a copy" in caplog.text

    with caplog.at_level(logging.WARNING):
        run(test())


def test_damaged_timer_files_are_built_again_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many of their units are wrong; the thread that writes them looks at one of these again, and not at all of them."""

    async def test() -> None:
        async with running(tmp_path) as broker, speaking(broker) as client:
            due = broker.clock.message_ms() + 3_600_000
            for number in range(10):
                text = f"UNIQ_KEY\x01T{number}\x02TIMER_DELIVER_MS\x01{due + number}"
                assert (await client.send("t", b"x", properties=text)).code == 0
            await eventually(lambda: entered(broker))
        async with running(tmp_path, store=FAST) as broker:
            broker.scrubber.is_busy = lambda: False
            await eventually(lambda: entered(broker))
            looked_at: list[int] = []
            built: list[str] = []
            timers, look = broker.delivery.timers, broker.scrubber._is_wrong_timer
            damaged = timers.files_are_damaged

            def look_again(problem: Problem) -> bool:
                looked_at.append(problem.offset)
                return look(problem)

            def build(why: str) -> None:
                built.append(why)
                damaged(why)

            monkeypatch.setattr(broker.scrubber, "_is_wrong_timer", look_again)
            monkeypatch.setattr(timers, "files_are_damaged", build)
            path = tmp_path / "timerlog" / f"{0:020d}"
            for number in (3, 5, 7):
                flip(path, 8 * (UNIT.size * number + UNIT.size - 6))
            assert [problem.kind for problem in await broker.scrubber.run_pass()] == [Kind.TIMER]
            assert (len(looked_at), len(built)) == (1, 1)

            async def is_well() -> bool:
                return await entered(broker) and await broker.scrubber.run_pass() == []

            await eventually(is_well)

    async def entered(broker: Broker) -> bool:
        return broker.delivery.timers._queue_offset == 10

    run(test())


def test_it_runs_by_itself_goes_on_after_a_stop_and_then_waits_for_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scrub_module, "_FIRST_S", 0.01)
    monkeypatch.setattr(scrub_module, "_LOOK_S", 0.01)
    monkeypatch.setattr(scrub_module, "_SLICE_BYTES", 2000)

    def saved() -> ScrubPosition:
        return ScrubPosition.load(tmp_path / "kappamq.scrub", broker_files)

    async def fill_it() -> None:
        async with running(tmp_path, store={"scrub_enabled": False}) as broker, speaking(broker) as client:
            await fill(client, 60)
            assert (await runtime(client))["kappamqScrub"] == "off"
        assert not (tmp_path / "kappamq.scrub").exists()

    async def begin() -> None:
        async with running(tmp_path, store=FAST) as broker:
            broker.scrubber.is_busy = lambda: broker.scrubber._position.log_offset > 5000

            async def stopped_by_load() -> bool:
                return broker.scrubber._position.log_offset > 5000

            await eventually(stopped_by_load)
            at = broker.scrubber._position.log_offset
            await asyncio.sleep(0.1)  # ten looks at the load: nothing is to happen
            assert broker.scrubber._position.log_offset == at, "it rests while the broker is busy"
            async with speaking(broker) as client:
                assert (await runtime(client))["kappamqScrub"].startswith("running, ")
        assert (saved().running, saved().log_offset) == (True, at)

    async def go_on() -> None:
        async with running(tmp_path, store=FAST) as broker:
            broker.scrubber.is_busy = lambda: False
            assert broker.scrubber._position.log_offset > 5000

            async def done() -> bool:
                return broker.scrubber._position.passes == 1

            await eventually(done)
            assert not broker.scrubber._is_due()
            broker.scrubber._position.finished_ms += 1 << 40
            assert broker.scrubber._is_due(), "a clock that was ahead once does not put it off"
            broker.scrubber._position.finished_ms = broker.clock.message_ms() - 24 * 3_600_000
            assert broker.scrubber._is_due()

    from kappamq.store.files import Files

    broker_files = Files()
    run(fill_it())
    run(begin())
    run(go_on())


def test_a_pass_begins_soon_after_each_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A flipped tag code hides a message from consumers who filter: not for a day, only because a pass has just been done."""
    monkeypatch.setattr(scrub_module, "_FIRST_S", 0.01)
    monkeypatch.setattr(scrub_module, "_LOOK_S", 0.01)

    async def pass_done(broker: Broker, count: int) -> None:
        broker.scrubber.is_busy = lambda: False
        await eventually(lambda: broker.scrubber._position.passes == count)

    async def test() -> None:
        async with running(tmp_path, store=FAST) as broker, speaking(broker) as client:
            await fill(client, 60)
            await pass_done(broker, 1)
        flip(tmp_path / "consumequeue" / "t" / "0" / f"{0:020d}", 41 * 160 + 150)
        async with running(tmp_path, store=FAST) as broker:
            await pass_done(broker, 2)
            assert broker.damage.repaired == 1
            assert not broker.scrubber._is_due(), "the next one is in a day"

    run(test())


def test_a_damaged_file_that_nobody_knows_is_not_called_repaired(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        async with running(tmp_path, store=FAST) as broker:
            broker.scrubber.is_busy = lambda: False
            assert await broker.upkeep.write_snapshot_again("topics.json")
            (tmp_path / "config" / "strange.json").write_text("{")
            (found,) = await broker.scrubber.run_pass()
            assert found.place == "strange.json"
            assert (broker.damage.found, broker.damage.repaired) == (1, 0)
            assert not await broker.upkeep.write_snapshot_again("strange.json")

    with caplog.at_level(logging.WARNING):
        run(test())
    assert "; repaired" not in caplog.text
    assert "strange.json" in caplog.text
    assert "cannot be repaired" in caplog.text


def test_it_keeps_to_its_rate_and_to_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Off the loop, a bounded number of bytes at a time, and a pause after each that follows from the rate."""
    pauses: list[float] = []
    threads: set[str] = set()
    real_sleep, real_slice = asyncio.sleep, scrub_module._slice

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        await real_sleep(0)

    def in_slices(*arguments: object) -> tuple[bool, int, float]:
        threads.add(threading.current_thread().name)
        return real_slice(*arguments)  # type: ignore[arg-type]

    async def test(broker: Broker) -> None:
        monkeypatch.setattr(scrub_module, "_SLICE_BYTES", 4000)
        monkeypatch.setattr(scrub_module, "_slice", in_slices)
        monkeypatch.setattr(scrub_module.asyncio, "sleep", sleep)
        broker.scrubber.is_busy = lambda: False
        await broker.scrubber.run_pass()
        monkeypatch.setattr(scrub_module.asyncio, "sleep", real_sleep)

    async def whole() -> None:
        async with running(tmp_path, store={"scrub_bytes_per_second": 1 << 20}) as broker, speaking(broker) as client:
            await fill(client, 200)
            await broker.upkeep.write_derived()
            log_bytes = broker.store.log.end
            await test(broker)
            assert threads == {"kappamq-scrub_0"}
            assert sum(pauses) >= 0.9 * log_bytes / (1 << 20)
            assert len(pauses) > log_bytes / 16_000

    run(whole())


@pytest.mark.parametrize(("interval_hours", "told"), [(24, 1), (0, 0), (24 * 300, 0)])
def test_a_pass_that_takes_longer_than_its_interval_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, interval_hours: int, told: int
) -> None:
    monkeypatch.setattr(scrub_module, "_SLICE_BYTES", 1)

    async def test() -> None:
        clock = VirtualClock()
        limits = {**FAST, "scrub_interval_hours": interval_hours}
        async with running(tmp_path, clock=clock, store=limits) as broker, speaking(broker) as client:
            await fill(client, 60)
            await keys_are_in_files(broker)

            def is_busy() -> bool:
                clock.advance_liveness(3600.0)
                return False

            broker.scrubber.is_busy = is_busy
            await broker.scrubber.run_pass()

    with caplog.at_level(logging.WARNING):
        run(test())
    assert caplog.text.count(f"takes longer than store.scrub_interval_hours={interval_hours}") == told


def test_load_is_the_loops_own_work() -> None:
    load = Load()
    load._wall, load._used = scrub_module.time.monotonic() - 1.0, scrub_module.time.thread_time() - 0.8
    assert load.is_high()
    load._wall, load._used = scrub_module.time.monotonic() - 1.0, scrub_module.time.thread_time() - 0.1
    assert not load.is_high()


def test_timers_are_right_after_the_clock_was_set(tmp_path: Path) -> None:
    """A delay has moved with the clock: no pass, and no `kappamq store verify`, calls that damage."""

    async def test() -> None:
        async with timed(tmp_path, store=FAST) as it:
            timers, scrubber = it.broker.delivery.timers, it.broker.scrubber
            scrubber.is_busy = lambda: False
            await it.send(b"delayed an hour", TIMER_DELAY_MS=3_600_000)

            async def is_entered() -> bool:
                return timers._opened and not timers.behind

            await eventually(is_entered)
            assert await scrubber.run_pass() == []
            await set_clock(it, 600)
            await eventually(is_entered)
            generation = timers._generation
            for _ in range(2):
                assert await scrubber.run_pass() == []
            assert timers._generation == generation, "the timer files were not built again"
            assert it.broker.damage.found == 0

    run(test())
    report = verify(tmp_path, index_slots=997, index_entries=10_000)
    assert report.problems == []
