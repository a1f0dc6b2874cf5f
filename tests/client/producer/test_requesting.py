"""Asking and answering, with real brokers."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kappamq.client.consumer.consumer import AsyncConsumer
from kappamq.client.producer.producer import AsyncProducer
from kappamq.client.producer.requesting import is_request, replying
from kappamq.errors import BrokerError, IllegalMessage, RequestTimeout
from kappamq.message import Message, ReceivedMessage
from kappamq.protocol.codes import RequestCode
from tests.client.fake import FakeCluster, fake_cluster
from tests.client.loop import on_loop
from tests.client.real import RealCluster, real_cluster
from tests.waiting import eventually_async

REPLIES = "DefaultCluster_REPLY_TOPIC"


def replier(cluster: RealCluster, producer: AsyncProducer, answer, topic: str = "rpc", **options) -> AsyncConsumer:
    return AsyncConsumer(
        **cluster.options(**options),
        group="repliers",
        topics=topic,
        listener=replying(producer, answer),
        consume_from="first",
    )


@on_loop
async def test_every_request_gets_its_own_reply(tmp_path: Path) -> None:
    async def double(message: ReceivedMessage) -> str:
        return str(2 * int(message.body))

    async with (
        real_cluster(tmp_path) as cluster,
        AsyncProducer(**cluster.options(), group="askers") as asking,
        AsyncProducer(**cluster.options(instance="replier"), group="repliers") as answering,
        replier(cluster, answering, double),
    ):
        asked = [asking.request(Message("rpc", b"%d" % n), timeout=10) for n in range(50)]
        replies = await asyncio.gather(*asked)
        assert [int(reply.body) for reply in replies] == [2 * n for n in range(50)]
        assert {reply.topic for reply in replies} == {REPLIES}
        assert {reply.properties["MSG_TYPE"] for reply in replies} == {"reply"}
        assert len(asking.running().requests) == 0


@on_loop
async def test_without_a_reply_the_error_says_where_the_request_is(tmp_path: Path) -> None:
    async with real_cluster(tmp_path) as cluster, AsyncProducer(**cluster.options(), group="askers") as asking:
        with pytest.raises(
            RequestTimeout, match=r"within 3 s \(it was stored in rpc@broker-0/\d at offset 0; is a consumer"
        ):
            await asking.request(Message("rpc", b"anybody?"), timeout=3)
        assert len(asking.running().requests) == 0
        seen: list[ReceivedMessage] = []

        async def late(message: ReceivedMessage) -> str:
            seen.append(message)
            return "too late"

        # The reply to the first request comes when nobody waits for it any more; the next request is not confused.
        async with replier(cluster, asking, late):
            reply = await asking.request(Message("rpc", b"and now?"), timeout=10)
            await eventually_async(lambda: len(seen) == 2)
            assert reply.properties["CORRELATION_ID"] == seen[1].properties["CORRELATION_ID"]
            assert seen[0].properties["TTL"] == "3000"


@on_loop
async def test_a_requester_that_has_gone_is_an_error_for_the_replier_but_not_a_failed_message(tmp_path: Path) -> None:
    async with (
        real_cluster(tmp_path) as cluster,
        AsyncProducer(**cluster.options(instance="a"), group="r") as answering,
    ):
        async with AsyncProducer(**cluster.options(instance="gone"), group="askers") as asking:
            with pytest.raises(RequestTimeout):
                await asking.request(Message("rpc", b"x"), timeout=3)
        calls: list[ReceivedMessage] = []

        def answer(message: ReceivedMessage) -> bytes:
            calls.append(message)
            return b"y"

        async with replier(cluster, answering, answer) as consumer:
            await eventually_async(lambda: sum(consumer.positions.values()) == 1)  # done, in spite of it
            with pytest.raises(BrokerError, match="the requester has gone") as raised:
                await answering.reply(calls[0], b"y")
            assert raised.value.response_code == 1
            assert len(calls) == 1


@on_loop
async def test_what_asks_nothing_and_what_answers_nothing(tmp_path: Path) -> None:
    async with real_cluster(tmp_path) as cluster, AsyncProducer(**cluster.options(), group="askers") as asking:
        calls: list[ReceivedMessage] = []

        async def answer(message: ReceivedMessage) -> str | None:
            calls.append(message)
            if not is_request(message):
                return "nobody hears this"
            return None

        async with replier(cluster, asking, answer) as consumer:
            await asking.send(Message("rpc", b"no question"))
            await eventually_async(lambda: sum(consumer.positions.values()) == 1)
            with pytest.raises(IllegalMessage, match="is not a request"):
                await asking.reply(calls[0], b"x")
            with pytest.raises(RequestTimeout):  # None is no reply
                await asking.request(Message("rpc", b"question"), timeout=2)


@on_loop
async def test_a_reply_by_way_of_any_broker_arrives(tmp_path: Path) -> None:
    """Java's clients send their replies to whichever broker's turn it is."""
    async with (
        real_cluster(tmp_path, brokers=2) as cluster,
        AsyncProducer(**cluster.options(), group="askers") as asking,
    ):
        waiting = asyncio.ensure_future(asking.request(Message("rpc", b"x"), timeout=10))
        core = asking.running()
        client_id = core.client_id
        for broker in cluster.brokers.values():
            await eventually_async(lambda broker=broker: broker.clients.producer(client_id) is not None)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        # One broker away costs a request a moment, not its time limit.
        await cluster.stop_broker("broker-1")
        async with (
            AsyncProducer(**cluster.options(instance="r"), group="repliers") as answering,
            replier(cluster, answering, lambda message: b"y"),
        ):
            assert (await asking.request(Message("rpc", b"x"), timeout=10)).body == b"y"


@on_loop
async def test_a_reply_goes_elsewhere_if_the_requests_broker_cannot_be_reached() -> None:
    def request_at(cluster: FakeCluster, broker: str) -> ReceivedMessage:
        cluster.broker.put("rpc", 0, b"x", CORRELATION_ID="c", REPLY_TO_CLIENT="me", CLUSTER="c", TTL="3000")
        (record,) = cluster.broker.queues["rpc", 0]
        return record.to_message(broker)

    code = RequestCode.SEND_REPLY_MESSAGE_V2
    async with fake_cluster(brokers=2, c_REPLY_TOPIC=1) as cluster, AsyncProducer(**cluster.options()) as producer:
        for broker in cluster.brokers:
            broker._handlers[code] = broker._send
        request = request_at(cluster, "broker-0")
        await producer.reply(request, b"here")
        assert [len(broker.seen(code)) for broker in cluster.brokers] == [1, 0]
        await cluster.brokers[0].stop()
        await producer.reply(request, b"there")
        assert len(cluster.brokers[1].seen(code)) == 1


def test_a_listener_must_return_what_can_be_sent() -> None:
    message = ReceivedMessage(
        topic="t", body=b"", queue=None, queue_offset=0, log_offset=0, message_id="m", offset_id=""  # type: ignore[arg-type]
    )  # fmt: skip

    class Never:
        def reply(self, message: ReceivedMessage, body: bytes) -> None:
            raise AssertionError("nothing to reply to")

    replying(Never(), lambda message: "text")(message)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="a reply must be bytes or str, or None for no reply; got int"):
        replying(Never(), lambda message: 5)(message)  # type: ignore[arg-type]
