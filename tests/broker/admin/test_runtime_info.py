"""The broker about itself."""

from __future__ import annotations

import asyncio
import re
import time
from pathlib import Path

import pytest

from kappamq.broker.admin.runtime_info import _duration, _readable
from kappamq.broker.broker import Broker
from kappamq.protocol.bodies.topics import KVTable
from kappamq.protocol.headers.admin import GetBrokerRuntimeInfo
from tests.broker.operating import fill, make_topic, ok, on_broker
from tests.broker.running import Speaker, running, speaking
from tests.waiting import eventually_async as eventually

# Section 14 of reference/behaviour.md.
KEYS = """bootTimestamp runtime putMessageEntireTimeMax putMessageTimesTotal putMessageFailedTimes putMessageSizeTotal
putMessageDistributeTime putMessageAverageSize dispatchMaxBuffer getMessageEntireTimeMax putTps getFoundTps getMissTps
getTotalTps getTransferredTps putLatency99 putLatency999 commitLogDiskRatio consumeQueueDiskRatio commitLogMinOffset
commitLogMaxOffset scheduleMessageOffset_1 scheduleMessageOffset_18 brokerActive brokerVersionDesc brokerVersion
msgPutTotalYesterdayMorning msgPutTotalTodayMorning msgPutTotalTodayNow msgGetTotalYesterdayMorning
msgGetTotalTodayMorning msgGetTotalTodayNow dispatchBehindBytes pageCacheLockTimeMills earliestMessageTimeStamp
startAcceptSendRequestTimeStamp timerReadBehind timerOffsetBehind timerCongestNum timerEnqueueTps timerDequeueTps
remainTransientStoreBufferNumbs remainHowManyDataToCommit remainHowManyDataToFlush commitLogDirCapacity
sendThreadPoolQueueSize sendThreadPoolQueueCapacity sendThreadPoolQueueHeadWaitTimeMills pullThreadPoolQueueSize
pullThreadPoolQueueCapacity pullThreadPoolQueueHeadWaitTimeMills litePullThreadPoolQueueSize
litePullThreadPoolQueueCapacity litePullThreadPoolQueueHeadWaitTimeMills queryThreadPoolQueueSize
queryThreadPoolQueueCapacity queryThreadPoolQueueHeadWaitTimeMills ackThreadPoolQueueSize ackThreadPoolQueueCapacity
ackThreadPoolQueueHeadWaitTimeMills EndTransactionQueueSize EndTransactionThreadPoolQueueCapacity""".split()


async def info(client: Speaker) -> dict[str, str]:
    return KVTable.decode((await ok(client, GetBrokerRuntimeInfo())).body).table


@on_broker()
async def test_every_key_that_tools_look_for(broker: Broker, client: Speaker) -> None:
    table = await info(client)
    assert not [key for key in KEYS if key not in table]
    assert f"commitLogDiskRatio_{broker.store_config.root / 'commitlog'}" in table
    assert table["brokerVersionDesc"] == "V5_3_3"
    assert table["brokerVersion"] == "479"
    assert table["brokerActive"] == "true"
    assert abs(int(table["bootTimestamp"]) / 1000 - time.time()) < 60
    assert 0 < float(table["commitLogDiskRatio"]) < 1
    for key in ("putTps", "getFoundTps", "getMissTps", "getTotalTps", "getTransferredTps"):
        assert len([float(number) for number in table[key].split(" ")]) == 3
    for key in ("earliestMessageTimeStamp", "timerReadBehind", "timerCongestNum", "pageCacheLockTimeMills"):
        int(table[key])
    assert re.fullmatch(r"\[ 0 days, 0 hours, 0 minutes, \d+ seconds \]", table["runtime"])


@on_broker()
async def test_numbers_are_those_of_what_happened(broker: Broker, client: Speaker) -> None:
    await make_topic(client, "t", 1)
    before = await info(client)
    await fill(client, "t", [30])
    assert len(await client.read("t")) == 30
    after = await info(client)

    def grown(key: str) -> int:
        return int(after[key]) - int(before[key])

    assert grown("putMessageTimesTotal") >= 30
    assert grown("msgPutTotalTodayNow") >= 30
    assert grown("msgGetTotalTodayNow") == 30
    assert grown("commitLogMaxOffset") == grown("putMessageSizeTotal") > 30 * 91
    assert float(after["putMessageAverageSize"]) > 91
    assert int(after["commitLogMinOffset"]) == 0
    assert abs(int(after["earliestMessageTimeStamp"]) / 1000 - time.time()) < 60

    async def rated() -> bool:
        table = await info(client)
        return all(float(table[key].split()[0]) > 0 for key in ("putTps", "getTransferredTps", "getMissTps"))

    await eventually(rated)


@on_broker()
async def test_which_kernel_and_how_much_it_did_alone(broker: Broker, client: Speaker) -> None:
    await make_topic(client, "t", 1)
    await fill(client, "t", [1])
    before = await info(client)
    assert before["kappamqKernel"] == broker.kernel_module.NAME
    await fill(client, "t", [20])
    after = await info(client)
    assert int(after["kappamqFastFrames"]) - int(before["kappamqFastFrames"]) == 20
    assert int(after["kappamqSlowFrames"]) - int(before["kappamqSlowFrames"]) == 1, "the question itself"
    assert after["kappamqConnections"] == "1"
    assert after["kappamqRefusing"] == "nothing"


def test_the_earliest_message_is_known_after_a_restart(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as broker, speaking(broker) as client:
            await make_topic(client, "t")
            earliest = int((await info(client))["earliestMessageTimeStamp"])
            assert earliest > 0
        async with running(tmp_path) as broker, speaking(broker) as client:
            assert int((await info(client))["earliestMessageTimeStamp"]) == earliest

    asyncio.run(main())


def test_an_empty_log_has_no_earliest_message(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as broker, speaking(broker) as client:
            assert broker.store.log.end == 0
            assert (await info(client))["earliestMessageTimeStamp"] == "-1"

    asyncio.run(main())


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 << 30, "5.0 GiB"), (3 << 50, "3072.0 TiB")]
)
def test_readable(count: int, text: str) -> None:
    assert _readable(count) == text


def test_duration() -> None:
    assert _duration(2 * 86400 + 3 * 3600 + 4 * 60 + 5.9) == "[ 2 days, 3 hours, 4 minutes, 5 seconds ]"
