"""Offsets that were committed where nobody writes come to the node that does, and stay what they are."""

from __future__ import annotations

from collections.abc import Coroutine, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from kappamq.broker.broker import Broker
from kappamq.broker.copies.consumers.forwarding import Forwarding
from kappamq.clock import VirtualClock
from kappamq.config.copies import SLAVE, CopiesConfig
from kappamq.protocol.headers.client import UpdateConsumerOffset
from kappamq.state.offsets import Offsets
from tests.broker.copies.copying import caught_up
from tests.broker.copies.members.test_group import members
from tests.broker.running import Speaker, run, running, speaking
from tests.waiting import eventually_async


async def commit(speaker: Speaker, offset: int) -> None:
    answer = await speaker.ask(UpdateConsumerOffset(consumer_group="g", topic="tea", queue_id=0, commit_offset=offset))
    assert answer.code == 0, answer.remark


async def sent(broker: Broker, count: int) -> None:
    async with speaking(broker) as speaker:
        await speaker.subscribe("g", "tea")
        for _ in range(count):
            assert (await speaker.send("tea", b"x")).code == 0


def test_what_was_committed_to_a_slave_comes_to_its_master(tmp_path: Path) -> None:
    async def test() -> None:
        async with AsyncExitStack() as stack:
            first = await stack.enter_async_context(AsyncExitStack())
            master = await first.enter_async_context(running(tmp_path / "m"))
            port = master.port
            copies = CopiesConfig(role=SLAVE, master_address=f"127.0.0.1:{port + 1}")
            slave = await stack.enter_async_context(running(tmp_path / "s", copies=copies, broker_id=1))
            await sent(master, 10)
            await caught_up(master, slave)
            await first.aclose()
            async with speaking(slave) as speaker:
                await commit(speaker, 7)
            assert slave.offsets.get("g", "tea", 0) == 7
            master = await stack.enter_async_context(running(tmp_path / "m", port=port))
            await eventually_async(lambda: master.offsets.get("g", "tea", 0) == 7, text="the master knows it")
            await eventually_async(lambda: slave.offsets.beside() == [], text="the slave has it from the log")
            assert slave.offsets.get("g", "tea", 0) == 7

    run(test())


def test_what_a_leader_answered_before_it_was_deposed_is_not_forgotten(tmp_path: Path) -> None:
    async def test() -> None:
        async with members(tmp_path) as group:
            leader = await group.leader()
            await sent(leader, 10)
            await group.agree()
            others = [name for name, broker in group.running.items() if broker is not leader]
            async with speaking(leader) as speaker:
                for name in others:
                    await group.stop(name)
                await commit(speaker, 8)  # what it records now can never be confirmed
                await eventually_async(lambda: not leader.role.is_held, text="it steps down")
            name = next(name for name, broker in group.running.items() if broker is leader)
            for other in others:
                await group.start(other)
            await group.leader()

            async def known() -> bool:
                return all(broker.offsets.get("g", "tea", 0) == 8 for broker in group.running.values())

            await eventually_async(known, text="everybody knows it")
            assert name in group.running
            await eventually_async(lambda: leader.offsets.beside() == [], text="it has it from the log")

    run(test())


class Beside(Offsets):
    """Offsets that nobody records here; counts how many of them were asked for."""

    asked = 0

    def each_beside(self) -> Iterator[tuple[str, str, int, int]]:
        for each in super().each_beside():
            self.asked += 1
            yield each


class Teller:
    def __init__(self, count: int = 0) -> None:
        self.clock = VirtualClock()
        self.master: str | None = None
        self.offsets = Beside(self.clock.message_ms, lambda kind, change, *, anyway=False: 0)
        for queue in range(count):
            self.offsets.commit("g", "tea", queue, 7)
        self.told: list[Coroutine[Any, Any, None]] = []
        self.it = Forwarding(self.offsets, self.clock, lambda: self.master, None, self.told.append)

    async def look(self, seconds: float) -> bool:
        """Whether something was told."""
        self.clock.advance(seconds)
        self.it.look()
        for each in self.told:
            await each
        told, self.told[:] = bool(self.told), []
        return told


def test_a_master_that_has_lost_what_it_was_told_is_told_again(tmp_path: Path) -> None:
    """It crashed before it recorded that, and is there again, at the same address."""

    async def test() -> None:
        async with running(tmp_path) as master:
            await sent(master, 10)
            teller = Teller(1)
            teller.master = f"127.0.0.1:{master.port}"
            for crashed in (False, True, True):
                if crashed:
                    master.offsets.reset()
                    teller.master = None
                    assert not await teller.look(1)
                    teller.master = f"127.0.0.1:{master.port}"
                assert await teller.look(1)
                assert master.offsets.get("g", "tea", 0) == 7
            master.offsets.reset()  # so fast that nobody saw it gone
            assert not await teller.look(9)
            assert await teller.look(2)
            assert master.offsets.get("g", "tea", 0) == 7
            teller.offsets.apply("offsets", [["tea", "g", {"0": 7}]])
            assert not await teller.look(20), "it is in the log"

    run(test())


def test_who_writes_itself_does_not_look_and_who_does_not_looks_at_what_is_told_at_once() -> None:
    async def test() -> None:
        teller = Teller(3000)
        assert not await teller.look(1)
        assert teller.offsets.asked == 0
        teller.master = "127.0.0.1:1"  # nobody is there
        assert await teller.look(1)
        assert teller.offsets.asked == 1000

    run(test())


def test_all_are_told_in_turn_before_any_is_told_again(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path) as master:
            await sent(master, 10)
            teller = Teller()
            for number in range(2500):  # the master refuses those of queues that it does not have
                teller.offsets.commit("g", "tea", number, 7)
            teller.master = f"127.0.0.1:{master.port}"
            for told in (1000, 2000, 2500, 2500):
                await teller.look(20)
                assert len(teller.it._told) == told

    run(test())
