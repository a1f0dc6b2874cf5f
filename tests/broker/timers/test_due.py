"""Delivering what is due: in order, once, in groups that are not too small, and no further than memory is complete."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from kappamq.broker.timers.due import DueTimers
from kappamq.broker.timers.upcoming import Timer
from kappamq.errors import NotAvailable
from kappamq.protocol.records.record import Record
from tests.broker.running import run
from tests.broker.timing import START_MS, Timed, timed
from tests.dialogue import Scenario, Script, scripts


async def nobody_recalled(_record: Record, _key: str) -> bool:
    return False


def due_timers(it: Timed) -> DueTimers:
    broker, tables = it.broker, it.broker.delivery_tables
    return DueTimers(
        broker.store,
        broker.topics,
        broker.delivery.copies,
        tables.timer_progress,
        tables.timer_metrics,
        asyncio.to_thread,
    )


class Dialogue:
    """Timers of messages that are named by the time they are due. Times are ms from the start of the broker's clock."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.end = AsyncExitStack()
        self.timers: dict[int, Timer] = {}
        self.job: Coroutine[Any, Any, None] | None = None
        self.seen = 0

    async def given_timers(self, *dues: int) -> None:
        self.it = await self.end.enter_async_context(timed(self.folder))
        await self._store(*dues)
        self.due = due_timers(self.it)
        self.due.add(self.timers.values())

    async def given_many_timers(self, *, first: int, last: int) -> None:
        """One for each millisecond."""
        await self.given_timers(*range(first, last + 1))

    async def _store(self, *dues: int) -> None:
        """The broker itself is to deliver none of them: it believes that they are due in an hour."""
        for due in dues:
            await self.it.send(b"%d" % due, TIMER_DELAY_MS=3_600_000 + due)
        await self.it.settle()
        for number, due in enumerate(dues):
            entry = self.it.broker.store.entry("rmq_sys_wheel_timer", 0, number)
            assert entry is not None
            self.timers[due] = Timer(START_MS + due, entry[0], entry[1], 1)

    def when_the_files_name_again(self, *dues: int) -> None:
        self.due.add(self.timers[due] for due in dues)

    def when_the_records_are_cold(self) -> None:
        self.it.broker.kernel.hot_from = self.it.broker.kernel.append_offset

    def when_writes_are_refused(self) -> None:
        self.it.broker.gate.close("test", NotAvailable("no room for now"))

    def when_writes_are_allowed(self) -> None:
        self.it.broker.gate.open("test")

    async def when_deliver(self, now: int, *, complete: int = 1 << 40) -> str:
        """`complete`: what is due later is not all in memory."""
        self.job = self.due.deliver(START_MS + now, START_MS + min(now, complete), nobody_recalled)
        return f"{now} ms: the records are to be read first" if self.job is not None else await self._delivered(now)

    async def _delivered(self, now: int) -> str:
        await self.it.settle()
        new = (await self.it.bodies())[self.seen :]
        self.seen += len(new)
        assert self.seen == self.due.delivered
        return f"{now} ms: delivered {b' '.join(new).decode() or 'nothing'}"

    def when_deliver_each_millisecond(self, *, first: int, last: int, now: int) -> str:
        """One small group after the other, all at the same time `now`."""
        before, groups = self.due.delivered, 0
        for due in range(first, last + 1):
            delivered = self.due.delivered
            self.due.deliver(START_MS + now, START_MS + due, nobody_recalled)
            groups += self.due.delivered > delivered
        self.seen += self.due.delivered - before
        return f"{now} ms: delivered {self.due.delivered - before} in {groups} groups"

    async def when_read(self) -> None:
        assert self.job is not None
        await self.job

    def then_next(self, *, complete: int = 1 << 40) -> str:
        due = self.due.next_ms(START_MS + complete)
        return "next: nothing" if due is None else f"next: at {due - START_MS} ms"

    def then_pending(self) -> str:
        """`first` is what the checkpoint must not pass, `in this second` what a stop leaves in the files."""
        first = self.due.first_ms
        left = " ".join(str(timer.due_ms - START_MS) for timer in self.due.of_slot(START_MS))
        return f"first {'nothing' if first is None else first - START_MS}, in this second {left or 'nothing'}"

    def then_progress(self) -> str:
        return f"everything is delivered up to {self.it.broker.delivery_tables.timer_progress.due_ms - START_MS} ms"


@scripts(__file__, "due")
def test_due(tmp_path: Path, script: Script) -> None:
    folders = (tmp_path / str(number) for number in itertools.count())

    async def played(scenario: Scenario) -> None:
        dialogue = Dialogue(next(folders))
        async with dialogue.end:
            await scenario.play(dialogue)

    script.replay(lambda scenario: run(played(scenario)))
