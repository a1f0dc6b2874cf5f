"""Members change one at a time, at an operator's word: what was acknowledged is there, before, meanwhile and after."""

from __future__ import annotations

import asyncio
import shutil
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from kappamq.broker.broker import Broker
from kappamq.config.copies import CopiesConfig
from kappamq.protocol.codes import ResponseCode
from kappamq.protocol.headers.admin import ChangeMembers, TransferLeader
from tests.broker.copies.copying import same_logs
from tests.broker.copies.members.test_group import HOST, Members, members
from tests.broker.running import run, running, speaking
from tests.free_ports import free_ports
from tests.store.stores import kernels
from tests.waiting import eventually_async


def free_port(group: Members, name: str) -> int:
    (group.ports[name],) = free_ports(1)
    return group.ports[name]


async def start(group: Members, name: str, listed: list[str]) -> Broker:
    """Start a member that was told of these ones."""
    copies = CopiesConfig(group="g", members={each: f"{HOST}:{group.ports[each] + 1}" for each in listed}, member=name)
    own = group._stacks[name] = AsyncExitStack()
    group._stack.push_async_callback(own.aclose)
    broker = await own.enter_async_context(
        running(group.root / name, group._mode, port=group.ports[name], copies=copies)
    )
    group.running[name] = broker
    return broker


async def asked(broker: Broker, action: str, member: str, address: str | None = None) -> tuple[int, str]:
    async with speaking(broker) as speaker:
        answer = await speaker.ask(ChangeMembers(action=action, member=member, address=address))
        return answer.code, answer.remark or ""


async def changed(group: Members, action: str, member: str) -> None:
    leader = await group.leader()
    address = None if action == "remove" else f"{HOST}:{group.ports[member] + 1}"

    async def is_done() -> bool:
        code, why = await asked(leader, action, member, address)
        assert code in (0, ResponseCode.ILLEGAL_OPERATION), why
        assert code == 0 or "try again" in why, why
        return code == 0

    await eventually_async(is_done, text=f"{action} {member}")


def voters(broker: Broker) -> set[str]:
    assert broker.copies.group is not None
    node = broker.copies.group.node
    return {member.name for member in node.members.voters} if node is not None else set()


async def all_vote(group: Members, *names: str) -> None:
    await eventually_async(
        lambda: all(voters(broker) == set(names) for broker in group.running.values()), text=f"{names} vote"
    )


@pytest.mark.parametrize("mode", kernels())
def test_a_member_comes_learns_and_votes_and_another_one_goes(tmp_path: Path, mode: str) -> None:
    """One of three is replaced by another one, while messages are sent; then only those that are left know everything."""

    async def test() -> None:
        async with members(tmp_path, mode) as group:
            leader = await group.leader()
            sent: list[bytes] = []
            async with speaking(leader) as speaker:
                await speaker.subscribe("g", "tea")

                async def send(count: int) -> None:
                    for _ in range(count):
                        body = b"%d" % len(sent)
                        assert (await speaker.send("tea", body)).code == 0
                        sent.append(body)

                await send(20)
                port = free_port(group, "n3")
                gone = next(name for name, broker in group.running.items() if broker is not leader)
                kept = sorted(set(group.names) - {gone})
                await changed(group, "add", "n3")
                await send(20)
                await start(group, "n3", [*kept, "n3"])
                await all_vote(group, "n0", "n1", "n2", "n3")
                await changed(group, "remove", gone)
                await send(20)
                await group.stop(gone)
                await all_vote(group, *kept, "n3")
                await group.agree()
                same_logs(*group.running.values())
                assert leader.copies.group is not None
                assert leader.copies.group.roster.place_of("n3") == f"{HOST}:{port + 1}"
                assert (await speaker.ask(TransferLeader(member="n3"))).code == 0
            leader = await group.leader(but=leader)
            assert leader is group.running["n3"]
            async with speaking(leader) as speaker:
                assert [record.body for record in await speaker.read("tea")] == sent

    run(test())


def test_members_find_each_other_after_a_restart_of_all(tmp_path: Path) -> None:
    """What they were started with names only the founders: where the later one is, they know from the log."""

    async def test() -> None:
        async with members(tmp_path) as group:
            leader = await group.leader()
            async with speaking(leader) as speaker:
                assert (await speaker.send("tea", b"x")).code == 0
            free_port(group, "n3")
            await changed(group, "add", "n3")
            await start(group, "n3", ["n0", "n1", "n3"])
            await all_vote(group, "n0", "n1", "n2", "n3")
            await group.agree()
            for name in list(group.running):
                await group.stop(name)
            for name in ("n0", "n2"):
                await start(group, name, ["n0", "n1", "n2"])
            await start(group, "n3", ["n0", "n1", "n3"])  # three of four are a majority, two are not
            leader = await group.leader()
            async with speaking(leader) as speaker:
                assert [record.body for record in await speaker.read("tea")] == [b"x"]
            assert leader.copies.group is not None
            others = sorted({"n0", "n2", "n3"} - {leader.copies.group.me})
            await eventually_async(lambda: leader.copies.group.connections.connected_to() == others)  # type: ignore[union-attr]

    run(test())


def test_a_member_that_was_not_told_of_the_leader_is_taken_in(tmp_path: Path) -> None:
    async def test() -> None:
        async with members(tmp_path) as group:
            leader = await group.leader()
            if leader is not group.running["n2"]:
                async with speaking(leader) as speaker:
                    assert (await speaker.ask(TransferLeader(member="n2"))).code == 0
                leader = await group.leader(but=leader)
            async with speaking(leader) as speaker:
                assert (await speaker.send("tea", b"x")).code == 0
            free_port(group, "n3")
            await changed(group, "add", "n3")
            await start(group, "n3", ["n0", "n1", "n3"])
            await all_vote(group, "n0", "n1", "n2", "n3")
            await group.agree()
            same_logs(*group.running.values())

    run(test())


def test_a_lost_member_begins_anew_at_another_address(tmp_path: Path) -> None:
    async def test() -> None:
        async with members(tmp_path) as group:
            leader = await group.leader()
            async with speaking(leader) as speaker:
                await speaker.subscribe("g", "tea")
                assert (await speaker.send("tea", b"before")).code == 0
                lost = next(name for name, broker in group.running.items() if broker is not leader)
                await group.stop(lost)
                shutil.rmtree(tmp_path / lost)
                free_port(group, lost)
                await changed(group, "replace", lost)
                assert (await speaker.send("tea", b"meanwhile")).code == 0
                back = await start(group, lost, group.names)
                await all_vote(group, *group.names)
                await group.agree()
                assert back.copies.group is not None
                assert back.copies.group.node is not None
                assert back.copies.group.node.me.incarnation > 1
                same_logs(*group.running.values())
            async with speaking(back) as reader:
                assert [record.body for record in await reader.read("tea")] == [b"before", b"meanwhile"]

    run(test())


def test_what_cannot_be_is_refused_with_the_reason(tmp_path: Path) -> None:
    async def test() -> None:
        async with members(tmp_path) as group:
            leader = await group.leader()
            assert leader.copies.group is not None
            me = leader.copies.group.me
            other, third = sorted(set(group.names) - {me})
            place = leader.copies.group.roster.place_of(other)
            for action, name, address, text in (
                ("add", other, "127.0.0.1:1", f"{other} is a member already"),
                ("add", "n 3", "127.0.0.1:1", "1 to 64 letters"),
                ("add", "n3", "nowhere", "where the member's copies are reached"),
                ("add", "n3", "a" * 64 + ".x:1", "where the member's copies are reached"),
                ("add", "n3", None, "where the member's copies are reached"),
                ("add", "n3", place, f"is the address of {other}"),
                ("remove", "n9", None, "n9 is no member of group g: n0, n1, n2"),
                ("remove", me, None, "transfer the leadership first"),
                ("replace", me, "127.0.0.1:1", "transfer the leadership first"),
                ("replace", "n9", "127.0.0.1:1", "n9 is no member"),
                ("turn", "n9", None, "action must be add, remove or replace"),
            ):
                code, why = await asked(leader, action, name, address)
                assert code != 0
                assert text in why, why
            assert leader.copies.group.roster.place_of("n3") is None, "nothing of it is left"
            code, why = await asked(group.running[other], "remove", third)
            assert code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert f"[leader {leader.address}]" in why
            await group.stop(third)
            await asyncio.sleep(1.2)  # so long a leader takes silence for life
            code, why = await asked(leader, "remove", other)
            assert (code, "would stand still" in why) == (ResponseCode.ILLEGAL_OPERATION, True), why
            assert voters(leader) == set(group.names)

    run(test())


def test_a_broker_without_a_group_has_no_members_to_change(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path) as broker:
            code, why = await asked(broker, "add", "n3", "127.0.0.1:1")
            assert (code, "is not in a Raft group" in why) == (ResponseCode.ILLEGAL_OPERATION, True)

    run(test())


def test_a_member_that_was_away_follows_a_leader_that_it_has_never_heard_of(tmp_path: Path) -> None:
    async def test() -> None:
        async with members(tmp_path) as group:
            leader = await group.leader()
            founders = list(group.names)
            away = next(name for name, broker in group.running.items() if broker is not leader)
            await group.agree()
            await group.stop(away)
            free_port(group, "n3")
            await changed(group, "add", "n3")
            await start(group, "n3", [*(name for name in founders if name != away), "n3"])
            await all_vote(group, *founders, "n3")
            async with speaking(leader) as speaker:
                assert (await speaker.ask(TransferLeader(member="n3"))).code == 0
            assert await group.leader(but=leader) is group.running["n3"]
            await start(group, away, founders)
            await group.agree()
            same_logs(*group.running.values())

    run(test())
