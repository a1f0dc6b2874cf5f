"""The agenda: the earliest part first, in slices, and a part that fails does not stop the others."""

from __future__ import annotations

import asyncio
from pathlib import Path

from kappamq.broker.delivery.agenda import Agenda
from kappamq.clock import SystemClock, VirtualClock
from tests.broker.running import run


class Times:
    """A part with things to do at given times."""

    def __init__(self, done: list[tuple[str, int]], name: str, *times: int) -> None:
        self.done, self.name, self.times = done, name, sorted(times)
        self.has_run = asyncio.Event()

    async def ran(self) -> None:
        await asyncio.wait_for(self.has_run.wait(), 10)
        self.has_run.clear()

    def due_ms(self) -> int | None:
        return self.times[0] if self.times else None

    def run(self, now_ms: int) -> None:
        self.done.append((self.name, self.times.pop(0)))
        self.has_run.set()


class Failing(Times):
    def run(self, now_ms: int) -> None:
        self.done.append(("failed", now_ms))
        raise ValueError("no")


def test_the_earliest_comes_first() -> None:
    async def scenario() -> None:
        clock = VirtualClock(message_ms=1000)
        agenda = Agenda(clock)
        done: list[tuple[str, int]] = []
        assert agenda.next_ms() is None
        agenda.add(Times(done, "a", 1005, 1030))
        agenda.add(Times(done, "b", 1010, 1020, 2000))
        assert agenda.next_ms() == 1005
        assert not agenda.run_due(1004)
        while agenda.run_due(1030):
            pass
        assert done == [("a", 1005), ("b", 1010), ("b", 1020), ("a", 1030)]
        assert agenda.next_ms() == 2000

    run(scenario())


def test_it_runs_when_the_time_has_come() -> None:
    async def scenario() -> None:
        clock = SystemClock()
        agenda = Agenda(clock)
        done: list[tuple[str, int]] = []
        now = clock.message_ms()
        part = Times(done, "a", now + 30)
        agenda.add(part)
        agenda.start()
        await part.ran()
        assert clock.message_ms() >= now + 30
        await asyncio.sleep(0)
        part.times = [clock.message_ms()]  # it slept for good: it has to be told
        agenda.wake()
        await part.ran()
        await agenda.stop()
        part.times = [0]
        agenda.wake()
        for _ in range(3):
            await asyncio.sleep(0)
        assert len(done) == 2

    run(scenario())


def test_a_part_that_fails_rests_and_others_go_on() -> None:
    async def scenario() -> None:
        clock = VirtualClock(message_ms=1000)
        agenda = Agenda(clock)
        done: list[tuple[str, int]] = []
        agenda.add(Failing(done, "", 900))
        agenda.add(Times(done, "a", 950, 960))
        while agenda.run_due(1000):
            pass
        assert done == [("failed", 1000), ("a", 950), ("a", 960)]
        clock.advance_liveness(1.1)
        assert agenda.run_due(1000)
        assert done[-1] == ("failed", 1000)
        assert len(done) == 4

    run(scenario())


class Unsure(Times):
    def due_ms(self) -> int | None:
        raise KeyError("no")


def test_a_part_that_cannot_say_when_it_is_due_does_not_stop_the_others() -> None:
    async def scenario() -> None:
        clock = VirtualClock(message_ms=1000)
        agenda = Agenda(clock)
        done: list[tuple[str, int]] = []
        agenda.add(Unsure(done, ""))
        agenda.add(Times(done, "a", 950, 960))
        while agenda.run_due(1000):
            pass
        assert done == [("a", 950), ("a", 960)]
        assert agenda.next_ms() is None

    run(scenario())


def test_a_job_that_fails_lets_its_part_rest() -> None:
    async def scenario() -> None:
        clock = VirtualClock(message_ms=1000)
        agenda = Agenda(clock)
        done: list[tuple[str, int]] = []
        part = Times(done, "a", 900)
        agenda.add(part)

        async def job() -> None:
            raise OSError("the disk")

        agenda.spawn(part, job())
        while agenda.is_working:  # noqa: ASYNC110 - one turn of the loop
            await asyncio.sleep(0)
        assert not agenda.run_due(1000)
        clock.advance_liveness(1.1)
        assert agenda.run_due(1000)

    run(scenario())


def test_a_job_makes_its_part_due_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = SystemClock()
        agenda = Agenda(clock)
        done: list[tuple[str, int]] = []
        part = Times(done, "a")
        agenda.add(part)
        agenda.start()
        come_back = asyncio.Event()

        async def job() -> None:
            await come_back.wait()
            part.times = [5]

        agenda.spawn(part, job())
        assert agenda.is_working
        await asyncio.sleep(0)
        come_back.set()
        await part.ran()
        assert done == [("a", 5)]
        assert not agenda.is_working
        await agenda.stop()

    run(scenario())
