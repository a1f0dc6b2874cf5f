"""Delivering what is due: in order, in groups that are not too small, and no further than memory is complete."""

from __future__ import annotations

import asyncio
from pathlib import Path

from kappamq.broker.timers.due import DueTimers
from kappamq.broker.timers.upcoming import Timer
from kappamq.protocol.records.record import Record
from tests.broker.running import run
from tests.broker.timing import START_MS, Timed, timed


async def nobody_recalled(_record: Record, _key: str) -> bool:
    return False


async def parked(it: Timed, *delays: int) -> list[Timer]:
    """Timers as the files would name them, of messages that wait far ahead."""
    for delay in delays:
        await it.send(b"%d" % delay, TIMER_DELAY_MS=3_600_000 + delay)
    await it.settle()
    due = it.broker.delivery.timers._window
    assert due.complete_ms > START_MS
    entries = [it.broker.store.entry("rmq_sys_wheel_timer", 0, number) for number in range(len(delays))]
    return [
        Timer(START_MS + delay, entry[0], entry[1], 1)
        for delay, entry in zip(delays, entries, strict=True)
        if entry is not None
    ]


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


def test_in_order_and_up_to_the_limit(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with timed(tmp_path) as it:
            due = due_timers(it)
            due.add(await parked(it, 30, 10, 20))
            assert (due.first_ms, due.next_ms(START_MS), due.next_ms(START_MS + 10)) == (
                START_MS + 10,
                None,
                START_MS + 10,
            )
            assert due.deliver(START_MS + 25, START_MS + 25, nobody_recalled) is None
            assert (due.delivered, due.first_ms) == (2, START_MS + 30)
            assert it.broker.delivery_tables.timer_progress.due_ms == START_MS + 20
            assert [timer.due_ms for timer in due.of_slot(START_MS)] == [START_MS + 30]
            await it.settle()
            assert await it.bodies() == [b"10", b"20"]
            assert due.deliver(START_MS + 25, START_MS + 25, nobody_recalled) is None
            assert due.delivered == 2

    run(scenario())


def test_many_small_groups_are_gathered(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with timed(tmp_path) as it:
            due = due_timers(it)
            delays = range(1, 121)
            due.add(await parked(it, *delays))
            now_ms = START_MS + 200
            for delay in delays:
                due.deliver(now_ms, START_MS + delay, nobody_recalled)
            assert 100 <= due.delivered < 120
            assert due.pause_ms == now_ms + 5
            due.deliver(due.pause_ms, now_ms, nobody_recalled)
            assert due.delivered == 120, "one group for all that came meanwhile"

    run(scenario())


def test_what_is_being_read_counts_as_pending(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with timed(tmp_path) as it:
            due = due_timers(it)
            due.add(await parked(it, 10, 2000))
            it.broker.kernel.hot_from = it.broker.kernel.append_offset
            job = due.deliver(START_MS + 20, START_MS + 20, nobody_recalled)
            assert job is not None
            assert due.first_ms == START_MS + 10, "the checkpoint must not pass it"
            await job
            assert due.first_ms == START_MS + 10
            due.deliver(START_MS + 20, START_MS + 20, nobody_recalled)
            assert (due.delivered, due.first_ms) == (1, START_MS + 2000)

    run(scenario())
