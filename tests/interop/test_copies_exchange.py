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
from kappamq.protocol.bodies.topics import KVTable
from kappamq.protocol.codes import ResponseCode
from kappamq.protocol.headers.admin import GetBrokerRuntimeInfo
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
    async def test() -> None:
        async with AsyncExitStack() as stack:
            names = NameServer(NameServerConfig(port=0, listen_host="127.0.0.1"), SystemClock())
            await names.start()
            stack.push_async_callback(names.stop)
            address = f"127.0.0.1:{names.port}"
            port = free_port(-2, 1)
            async with (
                ours(
                    tmp_path / "ours",
                    port=port,
                    nameservers=(address,),
                    advertise="127.0.0.1",
                    copies=CopiesConfig(role=SYNC_MASTER, count_apache_slaves=True),
                ) as master,
                speaking(master) as to_master,
            ):
                await to_master.subscribe("g", "tea")
                for number in range(5):
                    await to_master.send("tea", b"%03d" % number)
                mark = UpdateConsumerOffset(consumer_group="g", topic="tea", queue_id=0, commit_offset=3)
                await to_master.ask(mark)
                slave = java(
                    tmp_path / "java",
                    address,
                    brokerId=1,
                    brokerRole="SLAVE",
                    slaveReadEnable="true",
                    autoCreateTopicEnable="false",
                )
                await asyncio.to_thread(slave.start)
                stack.callback(slave.kill)
                await eventually_async(lambda: master.copies.followers.held.missing() is None, timeout=PATIENCE_S)
                for number in range(5, 10):
                    assert (await to_master.send("tea", b"%03d" % number)).code == 0
                for number in range(10, 35):
                    assert (await to_master.send("tea", b"%03d" % number + b"x" * 100_000)).code == 0
                print("synced", master.store.log.end)
                async with speaking_to(slave.address) as to_slave:
                    end = master.store.log.end
                    assert await end_of_log(to_slave) <= end
                    await eventually_async(lambda: caught(to_slave, end), timeout=PATIENCE_S)
                    assert java_log(slave, 0, end) == log_bytes(master, 0, end)
                    for command in (
                        ("haStatus", "-b", master.address),
                        ("haStatus", "-b", slave.address),
                        ("getBrokerEpoch", "-b", master.address),
                        ("clusterList",),
                        ("brokerStatus", "-b", master.address),
                    ):
                        print(command, (await asyncio.to_thread(apache.mqadmin, address, *command)).text)

                    async def told() -> Any:
                        answer = await to_slave.ask(GetAllConsumerOffsets())
                        return ConsumerOffsets.decode(answer.body).offsets.get("tea@g", {}).get(0) == 3

                    await eventually_async(told, timeout=120)
                    print(slave.process.tail())

    run(test())


async def caught(speaker: Speaker, end: int) -> bool:
    return await end_of_log(speaker) >= end
