"""What operators see of a group, and another leader at their word."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kappamq.broker.copies.members.operations import TRANSFER_S, GroupOperations
from kappamq.errors import RequestTimeout
from kappamq.protocol.bodies.copies import BrokerEpochs, HaStatus, LeaderNow
from kappamq.protocol.headers.admin import GetBrokerEpochs, GetHaStatus, TransferLeader
from kappamq.raft import MemberId
from tests.broker.copies.members.test_group import members
from tests.broker.running import run, speaking
from tests.broker.transacting import COMMIT, producing
from tests.client.loop import on_loop
from tests.waiting import eventually_async


def test_leadership_is_transferred(tmp_path: Path) -> None:
    async def test() -> None:
        async with members(tmp_path) as group:
            leader = await group.leader()
            target = next(name for name, broker in group.running.items() if broker is not leader)
            async with speaking(leader) as speaker:
                wrong = await speaker.ask(TransferLeader(member="n9"))
                assert "n9 is no member of group" in (wrong.remark or "")
                me = next(name for name, broker in group.running.items() if broker is leader)
                again = await speaker.ask(TransferLeader(member=me))
                assert f"{me} leads" in (again.remark or "")
                answer = await speaker.ask(TransferLeader(member=target))
                assert answer.code == 0
                told = LeaderNow.decode(answer.body)
                port = group.running[target].port
                assert (told.member, told.address.rpartition(":")[2]) == (target, str(port))
                assert told.term > 1
            await eventually_async(lambda: group.running[target].role.is_held, text="the other one leads")
            await eventually_async(lambda: not leader.role.is_held, text="the former one has stopped")
            async with speaking(leader) as speaker:
                refused = await speaker.ask(TransferLeader())
                assert "not the master" in (refused.remark or "")

    run(test())


def test_a_leader_that_makes_way_keeps_its_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All it has recorded is confirmed: loading 20,000 topics again would only hold up whoever reads there."""

    async def test() -> None:
        async with members(tmp_path) as group:
            leader = await group.leader()
            async with speaking(leader) as speaker:
                assert (await speaker.send("tea", b"x")).code == 0
            await group.agree()

            def loads() -> None:
                raise AssertionError("loaded again")

            monkeypatch.setattr(leader.metadata, "reset", loads)
            target = next(name for name, broker in group.running.items() if broker is not leader)
            async with speaking(leader) as speaker:
                assert (await speaker.ask(TransferLeader(member=target))).code == 0
            await eventually_async(lambda: group.running[target].role.is_held, text="the other one leads")
            await eventually_async(leader.metadata.is_trusted, text="the former one has stopped")
            async with speaking(group.running[target]) as speaker:
                assert (await speaker.send("milk", b"x")).code == 0
            await group.agree()
            await eventually_async(lambda: leader.topics.get("milk") is not None, text="it follows")
            tables = [broker.topics.table for broker in group.running.values()]
            assert tables == [tables[0]] * 3

    run(test())


def test_members_and_terms_are_told(tmp_path: Path) -> None:
    async def test() -> None:
        async with members(tmp_path) as group:
            leader = await group.leader()
            async with speaking(leader) as speaker:
                assert (await speaker.send("tea", b"x")).code == 0
                await group.agree()

                async def in_sync() -> bool:
                    status = HaStatus.decode((await speaker.ask(GetHaStatus())).body)
                    return status.master and len(status.slaves) == 2 and status.in_sync_slaves == 2

                await eventually_async(in_sync, text="both others are in sync")
                epochs = BrokerEpochs.decode((await speaker.ask(GetBrokerEpochs())).body)
                assert leader.node_role.version in [epoch.epoch for epoch in epochs.epochs]

    run(test())


def test_a_new_leader_goes_on_with_what_it_has_read_along(tmp_path: Path) -> None:
    async def test() -> None:
        async with members(tmp_path) as group:
            leader = await group.leader()
            name, target = next((name, broker) for name, broker in group.running.items() if broker is not leader)
            async with speaking(leader) as speaker, producing(leader) as producer:
                for number in range(5):
                    later = f"UNIQ_KEY\x01L{number}\x02TIMER_DELAY_SEC\x013600\x02"
                    assert (await speaker.send("tea", b"x", properties=later)).code == 0
                begun = await producer.begin("tea", b"half")
                await group.agree()
                timers, halves = target.timer_follower, target.half_follower
                await eventually_async(lambda: timers._book is not None and not timers._is_behind(), text="timers")
                await eventually_async(lambda: halves._fold is not None and not halves._fold.is_behind, text="halves")
                assert len(halves._fold.halves) == 1
                assert (await speaker.ask(TransferLeader(member=name))).code == 0
            await eventually_async(lambda: target.role.is_held, text="the other one leads")
            assert timers._book is None, "the files are the role's now"
            counts = target.delivery_tables.timer_metrics.counts
            await eventually_async(lambda: counts == {"tea": 5}, text="it has counted what waits")
            assert target.delivery.timers.entered == 0, "all were in the files"
            assert target.delivery.timers.behind == 0
            async with producing(target) as producer, speaking(target) as speaker:
                assert (await producer.end(begun, COMMIT)).code == 0
                assert [record.body for record in await speaker.read("tea")] == [b"half"]

    run(test())


@pytest.mark.parametrize(
    ("steps_down", "text"), [(False, "this broker goes on"), (True, "and this broker does not any more")]
)
@on_loop
async def test_a_transfer_that_nobody_completes_says_whether_this_broker_still_leads(
    steps_down: bool, text: str
) -> None:
    other = SimpleNamespace(member=MemberId("n1", 1), flushed=0)
    node: Any = SimpleNamespace(leadership=SimpleNamespace(peers={other.member: other}), leader=None)
    now = 0.0

    def transfer(target: MemberId, at: float) -> None:
        nonlocal now
        if steps_down:
            node.leadership = None
        now = TRANSFER_S

    def liveness() -> float:
        nonlocal now
        now += 1
        return now

    node.transfer = transfer
    group: Any = SimpleNamespace(
        node=node, me="n0", config=SimpleNamespace(group="g"), now=lambda: now, event=lambda call: call()
    )
    clock: Any = SimpleNamespace(liveness=liveness)
    store: Any = None
    with pytest.raises(RequestTimeout, match=f"n1.* is not known to lead after 3 s, {text}"):
        await GroupOperations(group, store, clock).transfer("n1")
