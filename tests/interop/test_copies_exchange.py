"""Copies between our broker and Apache's: one follows the other, in both directions, and takes over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from kappamq.broker.broker import Broker
from kappamq.clock import SystemClock
from kappamq.config.copies import SLAVE, SYNC_MASTER, CopiesConfig
from kappamq.config.nameserver import NameServerConfig
from kappamq.nameserver.nameserver import NameServer
from kappamq.net.channel import Channel
from kappamq.protocol.bodies.admin import ConsumerOffsets
from kappamq.protocol.bodies.topics import KVTable
from kappamq.protocol.codes import ResponseCode
from kappamq.protocol.headers.admin import GetAllConsumerOffsets, GetBrokerRuntimeInfo
from kappamq.protocol.headers.client import UpdateConsumerOffset
from tests.broker.copies.copying import log_bytes
from tests.broker.running import Speaker, run, running, speaking
from tests.interop import apache
from tests.interop.process import free_port
from tests.waiting import eventually_async

CLUSTER, NAME = "DefaultCluster", "broker-a"
FILE_BYTES = 1 << 20
PATIENCE_S = 60.0


@asynccontextmanager
async def speaking_to(address: str) -> AsyncIterator[Speaker]:
    channel = await Channel.connect(address)
    try:
        yield Speaker(channel)
    finally:
        channel.close()


def java(home: Path, nameserver: str, **properties: object) -> apache.Broker:
    wanted: dict[str, object] = {"mappedFileSizeCommitLog": FILE_BYTES, **properties}
    return apache.Broker(home, nameserver, name=NAME, properties=wanted)


async def end_of_log(speaker: Speaker) -> int:
    answer = await speaker.ask(GetBrokerRuntimeInfo())
    return int(KVTable.decode(answer.body).table["commitLogMaxOffset"])


async def caught_up(slave: Broker, master: Speaker) -> int:
    end = await end_of_log(master)
    await eventually_async(
        lambda: slave.store.marks.dispatched.offset >= end, timeout=PATIENCE_S, text="our slave has what its master has"
    )
    return end


def java_log(broker: apache.Broker, start: int, end: int) -> bytes:
    """What its files hold."""
    found = b""
    while start < end:
        file = broker.store / "commitlog" / f"{start - start % FILE_BYTES:020d}"
        part = file.read_bytes()[start % FILE_BYTES :][: end - start]
        found += part
        start += len(part)
    return found


def ours(root: Path, **changes: Any) -> Any:
    return running(root, **({"cluster": CLUSTER, "name": NAME} | changes))


def test_our_slave_follows_an_apache_master_and_takes_over(tmp_path: Path) -> None:
    async def test() -> None:
        with apache.NameServer(tmp_path / "ns") as names, java(tmp_path / "java", names.address) as master:
            copies = CopiesConfig(role=SLAVE, master_address=f"127.0.0.1:{master.port + 1}")
            async with speaking_to(master.address) as to_master:
                for number in range(25):
                    assert (await to_master.send("tea", b"%03d" % number + b"x" * 100_000)).code == 0
                await to_master.subscribe("g", "tea")
                mark = UpdateConsumerOffset(consumer_group="g", topic="tea", queue_id=0, commit_offset=7)
                assert (await to_master.ask(mark)).code == 0
                assert (await to_master.send("tea", b"delayed", properties="DELAY\x015")).code == 0
                async with ours(tmp_path / "ours", copies=copies, broker_id=1, nameservers=(names.address,)) as slave:
                    end = await caught_up(slave, to_master)
                    assert end > 2 * FILE_BYTES
                    for number in range(25, 35):
                        assert (await to_master.send("tea", b"%03d" % number)).code == 0
                    end = await caught_up(slave, to_master)
                    assert log_bytes(slave, 0, end) == java_log(master, 0, end)
                    await eventually_async(
                        lambda: slave.offsets.get("g", "tea", 0) == 7, timeout=PATIENCE_S, text="offsets are taken over"
                    )
                    assert "tea" in slave.topics.table
                    assert "g" in slave.groups.table
                    async with speaking(slave) as to_slave:
                        assert [r.body[:3] for r in await to_slave.read("tea")] == [b"%03d" % n for n in range(35)]
                        assert (await to_slave.send("tea", b"no")).code == ResponseCode.SERVICE_NOT_AVAILABLE
                    master.kill()
                    await slave.begin_role()
                    async with speaking(slave) as to_slave:
                        assert (await to_slave.send("tea", b"035")).code == 0

                        async def bodies() -> list[bytes]:
                            return [record.body[:3] for record in await to_slave.read("tea")]

                        assert await bodies() == [b"%03d" % n for n in range(36)]

    run(test())


def test_an_apache_slave_follows_our_master_and_serves_what_it_has(tmp_path: Path) -> None:
    """It registers at our name server, which tells it where its master is."""

    async def test() -> None:
        async with AsyncExitStack() as stack:
            names = NameServer(NameServerConfig(port=0, listen_host="127.0.0.1"), SystemClock())
            await names.start()
            stack.push_async_callback(names.stop)
            address = f"127.0.0.1:{names.port}"
            copies = CopiesConfig(role=SYNC_MASTER, count_apache_slaves=True)
            master_stack = await stack.enter_async_context(AsyncExitStack())
            master: Broker = await master_stack.enter_async_context(
                ours(
                    tmp_path / "ours",
                    port=free_port(-2, 1),
                    nameservers=(address,),
                    advertise="127.0.0.1",
                    copies=copies,
                )
            )
            to_master = await master_stack.enter_async_context(speaking(master))
            await to_master.subscribe("g", "tea")
            assert (await to_master.send("tea", b"000")).code == ResponseCode.SLAVE_NOT_AVAILABLE
            for number in range(1, 5):
                await to_master.send("tea", b"%03d" % number)
            mark = UpdateConsumerOffset(consumer_group="g", topic="tea", queue_id=0, commit_offset=3)
            assert (await to_master.ask(mark)).code == 0

            # It asks all brokers of this name, and one of Apache's without a controller has no answer.
            epochs = await asyncio.to_thread(apache.mqadmin, address, "getBrokerEpoch", "-b", NAME)
            assert "epoch=0, startOffset=0" in epochs.text, epochs.text

            slave = java(tmp_path / "java", address, brokerId=1, brokerRole="SLAVE", slaveReadEnable="true")
            stack.callback(slave.kill)
            await asyncio.to_thread(slave.start)
            held = master.copies.followers.held
            await eventually_async(lambda: held.missing() is None, timeout=PATIENCE_S, text="the slave follows")
            for number in range(5, 10):
                assert (await to_master.send("tea", b"%03d" % number)).code == 0
            for number in range(10, 35):  # over the ends of files
                assert (await to_master.send("tea", b"%03d" % number + b"x" * 100_000)).code == 0
            master.writer.end_turn()
            end = master.store.log.end
            assert end > 2 * FILE_BYTES

            to_slave = await stack.enter_async_context(speaking_to(slave.address))

            async def told() -> bool:
                """A slave of Apache asks for tables a minute after its start."""
                answer = await to_slave.ask(GetAllConsumerOffsets())
                return ConsumerOffsets.decode(answer.body).offsets.get("tea@g", {}).get(0) == 3

            await eventually_async(told, timeout=120, pause=0.2, text="the slave has its master's offsets")
            end = min(end, await end_of_log(to_slave))
            assert java_log(slave, 0, end) == log_bytes(master, 0, end)
            await mqadmin_tells_of_both(address, master, slave)

            await master_stack.aclose()
            # Without a master the slave has all that was acknowledged.
            assert [record.body[:3] for record in await to_slave.read("tea")] == [b"%03d" % n for n in range(35)]

    run(test())


async def mqadmin_tells_of_both(address: str, master: Broker, slave: apache.Broker) -> None:
    ours, theirs, cluster, status = await asyncio.gather(
        *(
            asyncio.to_thread(apache.mqadmin, address, *command)
            for command in (
                ("haStatus", "-b", master.address),
                ("haStatus", "-b", slave.address),
                ("clusterList",),
                ("brokerStatus", "-b", master.address),
            )
        )
    )
    (row,) = ours.table()[-1:]
    assert row["Status"] == "OK", ours.text
    assert row["SlaveAckOffset"] == row["TransferFromWhere"], ours.text
    assert "#InSyncSlaveNum\t1" in ours.text
    assert f"#MasterAddr\t127.0.0.1:{master.port + 1}" in theirs.text, "the slave has learned it from our name server"
    assert {(r["BID"], r["Addr"]) for r in cluster.table()} == {("0", master.address), ("1", slave.address)}
    facts = status.facts()
    assert (facts["kappamqRole"], facts["kappamqFollowers"], facts["kappamqCopiesMissing"]) == (
        "master",
        "1",
        "nothing",
    )
