"""Members whose clocks differ: who is ahead does not lead if another one can, and a new leader notes what its clock shows."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from kappamq.broker.broker import Broker
from kappamq.clock import SystemClock
from kappamq.protocol.headers.admin import TransferLeader
from tests.broker.copies.copying import same_logs
from tests.broker.copies.members.test_group import Members, group_of, members
from tests.broker.running import run, speaking
from tests.waiting import eventually_async

HOUR_MS = 3_600_000


class ShiftedClock(SystemClock):
    """The machine's clock, set to another time; its uptime is the true one."""

    shift_ms = 0

    def message_ms(self) -> int:
        return super().message_ms() + self.shift_ms


async def opened(root: Path, stack: AsyncExitStack, **shifts: int) -> tuple[Members, dict[str, ShiftedClock]]:
    group = Members(root, stack, "twin")
    clocks = {name: ShiftedClock() for name in group.names}
    for name, clock in clocks.items():
        clock.shift_ms = shifts.get(name, 0)
    await asyncio.gather(*(group.start(name, clock=clocks[name]) for name in group.names))
    return group, clocks


def name_of(group: Members, broker: Broker) -> str:
    return next(name for name, other in group.running.items() if other is broker)


async def sent(broker: Broker, body: bytes) -> None:
    async with speaking(broker) as speaker:
        await speaker.subscribe("g", "tea")
        assert (await speaker.send("tea", body)).code == 0


async def read(broker: Broker) -> list[bytes]:
    async with speaking(broker) as speaker:
        return [record.body for record in await speaker.read("tea")]


def test_a_member_that_is_far_ahead_does_not_stand(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with AsyncExitStack() as stack:
            group, clocks = await opened(tmp_path, stack, n2=HOUR_MS)  # of three alike, it is the one that would win
            for life in range(2):
                leader = await group.leader()
                name = name_of(group, leader)
                assert name != "n2"
                await sent(leader, b"%d" % life)
                await group.agree()
                await group.stop(name)
                other = await group.leader()
                assert name_of(group, other) != "n2"
                assert await read(other) == [b"%d" % number for number in range(life + 1)]
                await group.start(name, clock=clocks[name])
            await group.agree()
            same_logs(*group.running.values())

    run(test())
    assert caplog.text.count("minutes ahead of those of most other members") == 1


def test_a_leader_whose_clock_is_set_ahead_hands_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with AsyncExitStack() as stack:
            group, clocks = await opened(tmp_path, stack)
            wrong = await group.leader()
            await sent(wrong, b"before")
            clocks[name_of(group, wrong)].shift_ms = HOUR_MS
            leader = await group.leader(but=wrong)
            await sent(leader, b"after")
            assert await read(leader) == [b"before", b"after"]
            clocks[name_of(group, wrong)].shift_ms = 0
            await eventually_async(lambda: "agrees with those of the other members again" in caplog.text)
            await group.agree()
            same_logs(*group.running.values())

    run(test())


def test_where_all_were_set_there_is_a_leader_all_the_same(tmp_path: Path) -> None:
    """Each takes itself for the one that is ahead until it has heard from the others anew."""

    async def test() -> None:
        async with AsyncExitStack() as stack:
            group, clocks = await opened(tmp_path, stack)
            leader = await group.leader()
            await sent(leader, b"x")
            for clock in clocks.values():
                clock.shift_ms = HOUR_MS
            await group.stop(name_of(group, leader))
            assert await read(await group.leader()) == [b"x"]

    run(test())


def test_where_all_were_set_the_leader_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Machines resume, or a time server steps them all: nobody is ahead of anybody, and nobody connects anew."""

    async def test() -> None:
        async with AsyncExitStack() as stack:
            group, clocks = await opened(tmp_path, stack)
            leader = await group.leader()
            await sent(leader, b"before")
            for clock in clocks.values():
                clock.shift_ms = HOUR_MS
            until = time.monotonic() + 3
            async with speaking(leader) as speaker:
                while time.monotonic() < until:
                    answer = await speaker.send("tea", b"after")
                    assert answer.code == 0, answer.remark
                    await asyncio.sleep(
                        0.02
                    )  # for three seconds sends go through, at a pace that others can keep up with
            assert leader.role.is_held

    run(test())
    assert "ahead of those of most other members" not in caplog.text


def test_who_was_set_alone_hears_that_from_the_leader(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is not the next leader, whoever of the others was heard last."""

    async def test() -> None:
        async with AsyncExitStack() as stack:
            group, clocks = await opened(tmp_path, stack)
            leader = await group.leader()
            wrong = max(name for name in group.names if name != name_of(group, leader))
            clocks[wrong].shift_ms = HOUR_MS
            await eventually_async(lambda: "ahead of those of most other members" in caplog.text)
            await group.stop(name_of(group, leader))
            assert name_of(group, await group.leader()) != wrong

    run(test())


def test_a_new_leader_notes_that_its_clock_is_behind_that_of_the_former_one(tmp_path: Path) -> None:
    """Times before and behind that place are of two clocks: delays wait as long as they were to."""

    async def test() -> None:
        async with AsyncExitStack() as stack:
            group, _clocks = await opened(tmp_path, stack, n1=20_000, n2=20_000)
            leader = await group.leader()
            if name_of(group, leader) == "n0":
                async with speaking(leader) as speaker:
                    assert (await speaker.ask(TransferLeader(member="n1"))).code == 0
                leader = await group.leader(but=leader)
            await sent(leader, b"by a clock that is ahead")
            await group.agree()
            before = leader.store.log.end
            async with speaking(leader) as speaker:
                assert (await speaker.ask(TransferLeader(member="n0"))).code == 0
            leader = await group.leader(but=leader)
            assert name_of(group, leader) == "n0"
            await sent(leader, b"by ours")
            await group.agree()
            for broker in group.running.values():
                (step,) = [step for step in broker.store.clock_steps.rows() if step[0] >= before]
                assert -20_500 < step[1] < -15_000

    run(test())


def test_clocks_of_strangers_do_not_count(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Whoever gets as far as a greeting may say what it likes of its clock."""

    async def test() -> None:
        async with members(tmp_path) as group:
            leader = await group.leader()
            ours = group_of(leader)
            for name in ("x1", "x2", "x3", "x4", "x5"):
                ours._fitness.clock_of(name, 1)
            assert ours.node is not None
            assert ours._fitness.may_lead(ours.node, ours.now())
            assert len(ours._fitness._others) <= 2

    run(test())
    assert "ahead of those of most other members" not in caplog.text
