"""Every request to a broker has a size it may have; what may be large keeps nobody waiting; honest large ones are taken."""

from __future__ import annotations

import asyncio
import json
import struct
import threading
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from kappamq.broker.broker import Broker
from kappamq.broker.requests.table import REQUEST_SIZES
from kappamq.config.net import NetConfig
from kappamq.net.requests.sizes import BESIDE_BYTES
from kappamq.protocol.bodies.clients import LockBatchResponse
from kappamq.protocol.bodies.topics import KVTable
from kappamq.protocol.codes import RequestCode, ResponseCode
from kappamq.protocol.frame import Frame
from kappamq.protocol.headers.admin import GetBrokerRuntimeInfo, UpdateBrokerConfig, UpdateGroupList, UpdateTopicList
from kappamq.protocol.headers.client import GetMaxOffset, HeartBeat, LockQueues, OffsetResponse, UnlockQueues
from tests.broker.operating import on_broker
from tests.broker.running import Speaker, running, speaking
from tests.waiting import eventually_async

MODE = {"consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING"}


def beat(**groups: list[dict[str, Any]]) -> bytes:
    consumers = [{"groupName": name, **MODE, "subscriptionDataSet": wanted} for name, wanted in groups.items()]
    return json.dumps({"clientID": "c", "consumerDataSet": consumers}).encode()


def test_every_code_is_in_the_table_and_every_limit_is_a_setting() -> None:
    assert set(RequestCode) <= REQUEST_SIZES.keys()
    for limit in REQUEST_SIZES.values():
        assert getattr(NetConfig(), limit.body) > 0
        assert getattr(NetConfig(), limit.header) > 0


# -- refusals ----------------------------------------------------------------------------------------------------------


@on_broker()
async def test_what_is_too_large_is_refused_before_it_is_read(broker: Broker, client: Speaker) -> None:
    dialect = b"{clientID:'c',consumerDataSet:[" + b"{}," * 5_000_000 + b"]}"
    began = time.process_time()
    answer = await client.ask(HeartBeat(), dialect, timeout=60)
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert f"has {len(dialect)} bytes, the limit is {1 << 20}" in (answer.remark or "")
    assert "net.heartbeat_bytes_max" in (answer.remark or "")
    assert time.process_time() - began < 5, "reading it would take 15 seconds"
    answer = await client.ask(HeartBeat(), b"{clientID:'" + b"x" * (1 << 19) + b"'}", timeout=60)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "not standard JSON" in (answer.remark or "")
    assert (await client.ask(HeartBeat(), b"{clientID:'c'}")).code == 0, "the dialect itself is understood"


@on_broker()
async def test_headers_are_refused_with_an_answer(broker: Broker, client: Speaker) -> None:
    for ext, text in (
        ({"topic": "t" * 70_000}, "net.request_header_bytes_max"),
        ({"topic": "t" * 300_000}, "net.header_bytes_max"),
    ):
        answer = await client.channel.request(Frame(RequestCode.GET_MAX_OFFSET, ext=ext), timeout=20)
        assert answer.code != 0
        assert text in (answer.remark or "")
    fields = {f"k{number}": "v" for number in range(2000)}
    answer = await client.channel.request(Frame(RequestCode.GET_MAX_OFFSET, ext=fields, binary=True), timeout=20)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "more than 1024 fields" in (answer.remark or "")
    assert (await client.ask(GetMaxOffset(topic="t", queue_id=0))).code == 0, "the connection goes on"


@on_broker()
async def test_a_long_header_in_the_dialect_is_refused_with_an_answer(broker: Broker, client: Speaker) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
    header = b"{code:30,opaque:77,extFields:{topic:'t',queueId:'0',x:'" + b"x" * 10_000 + b"'}}"
    writer.write(struct.pack(">ii", 4 + len(header), len(header)) + header)
    head = await reader.readexactly(4)
    answer = await reader.readexactly(int.from_bytes(head, "big"))
    assert b'"opaque":77' in answer
    assert b"not standard JSON" in answer
    writer.close()


@on_broker()
async def test_the_limits_are_settings(broker: Broker, client: Speaker) -> None:
    body = beat(g=[{"topic": "t", "subString": "a||" * 20_000}])
    assert (await client.ask(HeartBeat(), body, timeout=20)).code == 0
    assert (await client.ask(UpdateBrokerConfig(), b"net.heartbeat_bytes_max=1024\n")).code != 0, "not while it runs"


def test_a_smaller_limit_holds(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path, net={"heartbeat_bytes_max": 1024}) as broker, speaking(broker) as client:
            answer = await client.ask(HeartBeat(), beat(g=[{"topic": "t" * 2000}]))
            assert answer.code == ResponseCode.INVALID_PARAMETER

    asyncio.run(asyncio.wait_for(test(), 60))


# -- honest large ones -------------------------------------------------------------------------------------------------


@on_broker()
async def test_a_heartbeat_with_thousands_of_subscriptions(broker: Broker, client: Speaker) -> None:
    wanted = [{"topic": f"t{number}", "subString": "a || b", "subVersion": 1} for number in range(3000)]
    answer = await client.ask(HeartBeat(), beat(g=wanted), timeout=30)
    assert answer.code == 0, answer.remark
    assert len(broker.clients.consumers["g"].subscriptions) == 3000
    answer = await client.ask(HeartBeat(), beat(g=wanted[:10], **{f"h{n}": [] for n in range(300)}), timeout=30)
    assert answer.code == 0, answer.remark
    assert len(broker.clients.consumers["g"].subscriptions) == 10, "the others were given up"
    assert len(broker.clients.consumers) == 301


@on_broker()
async def test_a_client_that_goes_while_its_heartbeat_is_read_leaves_nothing(broker: Broker, client: Speaker) -> None:
    async with speaking(broker) as gone:
        groups = {f"h{number}": [{"topic": "t"}] for number in range(500)}
        asked = asyncio.create_task(gone.ask(HeartBeat(), beat(**groups), timeout=30))
        await eventually_async(lambda: len(broker.bursts.unfinished) > 0, pause=0)
        gone.channel.close()
        await asyncio.gather(asked, return_exceptions=True)
    await eventually_async(lambda: not broker.bursts.unfinished and len(broker.server.connections) == 1, timeout=30)
    assert not any(group.members for group in broker.clients.consumers.values())


@on_broker(topic_queues_max=8192)
async def test_thousands_of_locks(broker: Broker, client: Speaker) -> None:
    topics = json.dumps({"topicConfigList": [{"topicName": "t", "readQueueNums": 6000, "writeQueueNums": 6000}]})
    assert (await client.ask(UpdateTopicList(), topics.encode(), timeout=30)).code == 0
    assert (await client.ask(HeartBeat(), beat(g=[{"topic": "t"}]))).code == 0
    queues = [{"topic": "t", "brokerName": "b", "queueId": number} for number in range(6000)]
    body = json.dumps({"consumerGroup": "g", "clientId": "c", "mqSet": queues}).encode()
    answer = await client.ask(LockQueues(), body, timeout=30)
    assert answer.code == 0, answer.remark
    assert len(LockBatchResponse.decode(answer.body).locked) == 6000
    assert broker.locks.any_held("g", broker.clock.liveness())
    assert (await client.ask(UnlockQueues(), body, timeout=30)).code == 0
    assert not broker.locks.any_held("g", broker.clock.liveness())


@on_broker()
async def test_lists_of_topics_and_groups(broker: Broker, client: Speaker) -> None:
    topics = [{"topicName": f"t{number}", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6} for number in range(500)]
    answer = await client.ask(UpdateTopicList(), json.dumps({"topicConfigList": topics}).encode(), timeout=30)
    assert answer.code == 0, answer.remark
    assert "t499" in broker.topics.table
    groups = [{"groupName": f"g{number}"} for number in range(500)]
    answer = await client.ask(UpdateGroupList(), json.dumps({"groupConfigList": groups}).encode(), timeout=30)
    assert answer.code == 0, answer.remark
    assert "g499" in broker.groups.table
    topics[-1]["perm"] = 9
    topics[0]["topicName"] = "never"
    answer = await client.ask(UpdateTopicList(), json.dumps({"topicConfigList": topics}).encode(), timeout=30)
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert "never" not in broker.topics.table, "all of them or none"


@on_broker()
async def test_settings_of_many_lines_are_read_beside_the_loop(broker: Broker, client: Speaker) -> None:
    body = b"# a long comment\n" * 400 + b"longPollingEnable=false\n"
    assert (await client.ask(UpdateBrokerConfig(), body, timeout=20)).code == 0
    assert broker.config.long_polling is False
    answer = await client.ask(UpdateBrokerConfig(), body + b"\\u00zz=1", timeout=20)
    assert answer.code == ResponseCode.INVALID_PARAMETER


def members(count: int, properties: bytes = b"") -> bytes:
    one = (
        struct.pack(">iiiii", 23 + len(properties), 0, 0, 0, 1) + b"x" + struct.pack(">h", len(properties)) + properties
    )
    return one * count


@on_broker(batch_members_max=9000, store={"segment_bytes": 4 << 20})
async def test_a_batch_of_thousands_of_messages_on_the_slow_path(broker: Broker, client: Speaker) -> None:
    broker.kernel.force_slow = True
    answer = await client.ask(
        client.send_header("t", 0, "", batch=True), members(9000), code=RequestCode.SEND_BATCH_MESSAGE, timeout=30
    )
    assert answer.code == 0, answer.remark
    assert answer.ext["msgId"].count(",") == 8999
    assert (await client.send("t", b"behind")).ext["queueOffset"] == "9000", "in order"
    end = OffsetResponse.decode((await client.ask(GetMaxOffset(topic="t", queue_id=0))).ext).offset
    assert end == 9001
    answer = await client.ask(
        client.send_header("t", 0, "", batch=True), members(9001), code=RequestCode.SEND_BATCH_MESSAGE, timeout=30
    )
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert "more than 9000 messages: send them in several batches" in (answer.remark or "")


@on_broker()
async def test_too_many_properties_are_not_even_read(broker: Broker, client: Speaker) -> None:
    answer = await client.send("t", b"x", properties="a\x01b\x02" * 9000)
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert "msg properties length limit" in (answer.remark or "")


# -- nobody waits ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["TAG", "SQL92"])
def test_long_expressions_are_read_once_and_beside_the_loop(kind: str, tmp_path: Path) -> None:
    expression = {
        "TAG": "||".join(f"tag{number}" for number in range(4000)),
        "SQL92": " OR ".join(f"a{number} = {number}" for number in range(900)),
    }[kind]

    async def test() -> None:
        async with running(tmp_path) as broker, speaking(broker) as client:
            await client.send("t", b"x", properties="TAGS\x01tag7\x02a7\x017\x02UNIQ_KEY\x01u\x02")
            ran: list[object] = []
            plain_run = broker.bursts.reader.beside.run

            async def counted(*work: Any, size: int) -> Any:
                ran.append(work)
                return await plain_run(*work, size=size)

            broker.filtering._beside = counted
            asked = {"sys_flag": 4, "subscription": expression, "expression_type": kind}
            answers = await asyncio.gather(*(client.pull("t", 0, **asked) for _ in range(20)))
            assert [answer.code for answer in answers] == [0] * 20
            assert len(ran) == 1, "once for all of them"
            assert (await client.pull("t", 0, **asked)).code == 0
            assert len(ran) == 1, "and it is kept"

    asyncio.run(asyncio.wait_for(test(), 60))


@on_broker()
async def test_too_many_tags_are_refused(broker: Broker, client: Speaker) -> None:
    tags = "||".join(f"{number:x}" for number in range(20_000))
    answer = await client.ask(HeartBeat(), beat(g=[{"topic": "t", "subString": tags}]), timeout=30)
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert "subscribe to fewer tags" in (answer.remark or "")
    assert "g" not in broker.clients.consumers


@on_broker()
async def test_runtime_info_counts_long_turns(broker: Broker, client: Speaker) -> None:
    broker.bursts.reader.watch.long_turns, broker.bursts.reader.watch.longest_turn_s = 3, 0.25
    table = KVTable.decode((await client.ask(GetBrokerRuntimeInfo())).body).table
    assert int(table["kappamqLongTurns"]) >= 3
    assert int(table["kappamqLongestTurnMs"]) >= 250


@on_broker()
async def test_many_connections_with_one_large_request_each_do_not_keep_others_waiting(
    broker: Broker, client: Speaker
) -> None:
    beside, unfinished = broker.bursts.reader.beside, broker.bursts.unfinished
    large = beat(g=[{"topic": "t"}]) + b" " * 900_000
    small = beat(h=[{"topic": "t"}]) + b" " * BESIDE_BYTES
    limits, sizes = broker.bursts.reader.limits, list[int]()
    plain_read = limits.read

    def read(frame: Frame) -> Any:
        sizes.append(len(frame.body))
        return plain_read(frame)

    limits.read = read  # type: ignore[method-assign]
    go_on = threading.Event()
    held = asyncio.create_task(beside.run(next(iter(broker.server.connections)), go_on.wait, 30))
    try:
        async with AsyncExitStack() as hostile:
            peers = [await hostile.enter_async_context(speaking(broker)) for _ in range(60)]
            asked = [asyncio.create_task(peer.ask(HeartBeat(), large, timeout=60)) for peer in peers]
            await eventually_async(lambda: beside._jobs == 60, timeout=30)
            for connection in list(beside._lines)[:30]:
                connection.abort("as the server does with those who break its rules")
            await eventually_async(lambda: beside._jobs == 30, timeout=30, text="what they sent is dropped with them")
            await eventually_async(lambda: len(unfinished) == 30)
            honest = asyncio.create_task(client.ask(HeartBeat(), small, timeout=60))
            await eventually_async(lambda: beside._jobs == 31, timeout=30)
            go_on.set()
            assert (await honest).code == 0
            assert sizes[0] == len(small), "it came before all the others"
            answers = await asyncio.gather(*asked, return_exceptions=True)
            assert [answer.code for answer in answers if isinstance(answer, Frame)] == [0] * 30
            assert len(sizes) == 31
    finally:
        go_on.set()
        await held
