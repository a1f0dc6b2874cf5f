"""Replies: handed to the client that asked, stored, and refused with a reason when nobody is there to take them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from kappamq.broker.broker import Broker
from kappamq.net.channel import Channel
from kappamq.protocol.codes import RequestCode, ResponseCode
from kappamq.protocol.frame import Frame, reply
from kappamq.protocol.headers.client import PushReply, UnregisterClient
from kappamq.protocol.records import properties
from tests.broker.operating import beat, on_broker
from tests.broker.running import Speaker, appended, speaking
from tests.waiting import eventually_async as eventually

TOPIC = "DefaultCluster_REPLY_TOPIC"
V1, V2 = RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2


def text(client_id: str = "asker", **others: str) -> str:
    return properties.encode({"CORRELATION_ID": "c-1", "REPLY_TO_CLIENT": client_id, "MSG_TYPE": "reply", **others})


@asynccontextmanager
async def asker(broker: Broker, answer: Callable[[Frame], Any], client_id: str = "asker") -> AsyncIterator[Speaker]:
    """A producer that takes replies with `answer`."""
    channel = await Channel.connect(f"127.0.0.1:{broker.port}", on_request=lambda channel, frame: answer(frame))
    try:
        speaker = Speaker(channel)
        await beat(speaker, client_id, producers=("pg",))
        yield speaker
    finally:
        channel.close()


async def send(client: Speaker, pairs: str, body: bytes = b"42", code: int = V2, **changes: Any) -> Frame:
    header = client.send_header(changes.pop("topic", TOPIC), changes.pop("queue_id", 0), pairs, **changes)
    return await client.ask(header.plain() if code == V1 else header, body, code=code)


@pytest.mark.parametrize("code", [V1, V2])
def test_a_reply_reaches_who_asked_and_is_stored(tmp_path, code: int) -> None:
    @on_broker()
    async def test(broker: Broker, client: Speaker) -> None:
        got: list[Frame] = []

        def take(frame: Frame) -> Frame:
            got.append(frame)
            return reply(frame)

        async with asker(broker, take), asker(broker, lambda frame: None, "other"):
            answer = await send(client, text(own="mine"), code=code, sys_flag=0, flag=7)
            assert answer.code == 0, answer.remark
        (frame,) = got
        assert frame.code == RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
        header = PushReply.decode(frame.ext)
        pairs = properties.decode(header.properties or "")
        assert (frame.body, header.topic, header.flag, header.producer_group) == (b"42", TOPIC, 7, "pg")
        assert (pairs["CORRELATION_ID"], pairs["own"], pairs["MSG_TYPE"]) == ("c-1", "mine", "reply")
        assert int(pairs["PUSH_REPLY_TIME"]) == header.store_ms
        assert header.born_host.startswith("127.0.0.1:")
        assert header.store_host == broker.address
        (record,) = await client.read(TOPIC)
        assert (record.body, record.property_map()["CORRELATION_ID"]) == (b"42", "c-1")
        assert int(answer.ext["msgId"][16:], 16) == record.log_offset
        assert (answer.ext["queueId"], answer.ext["queueOffset"]) == ("0", "0")

    test(tmp_path, "twin")


@on_broker(store_replies=False)
async def test_replies_need_not_be_stored(broker: Broker, client: Speaker) -> None:
    async with asker(broker, reply):
        answer = await send(client, text())
        assert (answer.code, answer.ext["msgId"], answer.ext["queueOffset"]) == (0, "0", "0")
        assert await client.read(TOPIC) == []


@on_broker()
async def test_when_who_asked_has_gone_the_replier_is_told(broker: Broker, client: Speaker) -> None:
    answer = await send(client, text("nobody"))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "channel of <nobody> not found: the requester has gone" in (answer.remark or "")
    async with asker(broker, reply) as gone:
        assert (await send(client, text())).code == 0
        await gone.ask(UnregisterClient(client_id="asker", producer_group="pg"))
        assert "has gone" in ((await send(client, text())).remark or "")
        await beat(gone, "asker", producers=("pg",))
        assert (await send(client, text())).code == 0
    await eventually(lambda: broker.clients.producer("asker") is None)
    assert "has gone" in ((await send(client, text())).remark or "")
    assert len(await client.read(TOPIC)) == 5  # kept all the same, for whoever looks for it


@on_broker()
async def test_a_requester_that_says_no_is_silent_or_leaves_costs_nobody_else_anything(
    broker: Broker, client: Speaker
) -> None:
    async with asker(broker, lambda frame: reply(frame, ResponseCode.SYSTEM_ERROR, "not now")):
        answer = await send(client, text())
        assert (answer.code, answer.remark) == (1, "push reply message to <asker> fail: it answered 1 not now")

    async def never(frame: Frame) -> None:
        await asyncio.Event().wait()

    async with asker(broker, never) as silent, speaking(broker) as other:
        await eventually(lambda: broker.clients.producer("asker") is not None)
        broker.delivery.replies.push_s = 0.1
        assert "did not answer" in ((await send(client, text())).remark or "")
        broker.delivery.replies.push_s = 10.0
        waiting = asyncio.ensure_future(send(client, text()))
        await eventually(lambda: any(connection._calls for connection in broker.server.connections))
        assert (await other.send("t", b"x")).code == 0  # while that one waits
        silent.channel.close()
        answer = await waiting
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "closed" in (answer.remark or "")


@on_broker()
async def test_what_is_no_reply_is_refused_and_leaves_nothing(broker: Broker, client: Speaker) -> None:
    async with asker(broker, reply):
        before = appended(broker)
        illegal = ResponseCode.MESSAGE_ILLEGAL
        for pairs, changes, code in [
            (text(DELAY="3"), {}, illegal),
            (text(TIMER_DELAY_MS="5000"), {}, illegal),
            (text(), {"sys_flag": 4}, illegal),
            (text(TRAN_MSG="true"), {}, illegal),
            (text(), {"batch": True}, illegal),
            (text(), {"queue_id": 1}, ResponseCode.INVALID_PARAMETER),
            (text(), {"topic": "SCHEDULE_TOPIC_XXXX"}, ResponseCode.NO_PERMISSION),
            (text(), {"topic": "rmq_sys_kappamq_metadata"}, ResponseCode.NO_PERMISSION),
        ]:
            answer = await send(client, pairs, **changes)
            assert answer.code == code, (changes, answer.code, answer.remark)
        assert (await send(client, text(), b"")).code == illegal
        unaddressed = await send(client, "UNIQ_KEY\x01u")
        assert unaddressed.code == illegal
        assert unaddressed.remark == "the reply does not say who asked: property REPLY_TO_CLIENT is missing"
        assert appended(broker) == before


@on_broker()
async def test_a_client_is_found_where_it_was_heard_of_last(broker: Broker, client: Speaker) -> None:
    first: list[Frame] = []
    second: list[Frame] = []
    async with (
        asker(broker, lambda frame: first.append(frame)),
        asker(broker, lambda frame: second.append(frame) or reply(frame)),
    ):
        assert (await send(client, text())).code == 0
        assert (len(first), len(second)) == (0, 1)


@on_broker()
async def test_names_of_producers_do_not_pile_up(broker: Broker, client: Speaker) -> None:
    for number in range(50):
        await beat(client, f"name-{number}", producers=("pg", "other"))
    assert broker.clients._producing.keys() == {"name-49"}
    await client.ask(UnregisterClient(client_id="name-49", producer_group="pg"))
    assert broker.clients.producer("name-49") is not None
    await client.ask(UnregisterClient(client_id="name-49", producer_group="other"))
    assert broker.clients._producing == {}
