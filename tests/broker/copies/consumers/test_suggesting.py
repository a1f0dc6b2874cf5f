"""Consumers of old messages are sent to a copy that keeps up, and back when they are done or it does not keep up."""

from __future__ import annotations

from pathlib import Path

import pytest

from kappamq.broker.broker import Broker
from kappamq.config.copies import CopiesConfig
from kappamq.protocol.headers.client import PullMessage
from tests.broker.copies.copying import caught_up, slave_of
from tests.broker.copies.members.test_group import members
from tests.broker.running import run, running, speaking
from tests.store.stores import kernels
from tests.waiting import eventually_async

READ = {"read_from_slaves": True, "memory_percent": 0}


async def suggested(broker: Broker, offset: int = 0, sql: str | None = None) -> str:
    """Whom the answer to a pull names."""
    async with speaking(broker) as speaker:
        await speaker.subscribe("g", "tea")
        changes = {"subscription": sql, "expression_type": "SQL92"} if sql else {"subscription": "*"}
        answer = await speaker.ask(
            PullMessage(
                consumer_group="g", topic="tea", queue_id=0, queue_offset=offset, count_max=32, sys_flag=4,
                commit_offset=0, hold_ms=1000, subscription_version=1, **changes,
            )
        )  # fmt: skip
        assert answer.code == 0, answer.remark
        return answer.ext["suggestWhichBrokerId"]


async def comes_to_be(broker: Broker, expected: str) -> None:
    async def told() -> bool:
        return await suggested(broker) == expected

    await eventually_async(told, text=f"broker {expected} is suggested")


async def sent(broker: Broker) -> None:
    async with speaking(broker) as speaker:
        for _ in range(3):
            assert (await speaker.send("tea", b"x" * 1000)).code == 0


@pytest.mark.parametrize("mode", kernels())
def test_old_messages_are_read_from_a_slave_that_keeps_up(tmp_path: Path, mode: str) -> None:
    async def test() -> None:
        async with running(tmp_path / "m", mode, copies=CopiesConfig(**READ, lag_bytes_max=1 << 20)) as master:
            await sent(master)
            assert await suggested(master) == "0", "there is no slave"
            async with slave_of(master, tmp_path / "s", mode, broker_id=2, copies=dict(READ)) as slave:
                await caught_up(master, slave)
                await comes_to_be(master, "2")
                await comes_to_be(slave, "2")
                assert await suggested(master, sql="TRUE") == "2"
                slave.copies.following.master_end += 1 << 30  # it hears of more than it has got
                slave.copies.suggesting.look()
                assert slave.kernel.suggested == 0, "it lags"
            await comes_to_be(master, "0")

    run(test())


def test_what_is_young_is_read_from_the_master(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path / "m", copies=CopiesConfig(read_from_slaves=True)) as master:
            await sent(master)
            async with slave_of(master, tmp_path / "s", copies={"read_from_slaves": True}) as slave:
                assert await suggested(master) == "0"
                await caught_up(master, slave)
                await eventually_async(lambda: master.kernel.suggested == 1)
                assert await suggested(master) == "0"
                assert await suggested(slave) == "0"

    run(test())


def test_without_being_told_so_nobody_reads_from_slaves(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path / "m", copies=CopiesConfig(memory_percent=0)) as master:
            await sent(master)
            async with slave_of(master, tmp_path / "s", copies={"memory_percent": 0}) as slave:
                assert await suggested(master) == "0"
                await caught_up(master, slave)
                master.copies.suggesting.look()
                assert (await suggested(master), await suggested(slave)) == ("0", "0")

    run(test())


def test_members_of_a_group_read_for_their_leader(tmp_path: Path) -> None:
    async def test() -> None:
        async with members(tmp_path, copies_changes=READ) as group:
            leader = await group.leader()
            await sent(leader)
            await group.agree()
            others = {name: broker for name, broker in group.running.items() if broker is not leader}
            first = min(broker.node_role.broker_id for broker in others.values())
            await comes_to_be(leader, str(first))
            await group.agree()  # on the group of consumers, too
            for broker in others.values():
                await comes_to_be(broker, str(broker.node_role.broker_id))
            for name in others:
                if others[name].node_role.broker_id == first:
                    await group.stop(name)
            await comes_to_be(leader, str(max(broker.node_role.broker_id for broker in others.values())))

    run(test())
