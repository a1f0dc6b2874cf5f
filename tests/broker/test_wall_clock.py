"""A broker process of its own whose wall clock is set while it runs, by a small library of ours; see `shifted_clock.c`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kappamq.net.channel import Channel
from kappamq.protocol.bodies.topics import KVTable
from kappamq.protocol.headers.admin import GetBrokerRuntimeInfo
from kappamq.protocol.records.record import Record
from tests.broker.running import Speaker, run
from tests.broker.shifted_clock import ShiftedClock
from tests.broker.test_fault_processes import ENVIRONMENT, UP
from tests.needs import needs
from tests.waiting import eventually_async

pytestmark = [needs("compiler"), pytest.mark.timeout(180)]
DAY_MS = 86_400_000
LATE_MS = 15_000
"""A second is promised; the machine that runs the tests may be busy. It is little beside a day."""
STEP_MS = 20
"""A jump of the clock is measured by a second clock, and both are read one after the other: it is known about so exactly."""
LEVELS = ("--set", "messageDelayLevel=1s 2s 3s 4s 5s")


class Machine:
    """A wall clock that can be set, and broker processes that go by it."""

    def __init__(self, root: Path) -> None:
        self.data = root / "data"
        self.errors = root / "errors.txt"
        self._clock = ShiftedClock(root / "clock")
        self.set_clock = self._clock.set

    @contextmanager
    def broker(self, *arguments: str, kill: bool = False) -> Iterator[int]:
        """Its port. Ends with SIGTERM, or with kill -9."""
        command = [sys.executable, "-m", "kappamq", *UP, *LEVELS, "--data", str(self.data), *arguments]
        environment = ENVIRONMENT | self._clock.environment
        with self.errors.open("a") as errors:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment)
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            assert line, self.errors.read_text()
            yield int(json.loads(line)["broker"].rpartition(":")[2])
            process.send_signal(signal.SIGKILL if kill else signal.SIGTERM)
            process.wait(timeout=60)
            assert kill or process.returncode == 0, self.errors.read_text()
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
            process.stdout.close()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


class Talk:
    def __init__(self, client: Speaker) -> None:
        self.client = client

    @classmethod
    async def to(cls, port: int) -> Talk:
        return cls(Speaker(await Channel.connect(f"127.0.0.1:{port}")))

    async def send(self, body: str, **pairs: object) -> None:
        named = {"UNIQ_KEY": f"U{body}"} | pairs
        text = "".join(f"{name}\x01{value}\x02" for name, value in named.items())
        answer = await self.client.send("tea", body.encode(), 0, text)
        assert answer.code == 0, (answer.code, answer.remark)

    async def stored(self) -> dict[str, list[Record]]:
        found: dict[str, list[Record]] = {}
        for record in await self.client.read("tea"):
            found.setdefault(record.body.decode(), []).append(record)
        return found

    async def has_followed(self, ms: int) -> None:
        """The broker shows the shifted clock's time in what it stores."""

        async def is_there() -> bool:
            await self.send("probe")
            last = (await self.stored())["probe"][-1]
            return abs(last.stored_ms - now_ms() - ms) < LATE_MS

        await eventually_async(is_there, timeout=30, pause=0.1, text="message time follows the wall clock")

    async def arrive(self, *bodies: str) -> dict[str, Record]:
        async def are_there() -> bool:
            return set(bodies) <= (await self.stored()).keys()

        await eventually_async(are_there, timeout=60, pause=0.05, text=f"{bodies} are delivered")
        found = await self.stored()
        assert all(len(found[body]) == 1 for body in bodies), "once"
        return {body: found[body][0] for body in bodies}

    async def runtime(self) -> dict[str, str]:
        answer = await self.client.ask(GetBrokerRuntimeInfo(), timeout=30)
        return KVTable.decode(answer.body).table


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@pytest.mark.parametrize("between", ["it runs on", "it is stopped", "it is killed"])
def test_a_day_ahead_for_a_second(machine: Machine, between: str) -> None:
    """Delays, timers and retries go on by the right clock, within a second; only the jump itself is early."""
    due: dict[str, int] = {}

    async def park(talk: Talk, when: str) -> None:
        now = now_ms()
        for name, asked in (("level", {"DELAY": 4}), ("delay", {"TIMER_DELAY_MS": 4000})):
            await talk.send(f"{name} {when}", **asked)
            due[f"{name} {when}"] = now + 4000
        if when != "during":
            await talk.send(f"time {when}", TIMER_DELIVER_MS=now + 4000)
            due[f"time {when}"] = now + 4000

    async def before(port: int) -> None:
        talk = await Talk.to(port)
        await park(talk, "before")
        await talk.send("tomorrow", TIMER_DELIVER_MS=now_ms() + DAY_MS + 3_600_000)
        machine.set_clock(DAY_MS)
        await talk.has_followed(DAY_MS)
        await park(talk, "during")
        assert not {"level during", "delay during", "tomorrow"} & (await talk.stored()).keys()

    async def after(port: int) -> None:
        talk = await Talk.to(port)
        machine.set_clock(0)
        await talk.has_followed(0)
        await park(talk, "after")
        arrived = await talk.arrive(*due)
        early = due.pop("time before")  # it was within the jump
        assert arrived["time before"].stored_ms < early + DAY_MS
        for body, at_ms in due.items():
            assert at_ms - STEP_MS <= arrived[body].stored_ms <= at_ms + LATE_MS, body
        assert "tomorrow" not in await talk.stored()
        table = await talk.runtime()
        assert int(table["kappamqClockJumps"].split()[4]) >= 2, "forward and back again"

    if between == "it runs on":
        with machine.broker() as port:
            run(before(port))
            run(after(port))
    else:
        with machine.broker(kill=between == "it is killed") as port:
            run(before(port))
        machine.set_clock(0)
        with machine.broker() as port:
            run(after(port))
    told = machine.errors.read_text()
    assert "the wall clock was set forward by" in told
    assert "the wall clock was set back by" in told
    assert "Traceback" not in told


def test_a_year_ahead_for_a_second_deletes_nothing(machine: Machine) -> None:
    options = ("--set", "fileReservedTime=1", "--set", "cleanResourceInterval=200")
    hours = ("--set", "deleteWhen=" + ";".join(f"{hour:02d}" for hour in range(24)))

    async def use(port: int) -> None:
        talk = await Talk.to(port)
        for number in range(60):
            answer = await talk.client.send("big", bytes(50_000), properties=f"UNIQ_KEY\x01B{number}")
            assert answer.code == 0
        files = sorted(next(machine.data.rglob("commitlog")).iterdir())
        assert len(files) >= 3
        machine.set_clock(365 * DAY_MS)
        await talk.has_followed(365 * DAY_MS)
        began = time.monotonic()
        await eventually_async(lambda: time.monotonic() - began > 1, text="it has looked for old files several times")
        assert files[0].exists(), "it may be right again in a second"
        machine.set_clock(0)
        await talk.has_followed(0)
        assert files[0].exists()
        two_hours_ago = now_ms() - 7_200_000
        os.utime(files[0], ns=(two_hours_ago * 1_000_000,) * 2)
        await eventually_async(lambda: not files[0].exists(), timeout=30, text="retention goes on by the right clock")
        assert files[1].exists()

    with machine.broker(*options, *hours) as port:
        run(use(port))


def test_a_clock_that_was_wrong_when_the_broker_began(machine: Machine) -> None:
    """Years behind, as without a battery, until a time server was heard."""

    async def use(port: int) -> None:
        talk = await Talk.to(port)
        now = now_ms()
        await talk.send("level", DELAY=5)
        await talk.send("delay", TIMER_DELAY_MS=5000)
        await talk.send("time", TIMER_DELIVER_MS=now - 3650 * DAY_MS + 60_000_000)
        machine.set_clock(0)
        await talk.has_followed(0)
        arrived = await talk.arrive("level", "delay", "time")
        for body in ("level", "delay"):
            assert now + 5000 - STEP_MS <= arrived[body].stored_ms <= now + 5000 + LATE_MS, body

    machine.set_clock(-3650 * DAY_MS)
    with machine.broker() as port:
        run(use(port))
