from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kappamq.broker.timers.progress import TimerProgress
from kappamq.protocol.names import TIMER_TOPIC
from kappamq.store.files import Files
from kappamq.store.log.clock_steps import ClockStep, ClockSteps
from kappamq.store.log.log_reader import LogReader
from kappamq.store.timer.entries import (
    ROLL,
    ROLL_MS,
    SLOT,
    SLOTS,
    STAMPED_BYTES,
    UNIT,
    TimerCheckpoint,
    Unit,
    decode_unit,
)
from kappamq.store.verify.report import Kind, Problem, Report
from kappamq.store.verify.scrub import Scrub, ScrubPosition
from kappamq.store.verify.timers import TIMERS, check_timers, is_still_wrong, timer_steps
from tests.broker.running import running, speaking
from tests.broker.timers.test_book import NEVER, Bench, T, bench
from tests.waiting import eventually_async as eventually

TIMERS_COUNT = 5


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that a broker with pending timers has left."""
    root: Path = tmp_path_factory.mktemp("timers") / "store"

    async def fill() -> None:
        async with running(root, store={"timer_file_bytes": 4096}) as broker, speaking(broker) as client:
            due = broker.clock.message_ms() + 3_600_000
            for number in range(TIMERS_COUNT):
                text = f"UNIQ_KEY\x01T{number}\x02TIMER_DELIVER_MS\x01{due + number // 3 * 2000}"
                assert (await client.send("t", b"%d" % number, properties=text)).code == 0

            async def entered() -> bool:
                return broker.delivery.timers._queue_offset == TIMERS_COUNT

            await eventually(entered)

    asyncio.run(fill())
    return root


def problems(root: Path) -> Report:
    report = Report(root, 10)
    reader = LogReader(root / "commitlog")
    check_timers(root, reader, report, Files(), ClockSteps)
    reader.close()
    return report


def units_of(root: Path) -> list[Unit]:
    data = (root / "timerlog" / f"{0:020d}").read_bytes()
    end = TimerCheckpoint.decode((root / "config" / "timercheck").read_bytes()).log_position
    found = [decode_unit(data, at, at) for at in range(0, end, UNIT.size)]
    return [unit for unit in found if unit is not None]


def confirmed(root: Path, report: Report) -> list[Problem]:
    """What is still wrong when only what a problem names is looked at."""
    reader = LogReader(root / "commitlog")
    try:
        return [problem for problem in report.problems if is_still_wrong(root, reader, Files(), ClockSteps, problem)]
    finally:
        reader.close()


def missed(root: Path, path: Path, start: int, stop: int) -> list[int]:
    """Bits of [start, stop) of a file whose flip nobody notices."""
    found = []
    with path.open("r+b", buffering=0) as file:
        for bit in range(start * 8, stop * 8):
            file.seek(bit // 8)
            (byte,) = file.read(1)
            file.seek(bit // 8)
            file.write(bytes([byte ^ 1 << bit % 8]))
            report = problems(root)
            if report.ok or any(problem.fix != TIMERS for problem in report.problems) or not confirmed(root, report):
                found.append(bit)
            file.seek(bit // 8)
            file.write(bytes([byte]))
    return found


def test_all_is_well(root: Path) -> None:
    assert len(units_of(root)) == TIMERS_COUNT
    assert problems(root).problems == []


def test_what_is_right_by_now_is_not_confirmed(root: Path) -> None:
    named = [Problem(Kind.TIMER, "timerlog", unit.position, "", TIMERS) for unit in units_of(root)]
    named += [Problem(Kind.TIMER, "timerwheel", unit.slot_ms // 1000, "", TIMERS) for unit in units_of(root)]
    named += [Problem(Kind.TIMER, "timercheck", 0, "", TIMERS), Problem(Kind.TIMER, "timerlog", 1 << 40, "", TIMERS)]
    assert confirmed(root, Report(root, 10, problems=named)) == []


def test_a_step_is_one_unit_or_one_slot(root: Path) -> None:
    """So a pass over a million timers keeps to its rate, and whoever stops it does not wait for the end."""
    reader, report = LogReader(root / "commitlog"), Report(root, 10)
    units = units_of(root)
    seconds = {unit.slot_ms for unit in units}
    steps = list(timer_steps(root, reader, report, Files(), ClockSteps))
    reader.close()
    assert steps == [UNIT.size + unit.size for unit in units] + [SLOT.size] * len(seconds)


@pytest.mark.parametrize("number", range(TIMERS_COUNT))
def test_every_bit_of_a_unit_is_covered(root: Path, number: int) -> None:
    assert missed(root, root / "timerlog" / f"{0:020d}", number * UNIT.size, (number + 1) * UNIT.size) == []


def test_every_bit_of_a_pending_slot_is_covered(root: Path) -> None:
    places = sorted({unit.slot_ms // 1000 % SLOTS for unit in units_of(root)})
    assert len(places) == 2
    for place in places:
        assert missed(root, root / "timerwheel", place * SLOT.size, (place + 1) * SLOT.size) == []


def test_every_bit_of_the_checkpoint_is_covered(root: Path) -> None:
    assert missed(root, root / "config" / "timercheck", 0, STAMPED_BYTES) == []


def test_without_timers_or_with_another_brokers_nothing_is_judged(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    assert problems(tmp_path).ok
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "timercheck").write_bytes(TimerCheckpoint(1, 2, 3).encode().ljust(4096, b"\0"))
    assert problems(tmp_path).ok


def found_by_a_pass(it: Bench) -> list[str]:
    scrub = Scrub(it.store, ScrubPosition())
    for _ in scrub.steps():
        pass
    scrub.close()
    return [str(problem) for problem in scrub.report.problems]


def enter_all(it: Bench, now_ms: int) -> list[Unit]:
    it.book.rebuild(TimerProgress(), "")
    end = it.store.kernel.queue_state(TIMER_TOPIC, 0).end
    it.book.enter(0, end, b"", 0, TimerProgress(), now_ms, NEVER)
    return units_of(it.root)


@pytest.mark.parametrize("step_ms", [600_000, -600_000])
def test_a_delay_that_has_moved_with_the_clock_is_right(tmp_path: Path, step_ms: int) -> None:
    with bench(tmp_path) as it:
        it.book.open(it.progress)
        it.park(3_600_000, TIMER_DELAY_MS="3600000")
        it.park(3_600_000)
        enter_all(it, T)
        assert found_by_a_pass(it) == []
        it.store.clock_steps = ClockSteps((ClockStep(it.store.log.end, step_ms, T + step_ms),))
        assert found_by_a_pass(it) == [], "the files are about to be built again"
        units = enter_all(it, T + step_ms)
        assert [unit.due_ms for unit in units] == [T + 3_600_000 + step_ms, T + 3_600_000]
        assert found_by_a_pass(it) == []
        it.store.clock_steps = ClockSteps()
        assert len(found_by_a_pass(it)) > 0


def test_a_timer_that_was_entered_long_overdue_is_right(tmp_path: Path) -> None:
    with bench(tmp_path) as it:
        it.book.open(it.progress)
        it.park(5000)
        (unit,) = enter_all(it, T + 3 * 86_400_000)
        assert unit.due_ms == T + 2 * 86_400_000
        assert found_by_a_pass(it) == []


def test_a_timer_whose_record_is_stamped_later_than_it_was_entered_is_right(tmp_path: Path) -> None:
    with bench(tmp_path) as it:
        it.book.open(it.progress)
        it.park(9 * ROLL_MS, stored=T + 5000)
        (unit,) = enter_all(it, T + 500)
        assert (unit.due_ms, unit.kind & ROLL) == (T + 500 + ROLL_MS, ROLL)
        assert found_by_a_pass(it) == []
