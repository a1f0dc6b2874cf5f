from __future__ import annotations

import asyncio
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kappamq.client.producer.pressure import Allowance, Pressure
from kappamq.errors import TooManyRequests
from tests.client.loop import on_loop
from tests.waiting import eventually


@on_loop
async def test_who_comes_first_is_served_first_also_when_a_smaller_one_would_fit() -> None:
    pressure, order = Pressure(10, 100), []

    async def want(size: int) -> None:
        await pressure.take(size, 5)
        order.append(size)

    assert pressure.try_take(90)
    tasks = [asyncio.create_task(want(size)) for size in (50, 5, 40)]
    await asyncio.sleep(0)
    assert not pressure.try_take(1)  # it would fit, but others wait
    assert order == []
    pressure.give_back(90)
    await asyncio.gather(*tasks)
    assert order == [50, 5, 40]
    assert (pressure.count, pressure.bytes) == (3, 95)


@on_loop
async def test_the_count_is_a_limit_of_its_own_and_what_is_larger_than_everything_goes_alone() -> None:
    pressure = Pressure(2, 100)
    assert pressure.try_take(1)
    assert pressure.try_take(1)
    assert not pressure.try_take(1)
    pressure.give_back(1)
    pressure.give_back(1)
    assert pressure.try_take(1000)
    assert not pressure.try_take(0)


@on_loop
async def test_waiting_ends_with_an_error_that_says_what_to_do_and_lets_the_next_pass() -> None:
    pressure = Pressure(5, 100)
    pressure.try_take(60)
    large = asyncio.create_task(pressure.take(80, 0.02))
    await asyncio.sleep(0)
    small = asyncio.create_task(pressure.take(30, 5))
    with pytest.raises(
        TooManyRequests, match=r"none was answered within 0\.02 s; this message was not sent: .*inflight_max"
    ):
        await large
    await small
    assert (pressure.count, pressure.bytes) == (2, 90)


@on_loop
async def test_a_cancelled_one_leaves_nothing_behind() -> None:
    pressure = Pressure(1, 100)
    pressure.try_take(1)
    waiting = asyncio.create_task(pressure.take(1, 5))
    await asyncio.sleep(0)
    waiting.cancel()
    pressure.give_back(1)  # its turn comes in the very moment it gives up
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert (pressure.count, pressure.bytes) == (0, 0)
    assert pressure.try_take(1)


@on_loop
async def test_without_waiting_the_answer_is_no() -> None:
    pressure = Pressure(1, 100, wait=False)
    await pressure.take(1, 5)
    with pytest.raises(TooManyRequests, match="1 sends with 1 bytes are in flight; this message was not"):
        await pressure.take(1, 5)


@given(st.lists(st.tuples(st.integers(0, 60), st.booleans()), max_size=60))
def test_the_limits_hold_and_everybody_gets_a_turn(steps: list[tuple[int, bool]]) -> None:
    async def run() -> None:
        pressure, held, tasks = Pressure(3, 100), [], []

        async def want(size: int) -> None:
            await pressure.take(size, 30)
            held.append(size)

        for size, release in steps:
            tasks.append(asyncio.create_task(want(size)))
            await asyncio.sleep(0)
            if release and held:
                pressure.give_back(held.pop())
                await asyncio.sleep(0)
            assert pressure.count <= 3
            assert pressure.bytes <= 100
        while not all(task.done() for task in tasks):
            pressure.give_back(held.pop())
            await asyncio.sleep(0)
        assert (pressure.count, pressure.bytes) == (len(held), sum(held))

    asyncio.run(run())


def test_an_allowance_makes_the_next_one_wait() -> None:
    allowance, passed = Allowance(2, 100), []

    def want(size: int) -> None:
        allowance.take(size)
        passed.append(size)

    assert allowance.take(60) == 60
    waiting = threading.Thread(target=want, args=(50,))
    waiting.start()
    waiting.join(0.05)
    assert passed == []
    allowance.give_back(60)
    waiting.join(30)
    assert passed == [50]
    third = threading.Thread(target=want, args=(1,))
    allowance.take(1)
    third.start()
    third.join(0.05)
    assert passed == [50]  # two are on their way already
    allowance.give_back(1)
    eventually(lambda: passed == [50, 1])


def test_what_is_larger_than_everything_has_the_allowance_alone() -> None:
    allowance = Allowance(2, 100)
    assert allowance.take(1000) == 100
    with pytest.raises(TooManyRequests, match=r"none was answered within 0\.01 s: send slower"):
        allowance.take(1, 0.01)
    allowance.give_back(100)
    assert allowance.take(100) == 100
    with pytest.raises(TooManyRequests, match="is reached: send slower"):
        impatient = Allowance(1, 1, wait=False)
        impatient.take(1)
        impatient.take(1, 30)
