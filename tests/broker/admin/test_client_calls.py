"""Questions that only a client can answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from kappamq.broker.broker import Broker
from kappamq.net.channel import Channel
from kappamq.protocol.bodies.admin import ConsumeDirectlyResult, ConsumerRunningInfo, ConsumerStatus
from kappamq.protocol.codes import RequestCode, ResponseCode
from kappamq.protocol.frame import Frame, reply
from kappamq.protocol.headers.admin import GetConsumerStatusByBroker
from kappamq.protocol.headers.client import ConsumeDirectly, GetRunningInfo, HeartBeat
from kappamq.protocol.records.record import decode
from tests.broker.operating import beat, make_topic, ok, on_broker, queue, refused
from tests.broker.running import Speaker
from tests.waiting import eventually_async as eventually

Answer = Callable[[Frame], Frame | None]


@asynccontextmanager
async def consumer(broker: Broker, client_id: str, answer: Answer, version: int = 479) -> AsyncIterator[Speaker]:
    """A client of group g that answers questions with `answer`; None: never."""

    async def serve(channel: Channel, frame: Frame) -> Frame | None:
        if frame.is_oneway:
            return None
        answered = answer(frame)
        if answered is None:
            await asyncio.Event().wait()
        return answered

    channel = await Channel.connect(f"127.0.0.1:{broker.port}", on_request=serve)
    try:
        speaker = Speaker(channel)
        if version == 479:
            await beat(speaker, client_id, consumers={"g": ["t"]})
        else:
            text = b'{"clientID":"%s","consumerDataSet":[{"groupName":"g"}]}' % client_id.encode()
            await channel.request(Frame(code=HeartBeat.code or 0, version=version, body=text))
        yield speaker
    finally:
        channel.close()


@on_broker()
async def test_running_info_is_passed_on(broker: Broker, client: Speaker) -> None:
    asked: list[Frame] = []

    def answer(frame: Frame) -> Frame:
        asked.append(frame)
        return reply(frame, body=ConsumerRunningInfo(properties={"PROP_X": "1"}).encode())

    async with consumer(broker, "one", answer), consumer(broker, "two", lambda frame: None):
        header = GetRunningInfo(consumer_group="g", client_id="one", stack=True)
        got = ConsumerRunningInfo.decode((await ok(client, header)).body)
        assert got.properties == {"PROP_X": "1"}
        assert asked[0].code == RequestCode.GET_CONSUMER_RUNNING_INFO
        assert (asked[0].ext["clientId"], asked[0].ext["jstackEnable"]) == ("one", "true")
        error = ResponseCode.SYSTEM_ERROR
        await refused(client, GetRunningInfo(consumer_group="g", client_id="three"), error, "<three>", "not online")
        await refused(client, GetRunningInfo(consumer_group="h", client_id="one"), error, "<h>", "not online")


@on_broker()
async def test_a_client_says_no_is_silent_leaves_or_is_too_old(broker: Broker, client: Speaker) -> None:
    header = GetRunningInfo(consumer_group="g", client_id="c")
    error = ResponseCode.SYSTEM_ERROR
    async with consumer(broker, "c", lambda frame: reply(frame, error, "I will not say")):
        await refused(client, header, error, "I will not say")
    await eventually(lambda: broker.clients.find("g", "c") is None)
    async with consumer(broker, "c", lambda frame: None) as silent:
        broker.administration.client_calls.call_s = 0.2
        await refused(client, header, ResponseCode.CONSUME_MSG_TIMEOUT, "<g>", "<c>")
        broker.administration.client_calls.call_s = 10.0
        asked = asyncio.ensure_future(refused(client, header, error, "gone"))
        await eventually(lambda: any(connection._calls for connection in broker.server.connections))
        silent.channel.close()
        await asked
    await eventually(lambda: broker.clients.find("g", "c") is None)
    async with consumer(broker, "c", lambda frame: reply(frame), version=50):
        await refused(client, header, error, "too low")


@on_broker()
async def test_a_message_is_consumed_on_request(broker: Broker, client: Speaker) -> None:
    await make_topic(client, "t")
    sent = await client.send("t", b"again, please")
    asked: list[Frame] = []

    def answer(frame: Frame) -> Frame:
        asked.append(frame)
        return reply(frame, body=ConsumeDirectlyResult(result="CR_LATER", remark="not now").encode())

    async with consumer(broker, "c", answer):
        header = ConsumeDirectly(consumer_group="g", client_id="c", message_id=sent.ext["msgId"])
        got = ConsumeDirectlyResult.decode((await ok(client, header)).body)
        assert (got.result, got.remark) == ("CR_LATER", "not now")
        (frame,) = asked
        assert decode(frame.body).body == b"again, please"
        assert frame.ext["brokerName"] == "b"
        assert (frame.ext["topicSysFlag"], frame.ext["groupSysFlag"]) == ("0", "0")

        error = ResponseCode.SYSTEM_ERROR
        beyond = sent.ext["msgId"][:16] + f"{1 << 40:016X}"
        await refused(
            client, ConsumeDirectly(consumer_group="g", client_id="c", message_id=beyond), error, "no message"
        )
        await refused(client, ConsumeDirectly(consumer_group="g", client_id="c", message_id="x"), error, "msgId")
        await refused(client, ConsumeDirectly(consumer_group="g", message_id=sent.ext["msgId"]), error, "not online")
        assert len(asked) == 1


@on_broker()
async def test_offsets_as_the_clients_have_them(broker: Broker, client: Speaker) -> None:
    ask = GetConsumerStatusByBroker(topic="t", group="g")
    await refused(client, ask, ResponseCode.SYSTEM_ERROR, "No Any Consumer online")

    def at(offset: int) -> Answer:
        return lambda frame: reply(frame, body=ConsumerStatus(offsets={queue("t", 0): offset}).encode())

    async with (
        consumer(broker, "one", at(5)),
        consumer(broker, "two", at(7)) as two,
        consumer(broker, "broken", lambda frame: reply(frame, body=b"{")),
        consumer(broker, "unwilling", lambda frame: reply(frame, 1, "no")),
    ):
        status = ConsumerStatus.decode((await ok(client, ask)).body)
        assert status.clients == {"one": {queue("t", 0): 5}, "two": {queue("t", 0): 7}}
        ask = GetConsumerStatusByBroker(topic="t", group="g", client_address=two.channel.local_address)
        status = ConsumerStatus.decode((await ok(client, ask)).body)
        assert status.clients.keys() == {"two"}
