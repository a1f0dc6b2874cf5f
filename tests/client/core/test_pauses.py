from __future__ import annotations

import asyncio

from kappamq.client.core import pauses
from kappamq.clock import SystemClock
from kappamq.testing import KitClock
from tests.client.loop import on_loop
from tests.waiting import eventually_async

HOUR_S = 3600.0


@on_loop
async def test_a_pause_ends_in_real_time() -> None:
    ended: list[str] = []
    pauses.on_loop(0.0, ended.append, "plain")
    pauses.later(SystemClock(), 0.0, ended.append, "with a clock")
    pauses.later(SystemClock(), HOUR_S, ended.append, "later")
    await eventually_async(lambda: len(ended) == 2)
    assert ended == ["plain", "with a clock"]


@on_loop
async def test_a_pause_ends_when_the_clock_is_turned() -> None:
    clock, ended = KitClock(), list[str]()
    for name, hours in (("second", 2), ("first", 1), ("also first", 1)):
        pauses.later(clock, hours * HOUR_S, ended.append, name)
    began = clock.message_ms()
    assert clock.next_alarm_ms() == began + 3_600_000
    assert not clock.ring_due()
    clock.not_before(began + 3_600_000)
    assert clock.ring_due()
    assert clock.is_ringing
    await asyncio.sleep(0)
    assert ended == ["first", "also first"]
    assert not clock.is_ringing
    assert clock.next_alarm_ms() == began + 7_200_000


@on_loop
async def test_a_pause_that_is_over_does_not_ring() -> None:
    clock, ended = KitClock(), list[int]()
    pauses.later(clock, 0.001, ended.append, 1)
    await eventually_async(lambda: ended)
    clock.not_before(clock.message_ms() + 1000)
    assert clock.next_alarm_ms() is None
    assert not clock.ring_due()
    assert ended == [1]


def test_nobody_is_waited_for_whose_loop_has_ended() -> None:
    clock = KitClock()

    async def begin() -> None:
        pauses.later(clock, HOUR_S, print)

    for close in (False, True):
        with asyncio.Runner() as runner:
            runner.run(begin())
            if close:
                runner.close()
            clock.not_before(clock.message_ms() + 3_600_000)
            assert clock.ring_due()
            assert not clock.is_ringing
