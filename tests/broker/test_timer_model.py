"""Timers against the simplest model there is: a dictionary of times. With restarts, deaths, lost files and long absences."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kappamq.protocol.headers.client import RecallMessage
from kappamq.protocol.recall import RecallHandle
from kappamq.store.timer.entries import ROLL_MS
from tests.broker.timing import START_MS, MessageClock, Timed, timed
from tests.store.stores import kernels

HOUR_MS = 3_600_000
DELAYS = st.one_of(
    st.integers(1, 3000),
    st.sampled_from([1000, 1001, 60_000, HOUR_MS]),
    st.sampled_from([ROLL_MS - 1, ROLL_MS, ROLL_MS + 1, 2 * ROLL_MS + 5, 5 * ROLL_MS]),
)
STEPS = st.one_of(
    st.integers(0, 1500), st.sampled_from([1, 999, 1000, 60_000, HOUR_MS, ROLL_MS // 2, ROLL_MS, 3 * ROLL_MS])
)


class Machine(RuleBasedStateMachine):
    """Every step is a whole one: what the client is answered has happened."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="kappamq-timers-"))
        self.folder = self.root / "0"
        self.clock = MessageClock(START_MS + 123)
        self.runner = asyncio.Runner()
        self.boots = 0
        self.copies = 0
        self.due: dict[bytes, int] = {}  # what waits
        self.done: list[bytes] = []  # what has been delivered, in order
        self.number = 0

    @initialize(mode=st.sampled_from(kernels()), flush=st.sampled_from(["async", "sync"]))
    def begin(self, mode: str, flush: str) -> None:
        self.mode, self.flush = mode, flush
        self.start()

    def start(self) -> None:
        os.environ["KAPPAMQ_BOOT_ID"] = f"boot {self.boots}"
        options: dict[str, Any] = {
            "store": {"flush": self.flush, "timer_file_bytes": 4096, "segment_bytes": 4 << 20},
            "timer_delay_max_s": 10 * ROLL_MS // 1000,
        }
        self.context = timed(self.folder, self.mode, clock=self.clock, **options)
        self.it: Timed = self.runner.run(self.context.__aenter__())
        self.run(self.it.settle())

    def run(self, work: Any) -> Any:
        return self.runner.run(asyncio.wait_for(work, 30))

    def stop(self) -> None:
        self.runner.run(self.context.__aexit__(None, None, None))

    # -- what happens --------------------------------------------------------------------------------------------------------

    @rule(delays=st.lists(DELAYS, min_size=1, max_size=12))
    def send(self, delays: list[int]) -> None:
        async def send() -> None:
            for delay in delays:
                self.number += 1
                body = b"%d" % self.number
                await self.it.send(body, key=f"K{self.number}", TIMER_DELAY_MS=delay)
                self.due[body] = self.clock.message_ms() + delay

        self.run(send())

    @precondition(lambda self: self.due)
    @rule(data=st.data())
    def recall(self, data: st.DataObject) -> None:
        body = data.draw(st.sampled_from(sorted(self.due)))
        handle = RecallHandle("tea", "b", self.due[body], f"K{int(body)}").encode()
        answer = self.run(self.it.client.ask(RecallMessage(topic="tea", recall_handle=handle)))
        assert answer.code == 0, answer.remark
        del self.due[body]

    @rule(ms=STEPS)
    def wait(self, ms: int) -> None:
        self.run(self.it.pass_ms(ms))
        self.expect()

    @rule()
    def restart(self) -> None:
        self.stop()
        self.start()

    @rule(ms=STEPS, reboot=st.booleans(), lose=st.sampled_from(["", "timerwheel", "timerlog", "config/timercheck"]))
    def die(self, ms: int, reboot: bool, lose: str) -> None:
        """Killed, and found again later as the files were at that moment; perhaps without some of them."""
        self.copies += 1
        before, self.folder = self.folder, self.root / str(self.copies)
        shutil.copytree(before, self.folder)
        self.stop()
        shutil.rmtree(before)
        lost = self.folder / lose
        if lose and lost.exists():
            shutil.rmtree(lost) if lost.is_dir() else lost.unlink()
        self.boots += reboot
        self.clock.advance(ms=ms)
        self.start()
        self.expect()

    # -- what must be --------------------------------------------------------------------------------------------------------

    def expect(self) -> None:
        """Everything whose time has come is there now, and was not before."""
        now = self.clock.message_ms()
        came = sorted((due, int(body)) for body, due in self.due.items() if due <= now)
        self.done += [b"%d" % number for _due, number in came]
        self.due = {body: due for body, due in self.due.items() if due > now}

    @invariant()
    def delivered_once_and_never_early(self) -> None:
        if not hasattr(self, "it"):
            return
        found = self.run(self.it.bodies())
        assert sorted(found, key=int) == sorted(self.done, key=int)
        assert len(set(found)) == len(found)

    def teardown(self) -> None:
        if hasattr(self, "it"):
            # In the end all that was not taken back is delivered.
            if self.due:
                self.run(self.it.pass_ms(max(self.due.values()) - self.clock.message_ms()))
                self.expect()
                self.delivered_once_and_never_early()
            self.stop()
        self.runner.close()
        os.environ.pop("KAPPAMQ_BOOT_ID", None)
        shutil.rmtree(self.root, ignore_errors=True)


Machine.TestCase.settings = settings(
    max_examples=int(os.environ.get("KAPPAMQ_TIMER_EXAMPLES", "10")),
    stateful_step_count=12,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestTimers = Machine.TestCase
