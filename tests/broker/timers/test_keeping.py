"""Timers outlive the log they were written to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kappamq.protocol.names import TIMER_TOPIC
from tests.broker.running import crash_copy, on_disk, run
from tests.broker.timing import MessageClock, Timed, timed
from tests.waiting import eventually_async

AHEAD_MS = 4_000_000_000_000  # files are as old as the machine says: a clock that is ahead of it makes them expire
STORE: dict[str, Any] = {
    "segment_bytes": 1 << 16,
    "message_bytes_max": 10_000,
    "retention_hours": 0,
    "delete_hours": tuple(range(24)),
    "timer_file_bytes": 4096,
}
DAY_MS = 86_400_000


async def fill(it: Timed, count: int = 20) -> None:
    for _ in range(count):
        await it.send(b"x" * 9000, topic="filler")
    await on_disk(it.broker)


@pytest.mark.parametrize("crash", [False, True])
def test_survivors_are_stored_again(tmp_path: Path, crash: bool) -> None:
    async def scenario() -> None:
        async with timed(tmp_path / "a", store=STORE, clock=MessageClock(AHEAD_MS)) as it:
            for number in range(150):
                await it.send(b"%d" % number, key=f"K{number}", TIMER_DELAY_MS=DAY_MS + number)
            await it.send(b"soon", TIMER_DELAY_MS=1000)
            await fill(it)
            await it.pass_ms(1000)
            log = it.broker.store.log
            assert await it.broker.upkeep.delete_expired(asked=True) > 0
            assert log.min > 0
            assert it.broker.delivery_tables.timer_progress.moved_below > 150 * 200
            await it.settle()
            assert it.broker.delivery_tables.timer_metrics.total == 150
            first = log.min
            for _ in range(3):
                await fill(it)
                await it.broker.upkeep.delete_expired(asked=True)
            assert log.min > first
            assert await it.bodies() == [], "what was delivered has gone with the log"
            assert len(list((tmp_path / "a" / "timerlog").iterdir())) < 8, "of the timer log goes what the log has lost"
            if crash:
                await crash_copy(it.broker, tmp_path / "b")
        again = tmp_path / ("b" if crash else "a")
        async with timed(again, store=STORE, clock=MessageClock(AHEAD_MS + 2000)) as it:
            await it.pass_ms(DAY_MS - 2001)
            assert await it.bodies() == []
            await it.pass_ms(1000)
            assert await it.bodies() == [b"%d" % number for number in range(150)]

    run(scenario())


def test_what_is_about_to_be_delivered_is_waited_for(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with timed(tmp_path, store=STORE, clock=MessageClock(AHEAD_MS)) as it:
            await it.send(b"soon", TIMER_DELAY_MS=3000)
            await fill(it)
            assert await it.broker.upkeep.delete_expired(asked=True) == 0
            assert it.broker.delivery.timer_keeper.needed_from < 1 << 16
            await it.pass_ms(3000)
            assert await it.broker.upkeep.delete_expired(asked=True) > 0
            assert await it.bodies() == [b"soon"]

    run(scenario())


def test_what_was_stored_again_is_not_stored_again_and_again(tmp_path: Path) -> None:
    """One that is about to be delivered keeps the log from losing its beginning, round after round."""

    async def scenario() -> None:
        async with timed(tmp_path, store=STORE, clock=MessageClock(AHEAD_MS)) as it:
            for number in range(150):
                await it.send(b"%d" % number, key=f"K{number}", TIMER_DELAY_MS=DAY_MS + number)
            await it.send(b"soon", TIMER_DELAY_MS=4000)
            await fill(it)
            assert await it.broker.upkeep.delete_expired(asked=True) == 0
            await it.settle()
            end = it.broker.kernel.queue_state(TIMER_TOPIC, 0).next
            assert end == 151 + 150
            for _ in range(2):
                assert await it.broker.upkeep.delete_expired(asked=True) == 0
            assert it.broker.kernel.queue_state(TIMER_TOPIC, 0).next == end
            await it.pass_ms(DAY_MS + 1000)
            assert await it.bodies() == [b"soon", *(b"%d" % number for number in range(150))]

    run(scenario())


def test_without_timers_nothing_is_kept(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with timed(tmp_path, store=STORE, clock=MessageClock(AHEAD_MS)) as it:
            await fill(it)
            assert await it.broker.upkeep.delete_expired(asked=True) > 0
            keeper, store = it.broker.delivery.timer_keeper, it.broker.store
            await eventually_async(lambda: keeper.needed_from == store.log.end, text="all of the log is in its queues")

    run(scenario())


def test_log_files_stay_until_the_copies_of_their_timers_survive_a_power_cut(tmp_path: Path) -> None:
    """Also with async flush: an answer does not wait for the disk, but a deletion cannot be taken back."""

    async def scenario() -> None:
        async with timed(tmp_path, store=STORE, clock=MessageClock(AHEAD_MS)) as it:
            await it.send(b"tomorrow", TIMER_DELAY_MS=DAY_MS)
            await fill(it)
            store = it.broker.store
            keep, seen = it.broker.delivery.timer_keeper.renew_below, []

            async def renew_below(log_min: int) -> None:
                await keep(log_min)
                seen.append((store.entry(TIMER_TOPIC, 0, 1), store.marks.confirmed.offset))

            it.broker.delivery.timer_keeper.renew_below = renew_below  # type: ignore[method-assign]
            assert await it.broker.upkeep.delete_expired(asked=True) > 0
            ((copy, confirmed),) = seen
            assert copy is not None, "the timer was stored again"
            assert confirmed >= copy[0] + copy[1]

    run(scenario())
