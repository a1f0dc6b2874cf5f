"""Turns of the loop are shared: whoever has taken much waits, whoever has taken little does not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest

from kappamq.net.requests.fair_turns import LIGHT_S, LIGHT_TURN_S, SLICE_S, TURN_S, FairTurns
from kappamq.net.serving.connection import WAITING, Connection


class Peer:
    def __init__(self, resumed: Callable[[], None] = lambda: None) -> None:
        self.cost = self.cost_at = 0.0
        self.paused = 0
        self._resumed = resumed

    def pause(self, reason: int) -> None:
        self.paused |= reason

    def resume(self, reason: int) -> None:
        self.paused &= ~reason
        self._resumed()


def of(peer: Peer) -> Connection:
    return cast(Connection, peer)


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 30))


def test_a_turn_that_is_used_up_makes_costly_peers_wait() -> None:
    async def test() -> None:
        turns = FairTurns()
        costly, cheap = Peer(), Peer()
        turns.charge(of(costly), 10 * LIGHT_S)
        assert turns.has_time_for(of(costly))
        turns.spend(TURN_S)
        assert not turns.has_time_for(of(costly))
        assert costly.paused == WAITING
        assert turns.has_time_for(of(cheap)), "it does not wait for those who cost more"
        turns.spend(LIGHT_TURN_S)
        assert not turns.has_time_for(of(cheap)), "there is an end to every turn"
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not costly.paused, "the next turn is a new one"
        assert not cheap.paused

    run(test())


def test_who_cost_little_comes_first_and_one_turn_does_not_serve_all() -> None:
    async def test() -> None:
        turns = FairTurns()
        order: list[str] = []

        def served(name: str) -> Callable[[], None]:
            def note() -> None:
                order.append(name)
                turns.spend(TURN_S)

            return note

        peers = {name: Peer(served(name)) for name in ("costly1", "costly2", "cheap")}
        for name, peer in peers.items():
            if name != "cheap":
                turns.charge(of(peer), 1.0)
        turns.spend(LIGHT_TURN_S)
        assert not any(turns.has_time_for(of(peer)) for peer in peers.values())
        seen = []
        while len(order) < 3:
            await asyncio.sleep(0)
            seen.append(len(order))
        assert order == ["cheap", "costly1", "costly2"]
        assert {1, 2} <= set(seen), "each in a turn of its own"

    run(test())


def test_what_somebody_cost_is_forgotten() -> None:
    async def test() -> None:
        turns = FairTurns()
        peer = Peer()
        turns.charge(of(peer), 1.0)
        peer.cost_at -= 60
        turns.spend(TURN_S)
        assert turns.has_time_for(of(peer))

    run(test())


def test_long_work_lets_others_in_between() -> None:
    async def test() -> None:
        turns = FairTurns()
        others = 0

        async def other() -> None:
            nonlocal others
            while True:
                others += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(other())
        async for _ in turns.share(range(5)):
            began = asyncio.get_running_loop().time()
            while asyncio.get_running_loop().time() - began <= 2 * SLICE_S:
                pass
        task.cancel()
        assert others >= 4

    run(test())


def test_short_work_is_not_interrupted() -> None:
    async def test() -> None:
        turns = FairTurns()
        assert [item async for item in turns.share("abc")] == ["a", "b", "c"]
        done: list[int] = []
        await turns.run(done.append(number) for number in range(3))
        assert done == [0, 1, 2]

    run(test())


def test_costly_peers_and_long_work_both_get_on() -> None:
    async def test() -> None:
        turns = FairTurns()
        resumed: list[int] = []
        peers = [Peer(lambda number=number: resumed.append(number)) for number in range(3)]  # type: ignore[misc]
        for peer in peers:
            turns.charge(of(peer), 1.0)
        turns.spend(LIGHT_TURN_S)
        assert not any(turns.has_time_for(of(peer)) for peer in peers)
        slices = [asyncio.create_task(turns.next_slice()) for _ in range(10)]
        await asyncio.gather(*slices)
        for _ in range(10):
            await asyncio.sleep(0)
        assert resumed == [0, 1, 2]

    run(test())


def test_light_peers_that_always_have_more_do_not_keep_costly_ones_out() -> None:
    async def test() -> None:
        turns = FairTurns()
        served: list[str] = []

        def has_more(peer: Peer, name: str) -> Callable[[], None]:
            def resumed() -> None:
                while turns.has_time_for(of(peer)):
                    served.append(name)
                    turns.spend(TURN_S)

            return resumed

        light, costly = [Peer() for _ in range(5)], Peer()
        for number, peer in enumerate(light):
            peer._resumed = has_more(peer, f"light{number}")
        costly._resumed = has_more(costly, "costly")
        turns.charge(of(costly), 1000.0)
        turns.spend(LIGHT_TURN_S)
        assert not any(turns.has_time_for(of(peer)) for peer in (*light, costly))
        for _ in range(40):
            await asyncio.sleep(0)
        assert served.count("costly") > 5
        assert all(served.count(f"light{number}") > 5 for number in range(5))

    run(test())


def test_a_new_connection_has_cost_nothing_whatever_the_time() -> None:
    class Later:
        """A server whose clock is far ahead of the loop's: the loop counts from the start of the machine."""

        now = 1e9

    async def test() -> None:
        turns = FairTurns()
        connection = Connection(cast(Any, Later()))
        assert turns.cost(connection) == 0.0
        turns.charge(connection, 1.0)
        assert 0.5 < turns.cost(connection) <= 1.0

    run(test())


def test_who_is_closed_while_it_waits_leaves_no_line_behind() -> None:
    """A generator that is thrown away gets a GeneratorExit: nobody cancels what it waits for."""

    async def test() -> None:
        turns, peer = FairTurns(), Peer()
        for begins_anew in (False, True):
            turns.spend(LIGHT_TURN_S)
            waits, behind = turns.wait_for_time(of(peer)), turns.wait_for_time(of(peer))
            next(waits), next(behind)
            assert turns.waiting(of(peer)) == 2
            waits.close()
            if begins_anew:
                behind.close()
            for _ in range(5):
                await asyncio.sleep(0)
            if not begins_anew:
                assert not turns.waiting(of(peer)), "who comes behind it is woken"
                with pytest.raises(StopIteration) as ended:
                    next(behind)
                assert ended.value.value is True
            assert not turns._lines

    run(test())
