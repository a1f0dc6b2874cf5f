"""A member whose disk is full waits and goes on by itself, a leader hands over; what was acknowledged is there."""

from __future__ import annotations

import asyncio
import errno
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from kappamq.broker.broker import Broker
from kappamq.broker.sending.gate import NO_ROOM
from tests.broker.copies.copying import same_logs
from tests.broker.copies.members.test_group import Members
from tests.broker.running import run, speaking
from tests.store.faulty import FaultyFiles
from tests.waiting import eventually_async

BODY = b"x" * 100_000


async def opened(root: Path, stack: AsyncExitStack) -> tuple[Members, dict[str, FaultyFiles]]:
    group = Members(root, stack, "twin")
    disks = {name: FaultyFiles() for name in group.names}
    await asyncio.gather(*(group.start(name, files=disks[name]) for name in group.names))
    return group, disks


def fill(disk: FaultyFiles) -> None:
    disk.fail("allocate", code=errno.ENOSPC, on="commitlog")


async def sent(broker: Broker, count: int) -> None:
    async with speaking(broker) as speaker:
        for _ in range(count):
            answer = await speaker.send("tea", BODY)
            assert answer.code == 0, answer.remark


def part(broker: Broker) -> str | None:
    """Why it takes none; None: it does."""
    assert broker.copies.group is not None
    return broker.copies.group.why_stopped


def test_a_follower_waits_for_room(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with AsyncExitStack() as stack:
            group, disks = await opened(tmp_path, stack)
            leader = await group.leader()
            name, full = next((name, broker) for name, broker in group.running.items() if broker is not leader)
            await sent(leader, 1)
            await group.agree()
            fill(disks[name])
            await sent(leader, 30)
            await eventually_async(lambda: f"waiting at offset {full.store.log.end}" in caplog.text, text="it waits")
            await sent(leader, 1)
            assert part(full) is None
            assert full.store.log.end < full.store.log.segment_end, "and has what fits"
            node = full.copies.group.node if full.copies.group is not None else None
            assert node is not None
            assert node.leader is not None, "it hears the leader"
            assert await group.leader() is leader, "who is not deposed"
            disks[name].repair()
            await group.agree()
            same_logs(*group.running.values())
            assert caplog.text.count("waiting at offset") == 1
            assert "disk space is available again" in caplog.text

    run(test())


def test_a_leader_without_room_hands_over(tmp_path: Path) -> None:
    async def test() -> None:
        async with AsyncExitStack() as stack:
            group, disks = await opened(tmp_path, stack)
            full = await group.leader()
            name = next(name for name, broker in group.running.items() if broker is full)
            fill(disks[name])
            await sent(full, 6)  # behind half of the file the next one is tried
            await eventually_async(lambda: full.gate.has(NO_ROOM), text="it has noticed")
            leader = await group.leader(but=full)
            await sent(leader, 10)
            async with speaking(leader) as speaker:
                await speaker.subscribe("g", "tea")
                assert [record.body for record in await speaker.read("tea")] == [BODY] * 16
            disks[name].repair()
            await group.agree()
            same_logs(*group.running.values())

    run(test())


def test_where_nobody_has_room_there_is_a_leader_all_the_same(tmp_path: Path) -> None:
    async def test() -> None:
        async with AsyncExitStack() as stack:
            group, disks = await opened(tmp_path, stack)
            leader = await group.leader()
            await sent(leader, 5)
            for disk in disks.values():
                fill(disk)
            async with speaking(leader) as speaker:
                await speaker.send("tea", BODY)
            await eventually_async(lambda: all(broker.gate.has(NO_ROOM) for broker in group.running.values()))
            for name in list(group.running):
                await group.stop(name)
            await asyncio.gather(*(group.start(name, files=disks[name]) for name in group.names))
            await eventually_async(lambda: all(broker.gate.has(NO_ROOM) for broker in group.running.values()))
            async with speaking(await group.leader()) as speaker:
                await speaker.subscribe("g", "tea")
                assert len(await speaker.read("tea")) >= 5

    run(test())
