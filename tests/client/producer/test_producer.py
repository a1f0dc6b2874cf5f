"""How a producer behaves when brokers and name servers do not."""

from __future__ import annotations

import asyncio
import zlib

import pytest

from kappamq.client.producer.producer import AsyncProducer
from kappamq.errors import (
    ClientClosed,
    ConfigError,
    IllegalMessage,
    InvalidParameter,
    NoRoute,
    NotConnected,
    SendTimeout,
)
from kappamq.message import Message, MessageQueue, SendStatus
from kappamq.protocol.codes import RequestCode, ResponseCode
from kappamq.protocol.frame import reply
from kappamq.protocol.headers.client import SendMessageResponse, SendMessageV2
from kappamq.protocol.records import properties
from tests.client.fake import FakeCluster, fake_cluster, hang_up, never
from tests.client.loop import on_loop
from tests.waiting import eventually_async

SEND = RequestCode.SEND_MESSAGE_V2


def tries(cluster: FakeCluster) -> int:
    return sum(len(broker.seen(SEND)) for broker in cluster.brokers)


def sent_header(cluster: FakeCluster) -> SendMessageV2:
    (frame,) = [frame for broker in cluster.brokers for frame in broker.seen(SEND)]
    return SendMessageV2.decode(frame.ext)


@on_loop
async def test_a_send_says_where_the_message_is() -> None:
    async with fake_cluster(tea=1) as cluster, AsyncProducer(**cluster.options(), group="shop") as producer:
        first = await producer.send(Message("tea", b"one", tags="hot", keys=("a", "b"), properties={"cup": "3"}))
        second = await producer.send(Message("tea", b"two"))
        assert (first.status, first.queue, first.queue_offset) == (SendStatus.OK, MessageQueue("tea", "broker-0", 0), 0)
        assert (second.queue_offset, second.offset_id) == (1, "broker-0-1")
        assert first.message_id != second.message_id
        record = cluster.broker.queues["tea", 0][0]
        assert record.property_map() == {
            "UNIQ_KEY": first.message_id,
            "WAIT": "true",
            "TAGS": "hot",
            "KEYS": "a b",
            "cup": "3",
        }
        assert cluster.broker.producers == {"shop"}
    assert cluster.broker.producers == set()


@on_loop
async def test_round_robin_uses_every_queue() -> None:
    async with fake_cluster(brokers=2, tea=2) as cluster, AsyncProducer(**cluster.options()) as producer:
        results = [await producer.send(Message("tea", b"x")) for _ in range(4)]
        assert len({result.queue for result in results}) == 4


@on_loop
async def test_a_key_keeps_its_queue_whether_given_or_in_the_message() -> None:
    async with fake_cluster(brokers=2, tea=4) as cluster, AsyncProducer(**cluster.options()) as producer:
        chosen = {(await producer.send(Message("tea", b"x"), key="order-7")).queue for _ in range(3)}
        chosen |= {(await producer.send(Message("tea", b"x", sharding_key="order-7"))).queue for _ in range(3)}
        assert len(chosen) == 1


@on_loop
async def test_a_lost_connection_is_tried_on_another_broker_with_the_same_id() -> None:
    async with fake_cluster(brokers=2, tea=1) as cluster, AsyncProducer(**cluster.options()) as producer:
        for broker in cluster.brokers:
            broker.script(SEND, hang_up)
        result = await producer.send(Message("tea", b"x"))
        assert result.ok
        frames = [frame for broker in cluster.brokers for frame in broker.seen(SEND)]
        ids = {properties.decode(SendMessageV2.decode(frame.ext).properties or "")["UNIQ_KEY"] for frame in frames}
        assert ids == {result.message_id}
        assert len(frames) == 3


@pytest.mark.parametrize(
    "code",
    [
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.NO_PERMISSION,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
        ResponseCode.GO_AWAY,
    ],
    ids=lambda code: code.name,
)
@on_loop
async def test_answers_that_another_broker_may_give_differently_are_tried_there(code: ResponseCode) -> None:
    async with fake_cluster(brokers=2, tea=1) as cluster, AsyncProducer(**cluster.options()) as producer:
        for broker in cluster.brokers:
            broker.script(SEND, code)
        assert (await producer.send(Message("tea", b"x"))).ok
        # Both refused once; the third try went to the first again.
        assert [len(broker.seen(SEND)) for broker in cluster.brokers] in ([2, 1], [1, 2])


@pytest.mark.parametrize(
    "code", [ResponseCode.MESSAGE_ILLEGAL, ResponseCode.INVALID_PARAMETER], ids=lambda code: code.name
)
@on_loop
async def test_answers_that_stay_the_same_are_not_tried_again(code: ResponseCode) -> None:
    async with fake_cluster(brokers=2, tea=1) as cluster, AsyncProducer(**cluster.options()) as producer:
        for broker in cluster.brokers:
            broker.script(SEND, code)
        with pytest.raises((IllegalMessage, InvalidParameter), match="scripted"):
            await producer.send(Message("tea", b"x"))
        assert tries(cluster) == 1


@on_loop
async def test_after_the_last_try_the_error_tells_of_the_earlier_ones() -> None:
    async with fake_cluster(tea=1) as cluster, AsyncProducer(**cluster.options()) as producer:
        cluster.broker.script(SEND, hang_up, ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE)
        with pytest.raises(Exception, match="scripted 14") as raised:
            await producer.send(Message("tea", b"x"))
        notes = raised.value.__notes__
        assert "attempt 1" in notes[0]
        assert "closed" in notes[0]
        assert "scripted 2" in notes[1]


@on_loop
async def test_the_number_of_retries_is_an_option() -> None:
    async with fake_cluster(tea=1) as cluster, AsyncProducer(**cluster.options(send_retries=0)) as producer:
        cluster.broker.script(SEND, ResponseCode.SYSTEM_BUSY)
        with pytest.raises(Exception, match="scripted 2"):
            await producer.send(Message("tea", b"x"))
        assert tries(cluster) == 1


@pytest.mark.parametrize("where", [{"key": "k"}, {"queue": MessageQueue("tea", "broker-0", 0)}])
@on_loop
async def test_a_chosen_queue_is_not_exchanged_for_another(where: dict) -> None:
    async with fake_cluster(brokers=2, tea=1) as cluster, AsyncProducer(**cluster.options()) as producer:
        for broker in cluster.brokers:
            broker.script(SEND, ResponseCode.SYSTEM_BUSY)
        with pytest.raises(Exception, match="scripted 2"):
            await producer.send(Message("tea", b"x"), **where)
        assert tries(cluster) == 1


@on_loop
async def test_no_answer_is_a_timeout_that_says_the_message_may_be_stored() -> None:
    async with fake_cluster(brokers=2, tea=1) as cluster, AsyncProducer(**cluster.options()) as producer:
        for broker in cluster.brokers:
            broker.script(SEND, never)
        started = asyncio.get_running_loop().time()
        with pytest.raises(SendTimeout, match=r"within 1 s.*may have been stored"):
            await producer.send(Message("tea", b"x"), timeout=1)
        assert 0.9 < asyncio.get_running_loop().time() - started < 10
        assert tries(cluster) == 1  # it may be stored there: sending it elsewhere would double it


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (ResponseCode.FLUSH_DISK_TIMEOUT, SendStatus.FLUSH_TIMEOUT),
        (ResponseCode.FLUSH_SLAVE_TIMEOUT, SendStatus.SLAVE_TIMEOUT),
        (ResponseCode.SLAVE_NOT_AVAILABLE, SendStatus.SLAVE_NOT_AVAILABLE),
    ],
)
@on_loop
async def test_stored_but_not_as_promised_is_a_result_and_not_an_error(code: ResponseCode, status: SendStatus) -> None:
    header = SendMessageResponse(message_id="id", queue_id=0, queue_offset=7)
    async with fake_cluster(tea=1) as cluster, AsyncProducer(**cluster.options()) as producer:
        cluster.broker.script(SEND, lambda peer, frame: reply(frame, code, header=header))
        result = await producer.send(Message("tea", b"x"))
        assert (result.status, result.queue_offset, result.ok) == (status, 7, False)
        assert tries(cluster) == 1


@on_loop
async def test_stored_but_not_as_promised_may_be_sent_again_if_so_wished() -> None:
    header = SendMessageResponse(message_id="id", queue_id=0, queue_offset=7)
    code = ResponseCode.FLUSH_DISK_TIMEOUT
    async with fake_cluster(tea=1) as cluster, AsyncProducer(**cluster.options(retry_not_stored_ok=True)) as producer:
        cluster.broker.script(SEND, lambda peer, frame: reply(frame, code, header=header))
        assert (await producer.send(Message("tea", b"x"))).ok
        cluster.broker.script(SEND, *[lambda peer, frame: reply(frame, code, header=header)] * 3)
        # Better than an error: it is stored, and the caller is told how well.
        assert (await producer.send(Message("tea", b"x"))).status is SendStatus.FLUSH_TIMEOUT


@on_loop
async def test_a_broker_that_cannot_be_reached_is_left_alone_for_a_while() -> None:
    async with fake_cluster(brokers=2, tea=4) as cluster, AsyncProducer(**cluster.options()) as producer:
        await cluster.brokers[0].stop()
        results = [await producer.send(Message("tea", b"x")) for _ in range(20)]
        assert {result.queue.broker for result in results} == {"broker-1"}


@on_loop
async def test_a_broker_that_moved_is_found_again() -> None:
    async with fake_cluster(tea=1) as cluster, AsyncProducer(**cluster.options()) as producer:
        await producer.send(Message("tea", b"before"))
        await cluster.broker.stop()
        cluster.broker.port = 0
        await cluster.broker.start()
        assert (await producer.send(Message("tea", b"after"))).ok
        assert cluster.broker.stored("tea") == [b"before", b"after"]


@on_loop
async def test_the_next_name_server_answers_when_one_is_gone() -> None:
    async with fake_cluster(nameservers=2, tea=1, cake=1) as cluster, AsyncProducer(**cluster.options()) as producer:
        await producer.send(Message("tea", b"x"))
        await next(server for server in cluster.nameservers if server.requests).stop()
        assert (await producer.send(Message("cake", b"x"))).ok


@on_loop
async def test_no_name_server_at_all_says_what_to_do() -> None:
    async with fake_cluster(nameservers=2, tea=1) as cluster:
        for server in cluster.nameservers:
            await server.stop()
        async with AsyncProducer(**cluster.options()) as producer:
            with pytest.raises(NotConnected, match=r"no name server answers.*kappamq up"):
                await producer.send(Message("tea", b"x"))


@on_loop
async def test_a_topic_that_nobody_has_says_how_to_create_it() -> None:
    async with fake_cluster() as cluster, AsyncProducer(**cluster.options()) as producer:
        with pytest.raises(NoRoute, match=r"no route for topic 'coffee'.*kappamq topic create coffee"):
            await producer.send(Message("coffee", b"x"))


@on_loop
async def test_a_new_topic_borrows_the_default_topics_brokers_until_it_is_there() -> None:
    async with fake_cluster(TBW102=8) as cluster, AsyncProducer(**cluster.options(default_topic_queues=3)) as producer:
        results = [await producer.send(Message("new", b"x")) for _ in range(6)]
        assert {result.queue.queue_id for result in results} == {0, 1, 2}
        header = SendMessageV2.decode(cluster.broker.seen(SEND)[0].ext)
        assert (header.default_topic, header.default_topic_queues) == ("TBW102", 3)


@on_loop
async def test_a_batch_is_one_request_with_a_result_for_each() -> None:
    async with fake_cluster(tea=1) as cluster, AsyncProducer(**cluster.options()) as producer:
        results = await producer.send_batch([Message("tea", b"%d" % n, keys=f"k{n}") for n in range(3)])
        assert [result.queue_offset for result in results] == [0, 1, 2]
        assert [result.offset_id for result in results] == ["broker-0-0", "broker-0-1", "broker-0-2"]
        records = cluster.broker.queues["tea", 0]
        assert [record.property_map()["UNIQ_KEY"] for record in records] == [result.message_id for result in results]
        assert len(cluster.broker.seen(RequestCode.SEND_BATCH_MESSAGE)) == 1


@on_loop
async def test_a_long_list_is_cut_into_batches_that_fit() -> None:
    async with fake_cluster(tea=1) as cluster:
        async with AsyncProducer(**cluster.options(message_bytes_max=10_000)) as producer:
            messages = [Message("tea", bytes([n]) * 1000) for n in range(1, 31)]
            with pytest.raises(IllegalMessage, match=r"batch of 30 messages has .* the limit is 10000"):
                await producer.send_batch(messages)
            parts = list(producer.in_batches(messages))
            assert len(parts) > 1
            for part in parts:
                await producer.send_batch(part)
        assert cluster.broker.stored("tea") == [message.body for message in messages]


@on_loop
async def test_oneway_is_sent_once_and_not_answered() -> None:
    async with fake_cluster(tea=1) as cluster, AsyncProducer(**cluster.options()) as producer:
        await producer.send_oneway(Message("tea", b"x"))
        await eventually_async(lambda: cluster.broker.stored("tea") == [b"x"])
        assert cluster.broker.seen(SEND)[0].is_oneway


@on_loop
async def test_large_bodies_travel_compressed_and_incompressible_ones_do_not() -> None:
    async with fake_cluster(tea=1) as cluster, AsyncProducer(**cluster.options()) as producer:
        body = b"tea " * 2000
        await producer.send(Message("tea", body))
        header = sent_header(cluster)
        assert header.sys_flag == 0x301
        assert zlib.decompress(cluster.broker.stored("tea")[0]) == body


@pytest.mark.parametrize("where", [{}, {"key": "k"}])
@on_loop
async def test_very_large_bodies_are_compressed_too(where: dict) -> None:
    async with fake_cluster(tea=1) as cluster, AsyncProducer(**cluster.options()) as producer:
        body = b"tea " * 200_000
        await producer.send(Message("tea", body), **where)
        assert sent_header(cluster).sys_flag == 0x301
        assert zlib.decompress(cluster.broker.stored("tea")[0]) == body
        with pytest.raises(IllegalMessage, match="the limit"):
            await producer.send(Message("tea", bytes(5 << 20)), **where)


@on_loop
async def test_many_sends_at_once_wait_for_their_turn() -> None:
    async with fake_cluster(tea=2) as cluster, AsyncProducer(**cluster.options(inflight_max=4)) as producer:
        results = await asyncio.gather(*(producer.send(Message("tea", b"%d" % n)) for n in range(100)))
        assert len({(result.queue, result.queue_offset) for result in results}) == 100


@on_loop
async def test_what_cannot_be_sent_is_refused_before_anybody_is_asked() -> None:
    async with fake_cluster(tea=1) as cluster, AsyncProducer(**cluster.options(message_bytes_max=100)) as producer:
        with pytest.raises(IllegalMessage, match="has no messages"):
            await producer.send_batch([])
        with pytest.raises(IllegalMessage, match="101 bytes, the limit is 100"):
            await producer.send(Message("tea", bytes(101)))
        with pytest.raises(IllegalMessage, match="the given queue is cake@b/0"):
            await producer.send(Message("tea", b"x"), queue=MessageQueue("cake", "b", 0))
        assert tries(cluster) == 0


@on_loop
async def test_a_closed_producer_says_so() -> None:
    async with fake_cluster(tea=1) as cluster:
        producer = AsyncProducer(**cluster.options())
        await producer.send(Message("tea", b"x"))
        await producer.close()
        await producer.close()
        with pytest.raises(ClientClosed):
            await producer.send(Message("tea", b"x"))


def test_options_are_checked_at_the_door() -> None:
    with pytest.raises(ConfigError, match="did you mean 'send_timeout_ms'"):
        AsyncProducer("127.0.0.1:9876", send_timeout=5)
    with pytest.raises(InvalidParameter, match="group"):
        AsyncProducer("127.0.0.1:9876", group="leading or trailing blanks")
    with pytest.raises(ConfigError, match="host:port"):
        AsyncProducer("no where")


@on_loop
async def test_start_and_close_are_awaited_as_those_of_consumers() -> None:
    async with fake_cluster(tea=1) as cluster:
        producer = AsyncProducer(**cluster.options(), group="shop")
        await producer.start()
        assert (await producer.send(Message("tea", b"x"))).ok
        await producer.close()
        with pytest.raises(ClientClosed):
            await producer.start()
