"""Offsets that were committed where nobody writes come to the node that does, and stay what they are."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

from kappamq.broker.broker import Broker
from kappamq.config.copies import SLAVE, CopiesConfig
from kappamq.protocol.headers.client import UpdateConsumerOffset
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
