"""Bad input gets a clear answer, costs nobody else anything, and nothing is lost."""

from __future__ import annotations

import asyncio
import json
import random
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from kappamq.broker.broker import Broker
from kappamq.protocol.codes import RequestCode, ResponseCode
from kappamq.protocol.frame import Frame
from kappamq.protocol.headers.client import EndTransaction, PullMessage
from kappamq.protocol.records import batch
from kappamq.protocol.records.batch import Member
from tests.broker.running import MODES, Speaker, run, running, speaking
from tests.waiting import eventually_async as eventually


@asynccontextmanager
async def bystander(broker: Broker) -> AsyncIterator[Speaker]:
    """Somebody who sends before and after, and must notice nothing."""
    async with speaking(broker) as client:
        before = len(await client.read("bystander")) if broker.topics.get("bystander") else 0
        assert (await client.send("bystander", b"before")).code == 0
        yield client
        assert (await client.send("bystander", b"after")).code == 0
        assert [record.body for record in await client.read("bystander", offset=before)] == [b"before", b"after"]


async def raw(broker: Broker, data: bytes, wait_close: bool = True) -> bytes:
    """Send bytes on a connection of its own; what comes back until the broker closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
    try:
        writer.write(data)
        await writer.drain()
        if not wait_close:
            return b""
        return await asyncio.wait_for(reader.read(), 10)
    except ConnectionError:
        return b""
    finally:
        writer.close()


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xff\xff\xff more",  # a negative length
        b"\x00\x00\x00\x01\x00",  # too short for the mark
        struct.pack(">i", 16 * 1024 * 1024 + 1),  # a claim beyond the limit: refused before anything is buffered
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        struct.pack(">ii", 20, 17) + b"x" * 16,  # a header longer than its frame
        struct.pack(">ii", 20, 2 << 24 | 4) + b"x" * 16,  # an unknown form of header
        struct.pack(">ii", 10, 6) + b"{nope}",
        struct.pack(">ii", 6, 1 << 24 | 2) + b"\x00\x00",  # a binary header that is cut off
    ],
)
def test_bytes_that_are_no_frame_close_that_connection_only(tmp_path: Path, data: bytes) -> None:
    async def test() -> None:
        async with running(tmp_path) as broker, bystander(broker):
            assert await raw(broker, data) == b""

    run(test())


@pytest.mark.parametrize("mode", MODES)
def test_random_bytes(tmp_path: Path, mode: str) -> None:
    async def test() -> None:
        dice = random.Random(7)
        async with running(tmp_path, mode) as broker, bystander(broker):
            for _ in range(200):
                size = dice.randrange(1, 300)
                data = dice.randbytes(size)
                if dice.random() < 0.7:  # a frame from outside, noise inside
                    header = dice.randrange(0, size + 1)
                    data = struct.pack(">ii", size + 4, dice.randrange(2) << 24 | header) + data
                await raw(broker, data, wait_close=False)
            await eventually(lambda: len(broker.server.connections) <= 1)

    run(test())


def test_a_half_frame_held_open_is_cut_after_its_time(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path, net={"first_frame_s": 0.2, "frame_s": 0.2}) as broker, bystander(broker):
            assert await raw(broker, struct.pack(">ii", 1000, 100) + b"only the beginning") == b""
            assert await raw(broker, b"") == b"", "and so is one that says nothing at all"

    run(test())


def test_a_large_claim_is_not_allocated(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path) as broker, bystander(broker):
            writers = []
            for _ in range(50):
                _reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
                writer.write(struct.pack(">ii", 16 * 1024 * 1024 - 8, 100))
                writers.append(writer)
            await eventually(lambda: len(broker.server.connections) == 51)
            held = sum(len(connection._buffer) for connection in broker.server.connections)
            assert held <= 50 * 8, "what was announced is not there yet, so nothing is held for it"
            for writer in writers:
                writer.close()

    run(test())


@pytest.mark.parametrize("mode", MODES)
def test_refusals_name_code_and_reason(tmp_path: Path, mode: str) -> None:
    cases: list[tuple[dict[str, Any], int, str]] = [
        ({"topic": "t", "queue_id": 99}, ResponseCode.INVALID_PARAMETER, "queueId"),
        ({"topic": "t" * 128}, ResponseCode.INVALID_PARAMETER, "127"),
        ({"topic": "../../etc/passwd"}, ResponseCode.INVALID_PARAMETER, "etc/passwd"),
        ({"topic": "a/b"}, ResponseCode.INVALID_PARAMETER, "a/b"),
        ({"topic": ""}, ResponseCode.INVALID_PARAMETER, "blank"),
        ({"topic": "SCHEDULE_TOPIC_XXXX"}, ResponseCode.NO_PERMISSION, "system topic"),
        ({"topic": "RMQ_SYS_TRANS_HALF_TOPIC"}, ResponseCode.NO_PERMISSION, "system topic"),
        ({"topic": "rmq_sys_kappamq_metadata"}, ResponseCode.NO_PERMISSION, "system topic"),
        ({"topic": "t", "body": b""}, ResponseCode.MESSAGE_ILLEGAL, "body"),
        ({"topic": "t", "body": bytes(256 * 1024 + 1)}, ResponseCode.MESSAGE_ILLEGAL, "262144"),
        (
            {"topic": "t", "properties": "UNIQ_KEY\x01x\x02big\x01" + "y" * 32_700},
            ResponseCode.MESSAGE_ILLEGAL,
            "properties",
        ),
        ({"topic": "t", "properties": "DELAY\x01three"}, ResponseCode.MESSAGE_ILLEGAL, "DELAY"),
        (
            {"topic": "t", "properties": "TIMER_DELAY_SEC\x01999999999"},
            ResponseCode.MESSAGE_ILLEGAL,
            "timerMaxDelaySec",
        ),
        ({"topic": "t", "sys_flag": 4}, ResponseCode.MESSAGE_ILLEGAL, "TRAN_MSG"),
        ({"topic": "t", "sys_flag": 8}, ResponseCode.MESSAGE_ILLEGAL, "END_TRANSACTION"),
        ({"topic": "t", "sys_flag": 0x80}, ResponseCode.MESSAGE_ILLEGAL, "sysFlag"),
        ({"topic": "%RETRY%" + "g" * 121}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "does not exist"),
        ({"topic": "new", "default_topic": "none"}, ResponseCode.TOPIC_NOT_EXIST, "topic create"),
    ]

    async def test() -> None:
        async with running(tmp_path, mode) as broker, bystander(broker) as client:
            assert (await client.send("t", b"a good one")).code == 0
            for changes, code, text in cases:
                values = {"properties": "UNIQ_KEY\x01u", "body": b"x", **changes}
                answer = await client.send(values.pop("topic"), values.pop("body"), values.pop("queue_id", 0), **values)
                assert (answer.code, text in (answer.remark or "")) == (code, True), (
                    changes.keys(),
                    answer.code,
                    answer.remark,
                )
            assert [record.body for record in await client.read("t")] == [b"a good one"], "nothing of that was stored"

    run(test())


@pytest.mark.parametrize("mode", MODES)
def test_a_batch_is_refused_as_a_whole(tmp_path: Path, mode: str) -> None:
    async def test() -> None:
        async with running(tmp_path, mode) as broker, bystander(broker) as client:
            assert (await client.send("t", b"a good one")).code == 0
            good = Member(b"good", "UNIQ_KEY\x01x")
            for bad, text in [
                (batch.encode([good, Member(b"late", "DELAY\x013")]), "delay"),
                (batch.encode([good, Member(b"", "")]), "no body"),
                (batch.encode([good])[:-1], "batch"),
                (batch.encode([good]) + b"\x00\x00\x00\x05", "batch"),
                (b"\x7f\xff\xff\xff" + batch.encode([good]), "batch"),
            ]:
                answer = await client.send_batch("t", bad)
                assert answer.code == ResponseCode.MESSAGE_ILLEGAL, answer.remark
                assert text in (answer.remark or "")
            whole = await client.send_batch("t", batch.encode([good]), properties="UNIQ_KEY\x01B\x02DELAY\x013")
            assert whole.code == ResponseCode.MESSAGE_ILLEGAL
            assert "delayed" in (whole.remark or "")
            assert [record.body for record in await client.read("t")] == [b"a good one"]

    run(test())


def test_unknown_codes_and_missing_fields_are_answered(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path) as broker, bystander(broker) as client:
            answer = await client.channel.request(Frame(code=31_999))
            assert (answer.code, answer.remark) == (3, " request type 31999 not supported")
            answer = await client.channel.request(Frame(code=RequestCode.SEND_MESSAGE_V2, ext={"a": "g"}, body=b"x"))
            assert answer.code == 1
            assert "b" in (answer.remark or "")
            answer = await client.channel.request(
                Frame(code=RequestCode.PULL_MESSAGE, ext={"topic": "t", "queueId": "many"})
            )
            assert answer.code == 1
            answer = await client.channel.request(Frame(code=RequestCode.HEART_BEAT, body=b"{broken"))
            assert answer.code == 1
            end = EndTransaction(producer_group="g", transaction_offset=1, log_offset=1, decision=8, message_id="x")
            answer = await client.ask(end)
            assert answer.code == ResponseCode.SYSTEM_ERROR

    run(test())


@pytest.mark.parametrize("mode", MODES)
def test_pulls_that_cannot_be(tmp_path: Path, mode: str) -> None:
    async def test() -> None:
        async with running(tmp_path, mode, auto_create_group=False) as broker, bystander_free(broker) as client:
            await client.send("t", b"x")
            base = {"consumer_group": "TOOLS_CONSUMER", "topic": "t", "queue_id": 0, "queue_offset": 0, "count_max": 32, "sys_flag": 4,
                    "commit_offset": 0, "hold_ms": 0, "subscription_version": 0, "subscription": "*"}  # fmt: skip
            for changes, code in [
                ({"consumer_group": "stranger"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
                ({"topic": "nowhere"}, ResponseCode.TOPIC_NOT_EXIST),
                ({"queue_id": 44}, ResponseCode.INVALID_PARAMETER),
                ({"queue_id": -1}, ResponseCode.INVALID_PARAMETER),
                ({"count_max": 0}, ResponseCode.INVALID_PARAMETER),
                ({"sys_flag": 0}, ResponseCode.SUBSCRIPTION_NOT_EXIST),
                ({"expression_type": "XPATH", "subscription": "a"}, ResponseCode.SYSTEM_ERROR),
                ({"expression_type": "SQL92", "subscription": "a >"}, ResponseCode.SUBSCRIPTION_PARSE_FAILED),
            ]:
                answer = await client.ask(PullMessage(**(base | changes)))
                assert answer.code == code, (changes, answer.code, answer.remark)
                assert answer.remark
            assert (await client.ask(PullMessage(**base))).code == 0

    run(test())


@asynccontextmanager
async def bystander_free(broker: Broker) -> AsyncIterator[Speaker]:
    async with speaking(broker) as client:
        yield client


def test_a_socket_closed_in_the_middle_of_its_answer(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path) as broker, bystander(broker) as client:
            for _ in range(20):
                await client.send("t", bytes(100_000))
            header = {"code": 11, "flag": 0, "language": "JAVA", "opaque": 1, "version": 479, "extFields": {
                "consumerGroup": "TOOLS_CONSUMER", "topic": "t", "queueId": "0", "queueOffset": "0", "maxMsgNums": "32", "sysFlag": "4",
                "commitOffset": "0", "suspendTimeoutMillis": "0", "subVersion": "0", "subscription": "*"}}  # fmt: skip
            text = json.dumps(header).encode()
            for _ in range(20):
                await raw(broker, struct.pack(">ii", 4 + len(text), len(text)) + text, wait_close=False)
            await eventually(lambda: len(broker.server.connections) == 1)

    run(test())


def test_a_peer_that_does_not_read_is_paused_and_cut(tmp_path: Path) -> None:
    async def test() -> None:
        limits = {"write_stall_s": 0.5, "write_pause_bytes": 64 << 10}
        async with running(tmp_path, net=limits) as broker, bystander(broker) as client:
            for _ in range(20):
                await client.send("t", bytes(200_000))
            async with speaking(broker) as slow:
                slow.channel._transport.pause_reading()  # type: ignore[union-attr]
                asked = [asyncio.ensure_future(slow.pull("t", 0, explicit=True, timeout=20)) for _ in range(400)]
                await eventually(lambda: len(broker.server.connections) == 1, timeout=15)
                slow.channel._transport.resume_reading()  # type: ignore[union-attr]
                await asyncio.gather(*asked, return_exceptions=True)

    run(test())


def test_too_many_connections_are_refused(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path, net={"connections_max": 5}) as broker, bystander(broker):
            held = [await asyncio.open_connection("127.0.0.1", broker.port) for _ in range(4)]
            await eventually(lambda: len(broker.server.connections) == 5)
            assert await raw(broker, b"") == b""
            for _reader, writer in held:
                writer.close()

    run(test())


@pytest.mark.parametrize("mode", MODES)
def test_many_pulls_in_one_go_do_not_pile_up_their_answers(tmp_path: Path, mode: str) -> None:
    async def test() -> None:
        async with running(tmp_path, mode, net={"write_pause_bytes": 256 << 10}) as broker, bystander(broker) as client:
            for _ in range(8):
                await client.send("t", bytes(30_000))
            async with speaking(broker) as hungry:
                most = 0
                asked = [asyncio.ensure_future(hungry.pull("t", 0, explicit=True, timeout=30)) for _ in range(300)]
                while not all(task.done() for task in asked):
                    most = max(most, *(connection.unsent_bytes for connection in broker.server.connections))
                    await asyncio.sleep(0)
                assert {task.result().code for task in asked} == {0}
                assert most < 8 << 20, f"{most} bytes waited at once, of {300 * 240_000}"

    run(test())
