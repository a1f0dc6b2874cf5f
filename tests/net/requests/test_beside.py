"""Long work runs on one thread, fair to addresses and connections, and what may wait for it is limited."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest

from kappamq.errors import Busy, NotConnected
from kappamq.net.requests.beside import Beside
from kappamq.net.requests.fair_turns import Account, FairTurns
from kappamq.net.serving.connection import Connection


class Peer:
    def __init__(self, address: str = "10.0.0.1") -> None:
        self.cost = self.cost_at = 0.0
        self.counted_as = address
        self.is_open = True
        self.on_lost: list[Callable[[Connection], None]] = []

    def lose(self) -> None:
        self.is_open = False
        for callback in self.on_lost:
            callback(of(self))


class Held:
    """A Beside whose thread is kept busy until `go_on`, and what it does then, in order."""

    def __init__(self) -> None:
        self.beside = Beside(FairTurns())
        self.order: list[str] = []
        self._go_on = threading.Event()
        self._jobs: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Held:
        begun = threading.Event()

        def first() -> None:
            begun.set()
            assert self._go_on.wait(20)

        self.beside.open()
        self._jobs.append(asyncio.create_task(self.beside.run(of(Peer("10.9.9.9")), first)))
        await asyncio.to_thread(begun.wait, 20)
        return self

    async def ask(self, peer: Peer, name: str, size: int = 5000, seconds: float = 0.0) -> asyncio.Task[None]:
        def work() -> None:
            self.order.append(name)
            until = time.thread_time() + seconds
            while time.thread_time() < until:
                pass

        job = asyncio.create_task(self.beside.run(of(peer), work, size=size))
        self._jobs.append(job)
        await asyncio.sleep(0)
        return job

    async def go_on(self) -> list[str]:
        """Everything is done; says in which order."""
        self._go_on.set()
        await asyncio.gather(*self._jobs, return_exceptions=True)
        return self.order

    async def __aexit__(self, *error: object) -> None:
        self._go_on.set()
        self.beside.close()


def of(peer: Peer) -> Connection:
    return cast(Connection, peer)


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 30))


def test_returns_what_the_work_returns_and_raises_what_it_raises() -> None:
    async def test() -> None:
        beside = Beside(FairTurns())
        beside.open()
        here = threading.get_ident()
        assert await beside.run(of(Peer()), threading.get_ident) != here
        assert await beside.run(of(Peer()), int, "7") == 7
        with pytest.raises(ValueError, match="invalid literal"):
            await beside.run(of(Peer()), int, "seven")
        beside.close()

    run(test())


def test_who_has_cost_least_comes_first() -> None:
    async def test() -> None:
        async with Held() as held:
            greedy, modest = Peer(), Peer()
            for _ in range(3):
                await held.ask(greedy, "greedy")
            greedy.cost, greedy.cost_at = (
                5.0,
                asyncio.get_running_loop().time(),
            )  # it asked when it had cost nothing yet
            await held.ask(modest, "modest")
            assert await held.go_on() == ["modest", "greedy", "greedy", "greedy"]

    run(test())


def test_many_connections_of_one_address_do_not_keep_others_waiting() -> None:
    async def test() -> None:
        async with Held() as held:
            for number in range(50):
                await held.ask(Peer("10.6.6.6"), f"many{number}", seconds=0.006)
            await held.ask(Peer("10.0.0.2"), "other")
            assert "other" in (await held.go_on())[:2]

    run(test())


def test_small_requests_pass_large_ones_of_the_same_address() -> None:
    async def test() -> None:
        async with Held() as held:
            for number in range(20):
                await held.ask(Peer("127.0.0.1"), f"large{number}", size=2 << 20)
            await held.ask(Peer("127.0.0.1"), "small")
            order = await held.go_on()
            assert order[0] == "small"
            assert order[1:] == [f"large{number}" for number in range(20)], "the rest in the order they came"

    run(test())


def test_what_a_closed_connection_asked_for_is_not_done() -> None:
    async def test() -> None:
        async with Held() as held:
            peers = [Peer() for _ in range(100)]
            gone = [await held.ask(peer, "gone") for peer in peers]
            stays = Peer()
            await held.ask(stays, "stays")
            for peer in peers:
                peer.lose()
            for job in gone:
                with pytest.raises(NotConnected, match="was closed before its request was read"):
                    await job
            assert held.beside._jobs == 1
            assert held.beside._bytes == 5000
            assert len(held.beside._addresses["10.0.0.1"].lines) < 50, "they do not pile up"
            with pytest.raises(NotConnected):
                await (await held.ask(peers[0], "late"))
            assert await held.go_on() == ["stays"]
            assert not stays.on_lost, "nothing is left of it"
            assert not held.beside._lines
            assert not held.beside._addresses
            assert not held.beside._order

    run(test())


@pytest.mark.parametrize("what", ["jobs", "bytes"])
def test_an_address_that_asks_for_too_much_is_refused(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kappamq.net.requests.beside.ADDRESS_JOBS_MAX", 3 if what == "jobs" else 100)
    monkeypatch.setattr("kappamq.net.requests.beside.ADDRESS_BYTES_MAX", 15_000 if what == "bytes" else 1 << 20)

    async def test() -> None:
        async with Held() as held:
            for _ in range(3):
                await held.ask(Peer("10.6.6.6"), "taken")
            with pytest.raises(
                Busy, match=r"3 requests from 10\.6\.6\.6 with 15000 bytes wait to be read: try again later"
            ):
                await (await held.ask(Peer("10.6.6.6"), "refused"))
            await held.ask(Peer("10.0.0.2"), "other")
            end = asyncio.create_task(held.beside.run(of(Peer("10.6.6.6")), held.order.append, "end"))
            assert sorted(await held.go_on()) in (["end", "other"] + 3 * ["taken"], ["other"] + 3 * ["taken"])
            await end
            await (await held.ask(Peer("10.6.6.6"), "again"))
            assert held.order.count("end") == held.order.count("again") == 1

    run(test())


def test_all_addresses_together_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kappamq.net.requests.beside.JOBS_MAX", 5)

    async def test() -> None:
        async with Held() as held:
            for number in range(5):
                await held.ask(Peer(f"10.0.1.{number}"), "taken")
            with pytest.raises(Busy, match="5 requests with 25000 bytes wait to be read"):
                await (await held.ask(Peer("10.0.2.1"), "refused"))
            assert await held.go_on() == ["taken"] * 5

    run(test())


def test_choosing_the_next_does_not_look_at_all_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with Held() as held:
            for number in range(900):
                await held.ask(Peer(f"10.0.{number % 30}.1"), "one")
            looks = 0
            turns = held.beside._turns
            cost = turns.cost

            def counted(account: Account) -> float:
                nonlocal looks
                looks += 1
                return cost(account)

            monkeypatch.setattr(turns, "cost", counted)
            assert len(await held.go_on()) == 900
            assert looks < 20 * 900

    run(test())


def test_what_it_took_is_charged() -> None:
    async def test() -> None:
        beside = Beside(FairTurns())
        beside.open()
        peer = Peer()
        await beside.run(of(peer), sum, range(1_000_000))
        assert peer.cost > 0
        beside.close()

    run(test())


def test_closing_ends_those_who_wait() -> None:
    async def test() -> None:
        beside = Beside(FairTurns())
        waiting = asyncio.create_task(beside.run(of(Peer()), int))  # not open: it waits
        await asyncio.sleep(0)
        assert not waiting.done()
        beside.close()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    run(test())
