"""Requests that are answered later take turns, step by step, and one peer's many do not hold up another's few."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Coroutine
from typing import Any, cast

import pytest

from kappamq.errors import NotConnected
from kappamq.net.requests.charged import Charged
from kappamq.net.requests.fair_turns import LIGHT_S, LIGHT_TURN_S, LINE_MAX, SLICE_S, FairTurns
from kappamq.net.serving.connection import Connection
from kappamq.protocol.frame import Frame, reply
from tests.net.running import Echo, connected, frame_server, run
from tests.waiting import eventually_async

STEP_S = 2 * SLICE_S


class Peer:
    def __init__(self) -> None:
        self.cost = self.cost_at = 0.0
        self.is_open = True


def charged(work: Coroutine[Any, Any, Any], peer: Peer, turns: FairTurns) -> Charged[Any]:
    connection = cast(Connection, peer)

    def took(seconds: float) -> None:
        turns.spend(seconds)
        turns.charge(connection, seconds)

    return Charged(work, connection, turns, took, is_wanted=lambda: peer.is_open)


async def awaited(work: Awaitable[Any]) -> Any:
    return await work


def burn(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def test_the_steps_of_many_requests_are_spread_over_turns_in_their_order() -> None:
    async def test() -> None:
        turns, peer, done = FairTurns(), Peer(), list[tuple[int, int]]()

        async def work(number: int) -> int:
            for step in range(2):
                burn(STEP_S)
                done.append((step, number))
                await asyncio.sleep(0)
            return number

        tasks = [asyncio.ensure_future(awaited(charged(work(number), peer, turns))) for number in range(20)]
        most = before = 0
        while not all(task.done() for task in tasks):
            await asyncio.sleep(0)
            most, before = max(most, len(done) - before), len(done)
        assert [task.result() for task in tasks] == list(range(20))
        assert most <= 3, "steps in one turn of the loop"
        assert [number for step, number in done if step == 0] == list(range(20))
        assert peer.cost > 20 * STEP_S, "they are charged"

    run(test())


def test_who_has_cost_little_does_not_wait_for_those_who_have() -> None:
    async def test() -> None:
        turns, order = FairTurns(), list[str]()

        async def work(name: str) -> None:
            burn(STEP_S)
            order.append(name)

        costly = [Peer() for _ in range(3)]
        for peer in costly:
            turns.charge(cast(Connection, peer), 100 * LIGHT_S)
        tasks = [asyncio.ensure_future(awaited(charged(work("costly"), peer, turns))) for peer in costly * 10]
        turns.spend(LIGHT_TURN_S)
        await asyncio.sleep(0)
        tasks.append(asyncio.ensure_future(awaited(charged(work("polite"), Peer(), turns))))
        await asyncio.gather(*tasks)
        assert order.index("polite") < 8

    run(test())


def test_connections_take_turns_however_much_each_has_sent() -> None:
    async def test() -> None:
        turns, order = FairTurns(), list[str]()

        async def work(name: str) -> None:
            burn(STEP_S)
            order.append(name)

        much, little = Peer(), Peer()
        for peer in (much, little):
            turns.charge(cast(Connection, peer), 100 * LIGHT_S)
        tasks = [asyncio.ensure_future(awaited(charged(work("much"), much, turns))) for _ in range(20)]
        turns.spend(LIGHT_TURN_S)
        tasks += [asyncio.ensure_future(awaited(charged(work("little"), little, turns))) for _ in range(3)]
        await asyncio.gather(*tasks)
        assert max(index for index, name in enumerate(order) if name == "little") < 10

    run(test())


def test_a_failure_of_what_it_waits_for_and_its_own_reach_where_they_belong() -> None:
    async def test() -> None:
        turns, waits_for = FairTurns(), asyncio.get_running_loop().create_future()

        async def work() -> str:
            with pytest.raises(KeyError):
                await waits_for
            raise ValueError("its own")

        task = asyncio.ensure_future(awaited(charged(work(), Peer(), turns)))
        await asyncio.sleep(0)
        waits_for.set_exception(KeyError())
        with pytest.raises(ValueError, match="its own"):
            await task

    run(test())


@pytest.mark.parametrize("waits", ["for a turn", "for something"])
def test_one_that_is_cancelled_cleans_up(waits: str) -> None:
    async def test() -> None:
        turns, peer, seen = FairTurns(), Peer(), list[str]()

        async def work() -> None:
            seen.append("begun")
            try:
                if waits == "for something":
                    await asyncio.Event().wait()
                await asyncio.sleep(0)
                burn(LIGHT_TURN_S)
                await asyncio.sleep(0)
            finally:
                seen.append("cleaned up")

        tasks = [asyncio.ensure_future(awaited(charged(work(), peer, turns))) for _ in range(3)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        assert all(
            isinstance(each, asyncio.CancelledError) for each in await asyncio.gather(*tasks, return_exceptions=True)
        )
        assert seen.count("begun") == seen.count("cleaned up")
        # Nobody is left in the line.
        await asyncio.wait_for(charged(asyncio.sleep(0), peer, turns), 10)

    run(test())


def test_what_nobody_waits_for_any_more_is_not_begun() -> None:
    async def test() -> None:
        turns, peer, begun = FairTurns(), Peer(), list[int]()

        async def work() -> None:
            begun.append(1)

        task = asyncio.ensure_future(awaited(charged(work(), peer, turns)))
        turns.spend(LIGHT_TURN_S)  # it comes into a turn that is used up
        peer.is_open = False
        with pytest.raises(NotConnected):
            await task
        assert not begun
        charged(work(), peer, turns).close()  # no warning that it was never awaited

    run(test())


def test_who_has_many_under_way_is_not_read_from_meanwhile() -> None:
    """Else they would pile up, and be refused, while the answer to each of them takes no time."""

    async def test() -> None:
        turns = FairTurns()
        reads: list[bool] = []

        class Reading(Peer):
            def pause(self, reason: int) -> None:
                reads.append(False)

            def resume(self, reason: int) -> None:
                reads.append(True)

        peer = Reading()
        connection = cast(Connection, peer)
        tasks = [asyncio.ensure_future(awaited(charged(asyncio.sleep(0), peer, turns))) for _ in range(2 * LINE_MAX)]
        turns.spend(LIGHT_TURN_S)
        await eventually_async(lambda: turns.waiting(connection), pause=0)
        assert not turns.has_time_for(connection)
        assert reads == [False]
        await asyncio.gather(*tasks)
        assert reads == [False, True]
        assert not turns.waiting(connection)

    run(test())


def test_a_flood_over_one_connection_does_not_keep_another_waiting() -> None:
    async def test() -> None:
        served: list[int] = []

        async def slow(frame: Frame) -> Frame:
            burn(STEP_S)
            served.append(frame.opaque)
            return reply(frame)

        service = Echo(lambda connection, frame: slow(frame) if frame.code == 1 else reply(frame))
        async with frame_server(service) as (_server, port), connected(port) as flood, connected(port) as polite:
            for peer in (flood, polite):
                await peer.say(Frame(code=1, opaque=1).encode())
                await peer.frame()
            await flood.say(b"".join(Frame(code=1, opaque=number).encode() for number in range(2, 102)))
            await eventually_async(lambda: len(served) > 2)
            before = len(served)
            await polite.say(Frame(code=2).encode())
            await polite.frame()
            assert len(served) - before < 30, "steps of the flood between a request and its answer"
            assert [(await flood.frame()).opaque for _ in range(100)] == list(range(2, 102))

    run(test())
