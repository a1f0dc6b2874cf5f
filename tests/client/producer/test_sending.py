"""What a send does with brokers that are slow, silent or full; more about its tries in test_producer.py."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kappamq.client.admin.admin import AsyncAdmin
from kappamq.client.consumer.pull_consumer import AsyncPullConsumer
from kappamq.client.producer.outgoing import single
from kappamq.client.producer.producer import AsyncProducer
from kappamq.client.producer.selection import RoundRobin
from kappamq.client.producer.sending import Sending
from kappamq.config.client import ClientConfig
from kappamq.errors import BrokerError, MaybeStored, NotConnected, SendTimeout, TooManyRequests
from kappamq.message import Message, MessageQueue, ReceivedMessage, SendResult
from kappamq.protocol.codes import RequestCode, ResponseCode
from kappamq.protocol.frame import Frame, reply
from kappamq.protocol.headers.client import SendMessageV2
from kappamq.protocol.leader_hint import not_known
from kappamq.protocol.records import properties
from tests.client.fake import FakeBroker, Peer, fake_cluster, never
from tests.client.loop import on_loop
from tests.client.real import RealCluster, real_cluster
from tests.waiting import eventually_async

SEND = RequestCode.SEND_MESSAGE_V2


def brokers(results: list[SendResult]) -> set[str]:
    return {result.queue.broker for result in results}


@on_loop
async def test_a_code_that_nobody_knows_is_not_tried_again() -> None:
    async with fake_cluster(brokers=2, tea=1) as cluster, AsyncProducer(**cluster.options()) as producer:
        for broker in cluster.brokers:
            broker.script(SEND, 9876)
        with pytest.raises(BrokerError, match="scripted 9876") as raised:
            await producer.send(Message("tea", b"x"))
        assert raised.value.response_code == 9876
        assert sum(len(broker.seen(SEND)) for broker in cluster.brokers) == 1


@on_loop
async def test_with_a_limit_for_each_try_a_silent_broker_is_left_for_another_and_the_id_stays() -> None:
    async with (
        fake_cluster(brokers=2, tea=1) as cluster,
        AsyncProducer(**cluster.options(send_try_timeout_ms=1500)) as producer,
    ):
        for broker in cluster.brokers:
            broker.script(SEND, never)
        result = await producer.send(Message("tea", b"x"), timeout=30)
        frames = [frame for broker in cluster.brokers for frame in broker.seen(SEND)]
        ids = {properties.decode(SendMessageV2.decode(frame.ext).properties or "")["UNIQ_KEY"] for frame in frames}
        assert ids == {result.message_id}
        assert len(frames) == 3
        for broker in cluster.brokers:
            broker.script(SEND, *[never] * 3)
        with pytest.raises(SendTimeout, match=r"within 1 s.*may have been stored"):
            await producer.send(Message("tea", b"x"), timeout=1)


@on_loop
async def test_a_broker_that_refuses_is_left_alone_when_the_fault_table_is_on() -> None:
    async with (
        fake_cluster(brokers=3, tea=2) as cluster,
        AsyncProducer(**cluster.options(latency_faults=True)) as producer,
    ):
        bad = cluster.brokers[0]
        bad.script(SEND, *[ResponseCode.SYSTEM_BUSY] * 100)
        results = [await producer.send(Message("tea", b"%d" % n)) for n in range(30)]
        assert brokers(results) == {"broker-1", "broker-2"}
        assert len(bad.seen(SEND)) == 1  # asked once; for ten seconds not again


@on_loop
async def test_a_slow_broker_is_left_alone_when_the_fault_table_is_on() -> None:
    async with (
        fake_cluster(brokers=2, tea=1) as cluster,
        AsyncProducer(**cluster.options(latency_faults=True)) as producer,
    ):
        slow = cluster.brokers[0]

        async def late(peer: Peer, frame: Frame) -> Frame:
            await asyncio.sleep(0.56)  # longer than the table forgives
            answer = slow.handle(peer, frame)
            assert isinstance(answer, Frame)
            return answer

        slow.script(SEND, late)
        results = [await producer.send(Message("tea", b"%d" % n)) for n in range(12)]
        assert [result.queue.broker for result in results].count("broker-0") == 1


class Holding:
    """A broker that answers sends only when told to."""

    def __init__(self, broker: FakeBroker) -> None:
        self.broker = broker
        self.release = asyncio.Event()

    async def __call__(self, peer: Peer, frame: Frame) -> Frame:
        await self.release.wait()
        answer = self.broker.handle(peer, frame)
        assert isinstance(answer, Frame)
        return answer


@pytest.mark.parametrize("limits", [{"inflight_max": 2}, {"inflight_bytes_max": 2000}], ids=["count", "bytes"])
@on_loop
async def test_what_is_beyond_the_limits_waits_and_then_gives_up(limits: dict[str, int]) -> None:
    async with fake_cluster(tea=1) as cluster, AsyncProducer(**cluster.options(**limits)) as producer:
        holding = Holding(cluster.broker)
        cluster.broker.script(SEND, *[holding] * 2)
        message = Message("tea", b"x" * 1000, flag=1)  # with a flag it leaves by itself
        first = [asyncio.create_task(producer.send(message)) for _ in range(2)]
        await eventually_async(lambda: len(cluster.broker.seen(SEND)) == 2)
        with pytest.raises(
            TooManyRequests, match=r"2 sends with 2000 bytes are in flight.*within 0\.05 s.*was not sent"
        ):
            await producer.send(message, timeout=0.05)
        waiting = asyncio.create_task(producer.send(message))
        await asyncio.sleep(0)
        holding.release.set()
        assert all(result.ok for result in await asyncio.gather(*first, waiting))
        assert len(cluster.broker.stored("tea")) == 3


@on_loop
async def test_beyond_the_limits_a_send_can_be_refused_at_once() -> None:
    async with (
        fake_cluster(tea=1) as cluster,
        AsyncProducer(**cluster.options(inflight_max=1, inflight_full="raise")) as producer,
    ):
        holding = Holding(cluster.broker)
        cluster.broker.script(SEND, holding)
        first = asyncio.create_task(producer.send(Message("tea", b"x")))
        await eventually_async(lambda: cluster.broker.seen(SEND))
        with pytest.raises(TooManyRequests, match="was not sent"):
            await producer.send(Message("tea", b"y"))
        holding.release.set()
        assert (await first).ok
        assert (await producer.send(Message("tea", b"z"))).ok
        assert cluster.broker.stored("tea") == [b"x", b"z"]


@on_loop
async def test_a_failed_send_gives_its_room_back() -> None:
    async with fake_cluster(tea=1) as cluster, AsyncProducer(**cluster.options(inflight_max=1)) as producer:
        cluster.broker.script(SEND, lambda peer, frame: reply(frame, ResponseCode.MESSAGE_ILLEGAL, "no"))
        with pytest.raises(Exception, match="no"):
            await producer.send(Message("tea", b"x"))
        assert (producer.sending.pressure.count, producer.sending.pressure.bytes) == (0, 0)
        assert (await producer.send(Message("tea", b"x"))).ok


@pytest.mark.parametrize("options", [{}, {"latency_faults": True}], ids=["plain", "fault table"])
@on_loop
async def test_every_send_arrives_though_a_broker_goes_away_without_a_word(
    tmp_path: Path, options: dict[str, bool]
) -> None:
    async with (
        real_cluster(tmp_path, brokers=2) as cluster,
        AsyncAdmin(cluster.nameserver) as admin,
        AsyncProducer(**cluster.options(**options)) as producer,
    ):
        await admin.create_topic("tea", queues=4)
        sent: list[SendResult] = []

        async def work(name: int) -> None:
            for number in range(50):
                sent.append(await producer.send(Message("tea", b"%d-%d" % (name, number))))

        workers = [asyncio.create_task(work(name)) for name in range(4)]
        await eventually_async(lambda: len(sent) > 20)
        # Its sockets are gone without a word; the name server goes on naming it.
        gone = cluster.brokers["broker-1"]
        await gone.server.stop()
        await asyncio.gather(*workers)
        assert len({result.message_id for result in sent}) == 200
        assert all(result.ok for result in sent)
        assert brokers(sent[-50:]) == {"broker-0"}
        bodies = [message.body for message in await stored_at(cluster, "broker-0")]
        assert {b"%d-49" % name for name in range(4)} <= set(bodies)


async def stored_at(cluster: RealCluster, broker: str) -> list[ReceivedMessage]:
    async with AsyncPullConsumer(**cluster.options(), group="reader") as consumer:
        return [
            message for number in range(4) async for message in consumer.read(MessageQueue("tea", broker, number), 0)
        ]


@on_loop
async def test_what_was_never_sent_is_not_said_to_be_stored_perhaps() -> None:
    """The name server is silent, so no route is learned; and with a broker that cannot be reached it is the same."""
    async with fake_cluster(tea=1) as cluster, AsyncProducer(**cluster.options()) as producer:
        cluster.nameservers[0].script(RequestCode.GET_ROUTEINFO_BY_TOPIC, never)
        with pytest.raises(
            SendTimeout, match=r"did not return the route of 'tea'.*nothing was sent, so it is not stored"
        ):
            await producer.send(Message("tea", b"x"), timeout=1)
        assert not cluster.broker.seen(SEND)


@on_loop
async def test_a_connection_that_is_lost_before_the_answer_leaves_it_open() -> None:
    async with fake_cluster(tea=1) as cluster, AsyncProducer(**cluster.options(send_retries=0)) as producer:

        def hang_up(peer: Peer, frame: Frame) -> None:
            peer.drop()

        cluster.broker.script(SEND, hang_up)
        with pytest.raises(NotConnected, match="before it had answered: it may have been stored"):
            await producer.send(Message("tea", b"x"))


def maybe(peer: Peer, frame: Frame) -> Frame:
    """The broker led when it took the message, and does not any more."""
    return reply(frame, ResponseCode.SERVICE_NOT_AVAILABLE, not_known("another broker leads now"))


@on_loop
async def test_what_may_have_been_stored_is_tried_again_as_often_as_the_producer_is_told_to() -> None:
    async with fake_cluster(tea=1) as cluster, AsyncProducer(**cluster.options(send_retries=2)) as producer:
        cluster.broker.script(SEND, *[maybe] * 9)
        with pytest.raises(MaybeStored, match="not known to be stored: another broker leads now"):
            await producer.send(Message("tea", b"x"), timeout=30)
        frames = cluster.broker.seen(SEND)
        ids = {properties.decode(SendMessageV2.decode(frame.ext).properties or "")["UNIQ_KEY"] for frame in frames}
        assert (len(frames), len(ids)) == (3, 1)


@on_loop
@pytest.mark.parametrize("code", [ResponseCode.SYSTEM_BUSY, ResponseCode.SYSTEM_ERROR, ResponseCode.MESSAGE_ILLEGAL])
async def test_an_error_of_the_last_try_says_nothing_of_one_that_may_have_been_stored(code: ResponseCode) -> None:
    async with fake_cluster(tea=1) as cluster, AsyncProducer(**cluster.options(send_retries=1)) as producer:
        cluster.broker.script(SEND, maybe, lambda peer, frame: reply(frame, code, "not now"))
        with pytest.raises(MaybeStored, match="not now"):
            await producer.send(Message("tea", b"x"), timeout=30)


@on_loop
async def test_a_refusal_does_not_hide_that_an_earlier_try_may_have_been_stored() -> None:
    async with fake_cluster(tea=1) as cluster, AsyncProducer(**cluster.options(send_retries=2)) as producer:

        def deposed(peer: Peer, frame: Frame) -> Frame:
            cluster.broker.broker_id = 1
            return maybe(peer, frame)

        cluster.broker.script(SEND, deposed)
        with pytest.raises(SendTimeout, match="it may have been stored"):
            await producer.send(Message("tea", b"x"), timeout=1)


def test_a_request_that_is_partly_kept_is_the_one_that_its_header_makes() -> None:
    config = ClientConfig()
    sending = Sending(config, "g", RoundRobin())
    for number in range(3):
        for queue in (MessageQueue("tea", "a", 0), MessageQueue("tea", "b", 1), MessageQueue("milk", "a", 0)):
            message = Message(queue.topic, b"x%d" % number, tags="t" * number, flag=number // 2)
            outgoing = single(message, f"id {number}", 1_000 + number, config, sys_flag=number)
            made = sending.request(outgoing, queue)
            header = outgoing.header("g", queue.queue_id, queue.broker, config)
            assert (made.code, made.ext, made.body) == (outgoing.code, header.encode(), outgoing.body)
    assert sending.request(outgoing, queue).opaque != made.opaque
