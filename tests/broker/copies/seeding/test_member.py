"""Members of a Raft group whose log the leader's does not continue any more, and what of the log a group keeps and deletes."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from kappamq.broker.broker import Broker
from kappamq.broker.copies.members.member_files import MemberFiles
from kappamq.broker.copies.seeding.asking import Seeding
from kappamq.raft.messages import Vote
from kappamq.replication.greeting import Refusal
from kappamq.replication.raft_messages import encode
from kappamq.replication.seeding import MARKER_NAME
from kappamq.store.files import Files
from tests.broker.copies.copying import same_logs
from tests.broker.copies.members.test_group import Members, members
from tests.broker.copies.shortened import SMALL, fill, numbering, shorten, tables, with_a_past
from tests.broker.running import run, speaking
from tests.store.stores import kernels
from tests.waiting import eventually_async


def other_than(group: Members, leader: Broker) -> str:
    return next(name for name, broker in group.running.items() if broker is not leader)


async def all_the_same(group: Members) -> None:
    await group.agree()
    leader = await group.leader()
    for broker in group.running.values():
        await eventually_async(lambda broker=broker: not broker.seeding.is_pending, text="the copy is whole")  # type: ignore[misc]
        await eventually_async(
            lambda broker=broker: tables(broker) == tables(leader),  # type: ignore[misc]
            text="tables are equal",
        )
        await eventually_async(
            lambda broker=broker: numbering(broker) == numbering(leader),  # type: ignore[misc]
            text="queues are equal",
        )
    same_logs(*group.running.values())


async def are_voters(group: Members, count: int) -> None:
    def voters() -> bool:
        """Those that run now: one that is gone may be in the list until its place is taken."""
        nodes = [broker.copies.group.node for broker in group.running.values()]
        present = {node.me for node in nodes if node is not None}
        return len(present) == count and all(node is not None and node.members.voters == present for node in nodes)

    await eventually_async(voters, text="all are voters")


@pytest.mark.parametrize("mode", kernels())
def test_a_member_with_an_empty_disk_of_a_log_without_beginning(tmp_path: Path, mode: str) -> None:
    async def test() -> None:
        async with members(tmp_path, mode, store=SMALL) as group:
            leader = await group.leader()
            async with speaking(leader) as speaker:
                await with_a_past(leader, speaker)
                await group.agree()
                name = other_than(group, leader)
                await group.stop(name)
                (tmp_path / name).rename(tmp_path / "gone")
                member = await group.start(name, store=SMALL)
                assert member.store.log.min == leader.store.log.min > 0
                await are_voters(group, 3)
                await fill(speaker, 3)
                await all_the_same(group)
                assert not (tmp_path / name / MARKER_NAME).exists()
            # Once it is whole it is as good as any other.
            await group.stop(next(n for n, broker in group.running.items() if broker is leader))
            async with speaking(await group.leader()) as speaker:
                await fill(speaker, 3)
            await all_the_same(group)

    run(test())


def test_a_member_that_lags_behind_the_beginning_of_the_log(tmp_path: Path) -> None:
    async def test() -> None:
        async with members(tmp_path, store=SMALL) as group:
            leader = await group.leader()
            async with speaking(leader) as speaker:
                await fill(speaker, 3)
                await group.agree()
                name = other_than(group, leader)
                await group.stop(name)
                await with_a_past(leader, speaker)
                await group.start(name, store=SMALL)
                await are_voters(group, 3)
                await all_the_same(group)
                assert (tmp_path / name / "before-seeding-1" / "commitlog" / f"{0:020d}").exists()

    run(test())


def test_a_member_hears_it_while_it_runs_and_is_seeded_when_it_is_started_again(tmp_path: Path) -> None:
    """When it was started no leader could be asked."""

    async def test() -> None:
        async with members(tmp_path, store=SMALL) as group:
            leader = await group.leader()
            async with speaking(leader) as speaker:
                await fill(speaker, 3)
                await group.agree()
                name = other_than(group, leader)
                await group.stop(name)
                await with_a_past(leader, speaker)
            running = list(group.running.values())
            await eventually_async(
                lambda: all(broker.store.log.min == leader.store.log.min for broker in running),
                text="nobody has the beginning of the log any more",
            )
            for other in list(group.running):
                await group.stop(other)
            await asyncio.gather(*(group.start(each, store=SMALL) for each in group.names))
            why = str(await asyncio.wait_for(group.running[name].unfit(), 30))
            assert "Start this broker again" in why
            await group.stop(name)
            await group.start(name, store=SMALL)
            await are_voters(group, 3)
            await all_the_same(group)

    run(test())


def test_followers_delete_what_the_leader_has_deleted_and_nothing_else(tmp_path: Path) -> None:
    async def test() -> None:
        async with members(tmp_path, store=SMALL) as group:
            leader = await group.leader()
            async with speaking(leader) as speaker:
                await fill(speaker)
                await group.agree()
                assert all(broker.store.log.min == 0 for broker in group.running.values())
                begins = await shorten(leader)
                await eventually_async(
                    lambda: all(broker.store.log.min == begins for broker in group.running.values()),
                    text="all logs begin where the leader's does",
                )
                for broker in group.running.values():
                    node = broker.copies.group.node
                    await eventually_async(
                        lambda node=node: node.log.terms.base.start == begins, text="and the core knows it"
                    )
                for broker in group.running.values():
                    if broker is not leader:
                        assert await broker.upkeep.delete_expired() == 0
            for name in list(group.running):
                await group.stop(name)
            await asyncio.gather(*(group.start(each, store=SMALL) for each in group.names))
            async with speaking(await group.leader()) as speaker:
                await fill(speaker, 3)
            await all_the_same(group)

    run(test())


def test_a_member_that_is_not_whole_has_no_vote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with members(tmp_path, store=SMALL) as group:
            leader = await group.leader()
            async with speaking(leader) as speaker:
                await with_a_past(leader, speaker)
            await group.agree()
            name = other_than(group, leader)
            await group.stop(name)
            (tmp_path / name).rename(tmp_path / "gone")
            with monkeypatch.context() as patched:
                patched.setattr(Seeding, "ticked", lambda self, store: False)
                member = await group.start(name, store=SMALL)
                await group.agree()
                assert member.copies.group is not None
                node = member.copies.group.node
                assert node is not None
                other = next(voter for voter in node.members.voters if voter.name != name)
                ask = Vote(other, node.me, node.term + 5, node.term, 1 << 40, True)
                before = node.ballot
                hello = replace(member.copies.group.ours(), member=other.name, incarnation=other.incarnation)
                member.copies.group.received(hello, encode(ask))
                assert node.ballot == before
            await eventually_async(lambda: not member.seeding.is_pending, text="the copy is whole")
            member.copies.group.received(hello, encode(ask))
            assert node.term >= ask.term, "now it has"

    run(test())


def test_a_member_of_another_founding_is_not_given_what_it_would_lose_its_own_for(tmp_path: Path) -> None:
    async def test() -> None:
        async with members(tmp_path) as group:
            leader = await group.leader()
            await group.agree()
            for name, broker in group.running.items():
                assert MemberFiles(tmp_path / name, Files()).group_id() == leader.copies.group_id
                asking = broker.seeding._now(wanted=True)
                assert asking.group_id == leader.copies.group_id
                if broker is not leader:
                    assert leader.copies.seeds.answer(asking).files > 0
                    with pytest.raises(Refusal, match="another founding"):
                        leader.copies.seeds.answer(replace(asking, group_id="g:of:others"))
            assert MemberFiles(tmp_path / "nowhere", Files()).group_id() == ""

    run(test())
