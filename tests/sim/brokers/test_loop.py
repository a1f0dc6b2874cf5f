import asyncio

import pytest

from kappamq.sim.brokers.loop import Inline, Loop
from kappamq.sim.brokers.settings import Faults
from kappamq.sim.brokers.streams import Streams
from kappamq.sim.world import World


def made(world: World) -> tuple[Loop, list[float]]:
    turns: list[float] = []
    streams = Streams(world, Faults())
    return Loop(world, streams, "a", lambda: turns.append(world.now)), turns  # type: ignore[abstract]


def test_time_is_the_worlds_and_every_turn_is_told() -> None:
    world = World(1)
    loop, turns = made(world)
    slept: list[float] = []

    async def sleep() -> None:
        before = loop.time()
        await asyncio.sleep(5)  # of the world's time, which costs nothing
        slept.append(loop.time() - before)

    loop.create_task(sleep())
    world.run_until(4_000)
    assert not slept
    world.run_until(6_000)
    assert slept == [pytest.approx(5, abs=0.001)]
    assert len(turns) >= 2


def test_a_killed_process_does_nothing_more_and_a_paused_one_later() -> None:
    world = World(1)
    loop, _turns = made(world)
    done: list[str] = []

    async def work(name: str) -> None:
        try:
            await asyncio.sleep(1)  # likewise
            done.append(name)
        finally:
            done.append("end of " + name)

    loop.create_task(work("paused"))
    world.run_until(500)
    loop.pause()
    world.run_until(3_000)
    assert done == []
    loop.go_on()
    world.run_until(3_100)
    assert done == ["paused", "end of paused"]
    loop.create_task(work("killed"))
    world.run_until(3_200)
    loop.kill()
    world.run_until(9_000)
    assert done[2:] == ["end of killed"]
    assert loop.create_task(work("dead")).cancelled()
    assert loop.is_closed()


def test_one_thread_does_one_thing_after_the_other() -> None:
    world = World(1)
    loop, _turns = made(world)
    thread, done = Inline(), []

    async def work() -> None:
        await asyncio.gather(*(loop.run_in_executor(thread, done.append, number) for number in range(20)))
        with pytest.raises(ZeroDivisionError):
            await loop.run_in_executor(thread, lambda: 1 / 0)
        done.append(99)

    loop.create_task(work())
    world.run_until(1_000)
    assert done == [*range(20), 99]
    assert thread.submit(lambda: 5).result() == 5
    with pytest.raises(ZeroDivisionError):
        thread.submit(lambda: 1 / 0).result()


def test_what_was_readable_before_somebody_looked_is_told() -> None:
    world = World(1)
    loop, _turns = made(world)
    heard: list[int] = []
    loop.readable(7)
    loop.add_reader(7, heard.append, 1)
    world.run_until(1)
    loop.readable(7)
    world.run_until(2)
    assert heard == [1, 1]
    assert loop.remove_reader(7)
    assert not loop.remove_reader(7)
