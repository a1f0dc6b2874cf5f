"""Random lives of a broker whose wall clock is set all the time, against a model that knows what really passed."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.broker.running import crash_copy, run
from tests.broker.timing import MessageClock, Timed, timed
from tests.waiting import eventually_async

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
LEVELS = {"delay_levels": "1s 1m 2h"}
LEVELS_MS = (1000, 60_000, 2 * HOUR_MS)
STEPS = 30


@dataclass
class Sent:
    """One message: due after so much time has passed, or when the clock shows a time."""

    passed_ms: int | None = None  # by the uptime
    shown_ms: int | None = None  # by the wall clock
    is_due: bool = False

    def look(self, clock: MessageClock) -> None:
        if self.passed_ms is not None:
            self.is_due |= clock.uptime_ms() >= self.passed_ms
        if self.shown_ms is not None:
            self.is_due |= clock.message_ms() >= self.shown_ms


class Life:
    def __init__(self, root: Path, seed: int) -> None:
        self.dice = random.Random(seed)
        self.root = root
        self.clock = MessageClock()
        self.sent: dict[bytes, Sent] = {}
        self.lives = 0
        self.steps_left = STEPS

    async def live(self) -> None:
        store = self.root / "0"
        while self.steps_left:
            async with timed(store, clock=self.clock, **LEVELS) as it:
                await it.broker.upkeep._record_and_save()  # how the clocks stand to each other is kept
                await self.agrees(it)
                while self.steps_left and self.dice.random() < 0.85:
                    self.steps_left -= 1
                    await self.step(it)
                    await self.agrees(it)
                self.lives += 1
                if self.dice.random() < 0.5:  # as kill -9 would leave it
                    it.broker.writer.end_turn()
                    store = await crash_copy(it.broker, self.root / str(self.lives))
            if self.dice.random() < 0.3:
                self.clock.jump(ms=self.jump_ms())
            self.let_pass(self.dice.choice((0, 5000, HOUR_MS)))

    def jump_ms(self) -> int:
        size = self.dice.choice((3000, 60_000, HOUR_MS, DAY_MS, 14 * DAY_MS, 365 * DAY_MS))
        return self.dice.choice((-1, 1)) * size + self.dice.randrange(-500, 500)

    def let_pass(self, ms: int) -> None:
        self.clock.advance(ms=ms)

    async def step(self, it: Timed) -> None:
        what = self.dice.choice(("level", "delay", "time", "time", "jump", "pass", "pass"))
        body = b"%d %s" % (len(self.sent), what.encode())
        if what == "level":
            level = self.dice.randrange(3)
            self.sent[body] = Sent(passed_ms=self.clock.uptime_ms() + LEVELS_MS[level])
            await it.send(body, DELAY=level + 1)
        elif what == "delay":
            delay_ms = self.dice.choice((1, 1500, HOUR_MS, 30 * HOUR_MS, 60 * HOUR_MS))
            self.sent[body] = Sent(passed_ms=self.clock.uptime_ms() + delay_ms)
            await it.send(body, TIMER_DELAY_MS=delay_ms)
        elif what == "time":
            shown_ms = self.clock.message_ms() + self.dice.choice((1, 2500, HOUR_MS, 30 * HOUR_MS, 60 * HOUR_MS))
            self.sent[body] = Sent(shown_ms=shown_ms)
            await it.send(body, TIMER_DELIVER_MS=shown_ms)
        elif what == "jump":
            jumps = it.broker.clock_watch.jumps
            self.clock.jump(ms=self.jump_ms())
            await eventually_async(lambda: it.broker.clock_watch.jumps > jumps, text="the jump is noticed")
        else:
            self.let_pass(self.dice.choice((1, 999, 1000, 30_000, HOUR_MS, 12 * HOUR_MS)))

    async def agrees(self, it: Timed) -> None:
        """What has come is what is due: nothing early, late, twice or never."""
        await it.settle()
        for sent in self.sent.values():
            sent.look(self.clock)
        due = sorted(body for body, sent in self.sent.items() if sent.is_due)
        assert sorted(await it.bodies()) == due


@pytest.mark.parametrize("seed", range(3))
def test_whatever_the_clock_shows(tmp_path: Path, seed: int) -> None:
    run(Life(tmp_path, seed).live())
