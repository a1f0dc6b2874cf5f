"""Copies: what a master stores is on its slaves, byte for byte, and the slaves show it, and can take over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from kappamq.broker.broker import Broker
from kappamq.broker.copies import node_role
from kappamq.broker.naming.ports import bind_free_ports, close_all
from kappamq.config.copies import SYNC_MASTER, CopiesConfig
from kappamq.errors import KappaError
from kappamq.protocol.bodies.topics import TopicConfig
from kappamq.protocol.codes import ResponseCode
from kappamq.protocol.headers.client import PullMessage
from kappamq.protocol.records.record import iter_records
from tests.broker.copies.copying import caught_up, same_logs, slave_of
from tests.broker.copies.members.test_group import Members, members
from tests.broker.running import MODES, run, running, speaking
from tests.store.stores import kernels
from tests.waiting import eventually_async


@pytest.mark.parametrize("mode", MODES)
def test_a_slave_has_what_its_master_stores_and_shows_it(tmp_path: Path, mode: str) -> None:
    async def test() -> None:
        async with AsyncExitStack() as stack:
            master = await stack.enter_async_context(running(tmp_path / "m", mode))
            to_master = await stack.enter_async_context(speaking(master))
            await to_master.subscribe("g", "tea")  # groups are made by the master
            for number in range(10):
                assert (await to_master.send("tea", b"before %d" % number)).code == 0
            slave = await stack.enter_async_context(slave_of(master, tmp_path / "s", mode))
            to_slave = await stack.enter_async_context(speaking(slave))
            for number in range(10):
                assert (await to_master.send("tea", b"after %d" % number)).code == 0
            await caught_up(master, slave)
            same_logs(master, slave)
            bodies = [record.body for record in await to_slave.read("tea")]
            assert bodies == [b"before %d" % n for n in range(10)] + [b"after %d" % n for n in range(10)]
            refused = await to_slave.send("tea", b"not here")
            assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert "not the master" in refused.remark

    run(test())


@pytest.mark.parametrize("mode", kernels())
def test_many_files_of_log_go_over_and_marks_between_them(tmp_path: Path, mode: str) -> None:
    async def test() -> None:
        async with AsyncExitStack() as stack:
            master = await stack.enter_async_context(running(tmp_path / "m", mode))
            to_master = await stack.enter_async_context(speaking(master))
            body = b"x" * 100_000
            for _ in range(25):
                assert (await to_master.send("big", body)).code == 0
            slave = await stack.enter_async_context(slave_of(master, tmp_path / "s", mode))
            for _ in range(25):
                assert (await to_master.send("big", body)).code == 0
            await caught_up(master, slave)
            assert slave.store.log.end == master.store.log.end > 4 << 20
            same_logs(master, slave)

    run(test())


def test_a_slave_that_was_away_gets_the_rest(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path / "m") as master, speaking(master) as to_master:
            for life in range(3):
                async with slave_of(master, tmp_path / "s") as slave:
                    await to_master.send("tea", b"while there %d" % life)
                    await caught_up(master, slave)
                    same_logs(master, slave)
                await to_master.send("tea", b"while away %d" % life)

    run(test())


@pytest.mark.parametrize("flush", ["async", "sync"])
def test_a_synchronous_master_answers_when_a_slave_has_it(tmp_path: Path, flush: str) -> None:
    async def test() -> None:
        copies = CopiesConfig(role=SYNC_MASTER)
        async with (
            running(tmp_path / "m", copies=copies, store={"flush": flush}) as master,
            speaking(master) as to_master,
        ):
            alone = await to_master.send("tea", b"alone")
            assert alone.code == ResponseCode.SLAVE_NOT_AVAILABLE
            assert "0 of 1 slaves" in alone.remark
            assert alone.ext["queueOffset"] == "0"
            async with slave_of(master, tmp_path / "s", store={"flush": flush}) as slave:
                await eventually_async(
                    lambda: master.copies.followers.held.missing() is None, text="the slave is there"
                )
                await caught_up(master, slave)
                for number in range(5):
                    assert (await to_master.send("tea", b"both %d" % number)).code == 0
                    end = master.store.marks.written.offset
                    marks = slave.store.marks
                    assert (marks.flushed if flush == "sync" else marks.written).offset >= end
            await eventually_async(lambda: master.copies.followers.held.missing() is not None, text="the slave is gone")
            assert (await to_master.send("tea", b"alone again")).code == ResponseCode.SLAVE_NOT_AVAILABLE

    run(test())


def test_a_slave_takes_over_and_its_old_master_follows_it(tmp_path: Path) -> None:
    """By restart with another role, as an operator does it: the store is the same in every role."""

    async def test() -> None:
        async with AsyncExitStack() as stack, running(tmp_path / "a") as master:
            await stack.enter_async_context(slave_of(master, tmp_path / "b"))
            async with speaking(master) as speaker:
                await speaker.subscribe("g", "tea")
                for number in range(5):
                    await speaker.send("tea", b"first %d" % number)
            # A master that is stopped sends its last records first.
        async with running(tmp_path / "b") as master, speaking(master) as speaker:
            for number in range(5):
                assert (await speaker.send("tea", b"second %d" % number)).code == 0
            async with slave_of(master, tmp_path / "a") as slave, speaking(slave) as reader:
                await caught_up(master, slave)
                same_logs(master, slave)
                bodies = [record.body for record in await reader.read("tea")]
                assert bodies == [b"first %d" % n for n in range(5)] + [b"second %d" % n for n in range(5)]

    run(test())


def test_a_slave_is_promoted_while_it_runs(tmp_path: Path) -> None:
    async def test() -> None:
        async with AsyncExitStack() as stack:
            slave_stack = AsyncExitStack()
            async with running(tmp_path / "a") as master:
                slave = await slave_stack.enter_async_context(slave_of(master, tmp_path / "b"))
                async with speaking(master) as speaker:
                    for number in range(5):
                        await speaker.send("tea", b"%d" % number)
                await caught_up(master, slave)
            stack.push_async_callback(slave_stack.aclose)
            await slave.begin_role()
            async with speaking(slave) as speaker:
                assert (await speaker.send("tea", b"5")).code == 0
                assert [record.body for record in await speaker.read("tea")] == [b"%d" % n for n in range(6)]

    run(test())


@asynccontextmanager
async def former_leader(root: Path) -> AsyncIterator[tuple[Members, Broker, asyncio.Event]]:
    """One that has made a topic that nobody else got, and is held up where its role ends; another one leads and has stored more. What it
    made is cut from its log. The event lets it go on."""
    async with members(root) as group:
        former = await group.leader()
        async with speaking(former) as speaker:
            assert (await speaker.send("tea", b"1")).code == 0
        await group.agree()
        go_on = asyncio.Event()
        delivery = former.role.delivery
        stop = delivery.stop

        async def slow() -> None:
            await go_on.wait()
            await stop()

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(delivery, "stop", slow)
            assert former.copies.group is not None
            with pytest.MonkeyPatch.context() as unheard:
                for peer in former.copies.group.connections._peers.values():
                    unheard.setattr(peer, "say", lambda _content, _data=b"": None)
                    unheard.setattr(peer, "say_later", lambda content: content.close())
                former.topics.update(TopicConfig("ghost", 4, 4, 6))
                former.writer.end_turn()
                lost = former.store.log.end
                next_one = await group.leader(but=former)
            async with speaking(next_one) as speaker:
                for number in range(20):
                    assert (await speaker.send(f"new{number}", b"x" * 200)).code == 0
            await eventually_async(lambda: former.store.marks.confirmed.offset > lost, text="its log is the new one")
            assert not go_on.is_set()
            try:
                yield group, former, go_on
            finally:
                go_on.set()


def test_what_a_former_leader_has_lost_is_neither_in_its_tables_nor_in_its_snapshots(tmp_path: Path) -> None:
    async def test() -> None:
        async with former_leader(tmp_path) as (group, former, go_on):
            await former.upkeep._record_and_save(last=True)
            go_on.set()
            await eventually_async(lambda: not former.node_role.is_held, text="its role has ended")
            await group.agree()
            assert former.topics.get("ghost") is None
            assert former.topics.get("new19") is not None
            leader = await group.leader()
            assert former.topics.to_snapshot() == leader.topics.to_snapshot()

    run(test())


def test_a_former_leader_that_stops_while_its_role_ends_saves_nothing_of_it(tmp_path: Path) -> None:
    async def test() -> None:
        async with former_leader(tmp_path) as (group, former, go_on):
            name = next(name for name, broker in group.running.items() if broker is former)
            asyncio.get_running_loop().call_later(0.2, go_on.set)  # it waits for that in the middle of the stop
            await group.stop(name)
            assert not [
                path for path in (tmp_path / name / "config").glob("topics.json*") if b"ghost" in path.read_bytes()
            ]
            again = await group.start(name)
            await group.agree()
            assert again.topics.get("ghost") is None

    run(test())


def test_a_master_that_begins_again_applies_nothing_twice(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path / "m") as master, speaking(master) as speaker:
            await speaker.send("tea", b"x")
            await speaker.send("milk", b"x")
            master.writer.end_turn()
            before = master.topics.to_snapshot()
            await master.end_role()
            await master.begin_role()
            assert master.topics.to_snapshot() == before

    run(test())


def hand_over(leader: Broker, name: str) -> None:
    group = leader.copies.group
    assert group is not None
    node = group.node
    assert node is not None
    target = node.members.named(name)
    assert target is not None
    group.event(lambda: node.transfer(target, group.now()))


def test_a_former_leader_whose_tables_cannot_be_read_tries_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        monkeypatch.setattr(node_role, "_AGAIN_S", 0.01)
        async with members(tmp_path) as group:
            former = await group.leader()
            async with speaking(former) as speaker:
                assert (await speaker.send("tea", b"1")).code == 0
            await group.agree()
            load, failures = former.metadata._snapshots.load, iter([OSError(5, "Input/output error")])

            def failing(*given: Any, **named: Any) -> Any:
                for error in failures:
                    raise error
                return load(*given, **named)

            monkeypatch.setattr(former.metadata._snapshots, "load", failing)
            other = next(name for name, broker in group.running.items() if broker is not former)
            hand_over(former, other)
            await group.leader(but=former)
            await eventually_async(lambda: former.topics.get("tea") is not None, text="its tables are loaded")
            await eventually_async(lambda: not former.node_role.is_held)
            name = next(name for name, broker in group.running.items() if broker is former)
            next_one = await group.leader(but=former)
            hand_over(next_one, name)
            assert await group.leader(but=next_one) is former
            before = former.store.kernel.append_offset
            former.topics.update(TopicConfig("made", 4, 4, 6))
            assert former.store.kernel.append_offset > before, "it records what it changes"

    run(test())


def test_a_member_that_cannot_start_leaves_nothing_running(tmp_path: Path) -> None:
    async def test() -> None:
        taken = bind_free_ports("127.0.0.1", 1)
        try:
            port = int(taken[0].getsockname()[1])
            for listener in taken:
                listener.listen()
            names = {f"n{number}": f"127.0.0.1:{port + 1 + number}" for number in range(3)}
            copies = CopiesConfig(group="g", members=names, member="n0")
            before = asyncio.all_tasks()
            with pytest.raises(KappaError):
                async with running(tmp_path, port=port, copies=copies):
                    pass
            assert {task for task in asyncio.all_tasks() - before if not task.done()} == set()
        finally:
            close_all(taken)


def test_a_consumer_that_is_ahead_of_a_slave_waits_there(tmp_path: Path) -> None:
    """It has come from the master, and the slave does not show as much yet: that is no reason to go back."""

    async def test() -> None:
        async with AsyncExitStack() as stack:
            master = await stack.enter_async_context(running(tmp_path / "m"))
            to_master = await stack.enter_async_context(speaking(master))
            await to_master.subscribe("g", "tea")
            for number in range(3):
                await to_master.send("tea", b"%d" % number)
            slave = await stack.enter_async_context(slave_of(master, tmp_path / "s"))
            await caught_up(master, slave)
            to_slave = await stack.enter_async_context(speaking(slave))
            at_once = await to_slave.pull("tea", 5, explicit=True)
            assert (at_once.code, at_once.ext["nextBeginOffset"]) == (ResponseCode.PULL_NOT_FOUND, "5")
            unknown = await to_slave.pull("other", 5, explicit=True)
            assert unknown.code == ResponseCode.TOPIC_NOT_EXIST
            waiting = asyncio.create_task(
                to_slave.ask(
                    PullMessage(
                        consumer_group="g", topic="tea", queue_id=0, queue_offset=4, count_max=32, sys_flag=4 | 2,
                        commit_offset=0, hold_ms=20_000, subscription_version=1, subscription="*",
                    )
                )
            )  # fmt: skip
            for number in range(3, 5):
                await to_master.send("tea", b"%d" % number)
            answer = await waiting
            assert answer.code == ResponseCode.SUCCESS
            assert [record.body for record in iter_records(answer.body)] == [b"4"]
            moved = await to_master.pull("tea", 50, explicit=True)
            assert moved.code == ResponseCode.PULL_OFFSET_MOVED, "a master knows"

    run(test())
