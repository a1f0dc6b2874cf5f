from __future__ import annotations

from pathlib import Path

from kappamq.protocol.bodies.copies import BrokerEpochs, HaStatus
from kappamq.protocol.bodies.topics import KVTable
from kappamq.protocol.headers.admin import GetBrokerEpochs, GetBrokerRuntimeInfo, GetHaStatus
from tests.broker.copies.copying import caught_up, copies_port, slave_of
from tests.broker.running import Speaker, run, running, speaking
from tests.waiting import eventually_async


async def runtime(speaker: Speaker) -> dict[str, str]:
    return KVTable.decode((await speaker.ask(GetBrokerRuntimeInfo())).body).table


def test_master_and_slave_tell_their_roles_and_how_far_they_are(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path / "m") as master, speaking(master) as to_master:
            async with slave_of(master, tmp_path / "s") as slave, speaking(slave) as to_slave:
                assert (await to_master.send("tea", b"1")).code == 0
                await caught_up(master, slave)
                end = master.store.log.end

                async def acknowledged() -> HaStatus | None:
                    found = HaStatus.decode((await to_master.ask(GetHaStatus())).body)
                    return found if [one.acknowledged for one in found.slaves] == [end] else None

                status = await eventually_async(acknowledged, text="the slave has reported it")
                assert status is not None
                assert (status.master, status.end, status.in_sync_slaves, status.slaves[0].diff) == (True, end, 1, 0)
                said = await runtime(to_master)
                assert (said["kappamqRole"], said["kappamqFollowers"]) == ("master", "1")
                assert said["kappamqFollowersBehindBytes"].endswith("(id 1): 0")
                ours = HaStatus.decode((await to_slave.ask(GetHaStatus())).body)
                assert (ours.master, ours.client.end, ours.client.master) == (False, end, copies_port(master))
                assert ours.client.active
                assert ours.client.heard_ms
                said = await runtime(to_slave)
                assert (said["kappamqRole"], said["kappamqFollowing"], said["kappamqMasterSpeaks"]) == (
                    "slave", "yes", "kappamq",
                )  # fmt: skip
                epochs = BrokerEpochs.decode((await to_slave.ask(GetBrokerEpochs())).body)
                assert (epochs.broker_id, epochs.end, [epoch.epoch for epoch in epochs.epochs]) == (1, end, [0])
            await eventually_async(lambda: not master.copies.followers.following)
            assert (await runtime(to_master))["kappamqFollowers"] == "0"

    run(test())


def test_a_slave_without_a_master_says_why(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path / "m") as master:
            place = copies_port(master)
            async with (
                slave_of(master, tmp_path / "s", copies={"master_address": "127.0.0.1:1"}) as slave,
                speaking(slave) as to,
            ):
                await eventually_async(lambda: slave.copies.following.problem, text="it has tried")
                assert "127.0.0.1:1" in (await runtime(to))["kappamqFollowing"]
                assert place != "127.0.0.1:1"

    run(test())
