"""A consumer as a member of its group: what it delivers, what it acknowledges, how it comes and goes."""

from __future__ import annotations

import asyncio
import threading

import pytest

from kappamq.client.consumer.consumer import AsyncConsumer
from kappamq.errors import ClientClosed, ConfigError, InvalidParameter, NotConnected
from kappamq.message import RETRY, MessageQueue, ReceivedMessage, Redeliver
from kappamq.protocol.bodies.admin import ConsumerRunningInfo
from kappamq.protocol.bodies.clients import ConsumeFromWhere, ResetOffset
from kappamq.protocol.codes import RequestCode, ResponseCode
from kappamq.protocol.frame import request
from kappamq.protocol.headers.client import GetRunningInfo, ResetClientOffset, SendBack
from tests.client.fake import FakeCluster, fake_cluster
from tests.client.loop import on_loop
from tests.waiting import eventually_async


def consumer(cluster: FakeCluster, group: str = "g", topics: object = "tea", **options: object) -> AsyncConsumer:
    return AsyncConsumer(**cluster.options(group=group, topics=topics, consume_from="first", **options))


async def take(reader: AsyncConsumer, count: int) -> list[bytes]:
    bodies = []
    for _ in range(count):
        message = await reader.poll(5)
        assert message is not None, f"only {bodies} came"
        bodies.append(message.body)
    return bodies


@on_loop
async def test_iteration_delivers_acknowledges_and_ends_when_idle() -> None:
    async with fake_cluster(tea=2) as cluster:
        cluster.broker.put("tea", 0, b"a", b"b")
        cluster.broker.put("tea", 1, b"c")
        async with consumer(cluster, idle_timeout=5) as reader:
            assert sorted([message.body async for message in reader]) == [b"a", b"b", b"c"]
        assert (cluster.broker.offsets["g", "tea", 0], cluster.broker.offsets["g", "tea", 1]) == (2, 1)


@on_loop
async def test_the_message_in_hand_counts_as_done_only_without_an_error() -> None:
    async with fake_cluster(tea=1) as cluster:
        cluster.broker.put("tea", 0, b"a", b"b", b"c")
        async with consumer(cluster) as reader:
            async for _ in reader:
                break
        assert cluster.broker.offsets["g", "tea", 0] == 1
        with pytest.raises(RuntimeError, match="in the middle of b"):
            async with consumer(cluster) as reader:
                async for message in reader:
                    raise RuntimeError(f"in the middle of {message.text}")
        assert cluster.broker.offsets["g", "tea", 0] == 1


@on_loop
async def test_receive_and_ack_leave_the_order_to_the_caller() -> None:
    async with fake_cluster(tea=1) as cluster:
        cluster.broker.put("tea", 0, b"a", b"b", b"c")
        async with consumer(cluster) as reader:
            messages = [await reader.receive(5) for _ in range(3)]
            assert await reader.receive(0.01) is None
            reader.ack(messages[1])
            reader.ack(messages[1])
            await reader.commit()
            assert reader.positions[MessageQueue("tea", "broker-0", 0)] == 0
            reader.ack(messages[0])
            assert reader.positions[MessageQueue("tea", "broker-0", 0)] == 2
        assert cluster.broker.offsets["g", "tea", 0] == 2


@on_loop
async def test_only_wanted_tags_come_and_the_others_are_passed_by() -> None:
    async with fake_cluster(tea=1) as cluster:
        cluster.broker.put("tea", 0, b"1", tag="hot")
        cluster.broker.put("tea", 0, b"2", b"3", tag="cold")
        cluster.broker.put("tea", 0, b"4", tag="BB")  # the same hash as Aa
        cluster.broker.put("tea", 0, b"5", tag="Aa")
        cluster.broker.put("tea", 0, b"6", tag="cold")
        async with consumer(cluster, topics={"tea": "hot || Aa"}) as reader:
            assert await take(reader, 2) == [b"1", b"5"]
            assert await reader.poll(0.05) is None
            await eventually_async(lambda: cluster.broker.offsets.get(("g", "tea", 0)) == 6)


@on_loop
async def test_a_message_that_comes_later_wakes_the_waiting_pull() -> None:
    async with fake_cluster(tea=1) as cluster, consumer(cluster, pull_hold_ms=20_000) as reader:
        await eventually_async(lambda: len(cluster.broker.seen(RequestCode.PULL_MESSAGE)) == 1)
        waiting = asyncio.ensure_future(reader.poll(5))
        cluster.broker.put("tea", 0, b"new")
        message = await waiting
        assert message is not None
        assert message.body == b"new"


@pytest.mark.parametrize("kind", ["thread", "task"])
@on_loop
async def test_a_listener_gets_everything_and_its_return_acknowledges(kind: str) -> None:
    seen: list[bytes] = []
    threads: set[str] = set()

    def listen(message: ReceivedMessage) -> None:
        threads.add(threading.current_thread().name)
        seen.append(message.body)

    async def listen_async(message: ReceivedMessage) -> None:
        listen(message)

    async with fake_cluster(tea=2) as cluster:
        for queue in (0, 1):
            cluster.broker.put("tea", queue, *(b"%d" % n for n in range(100)))
        async with consumer(cluster, listener=listen if kind == "thread" else listen_async, consume_threads=3):
            await eventually_async(lambda: len(seen) == 200)
        assert (cluster.broker.offsets["g", "tea", 0], cluster.broker.offsets["g", "tea", 1]) == (100, 100)
    assert ("MainThread" in threads) == (kind == "task")


@on_loop
async def test_a_failed_message_is_given_back_to_the_broker() -> None:
    def listen(message: ReceivedMessage) -> None:
        if message.body == b"bad":
            raise ValueError("cannot drink that")

    async with fake_cluster(tea=1) as cluster:
        cluster.broker.put("tea", 0, b"good", b"bad", b"good")
        async with consumer(cluster, listener=listen):
            await eventually_async(lambda: cluster.broker.offsets.get(("g", "tea", 0)) == 3)
        (frame,) = cluster.broker.seen(RequestCode.CONSUMER_SEND_MSG_BACK)
        header = SendBack.decode(frame.ext)
        assert (header.group, header.log_offset, header.origin_topic, header.delay_level) == ("g", 1000, "tea", 0)


@on_loop
async def test_a_failed_message_that_no_broker_takes_comes_again_here() -> None:
    seen: list[tuple[bytes, int]] = []

    async def listen(message: ReceivedMessage) -> None:
        seen.append((message.body, message.reconsume_times))
        if message.body == b"stubborn" and len(seen) < 4:
            raise ValueError("not yet")

    async with fake_cluster(tea=1) as cluster:
        cluster.broker.put("tea", 0, b"stubborn", b"next")
        cluster.broker.script(RequestCode.CONSUMER_SEND_MSG_BACK, *[ResponseCode.SYSTEM_ERROR] * 2)
        async with consumer(cluster, listener=listen, consume_threads=1, again_ms=50):
            await eventually_async(lambda: len(seen) == 4)
        assert seen == [(b"stubborn", 0), (b"next", 0), (b"stubborn", 0), (b"stubborn", 0)]
        assert cluster.broker.offsets["g", "tea", 0] == 2


@on_loop
async def test_tries_while_no_broker_answers_do_not_bury_a_message_early() -> None:
    tried: list[int] = []

    async def fail(message: ReceivedMessage) -> Redeliver:
        tried.append(message.reconsume_times)
        return RETRY

    async with fake_cluster(tea=1) as cluster:
        cluster.create("%RETRY%g", 1)
        got, gone = asyncio.Event(), asyncio.Event()

        async def first(message: ReceivedMessage) -> Redeliver:
            got.set()
            await gone.wait()
            return await fail(message)

        cluster.broker.put("tea", 0, b"cup")
        async with consumer(cluster, listener=first, reconsume_max=3, again_ms=10):
            await got.wait()
            await cluster.broker.stop()
            gone.set()
            await eventually_async(lambda: len(tried) > 6, timeout=90)
            await cluster.broker.start()
            await eventually_async(lambda: cluster.broker.queues["%DLQ%g", 0])
        assert set(tried) == {0, 1, 2, 3}
        assert [tried.count(times) >= 1 for times in range(4)] == [True] * 4
        assert tried == sorted(tried)


@on_loop
async def test_a_message_delivered_again_shows_its_first_topic() -> None:
    async with fake_cluster(tea=1) as cluster:
        cluster.create("%RETRY%g", 1)
        cluster.broker.put("%RETRY%g", 0, b"again", RETRY_TOPIC="tea")
        async with consumer(cluster) as reader:
            message = await reader.poll(5)
            assert message is not None
            assert (message.topic, message.queue.topic) == ("tea", "%RETRY%g")
        assert cluster.broker.offsets["g", "%RETRY%g", 0] == 1


@on_loop
async def test_closing_lets_the_listener_finish_and_delivers_nothing_more() -> None:
    started, release, finished = threading.Event(), threading.Event(), []

    def listen(message: ReceivedMessage) -> None:
        started.set()
        release.wait(10)
        finished.append(message.body)

    async with fake_cluster(tea=1) as cluster:
        cluster.broker.put("tea", 0, b"a", b"b", b"c")
        reader = consumer(cluster, listener=listen, consume_threads=1)
        await reader.start()
        await asyncio.to_thread(started.wait, 5)
        closing = asyncio.ensure_future(reader.close())
        await eventually_async(lambda: reader.inbox.closed)
        assert not closing.done()
        release.set()
        await closing
        assert finished == [b"a"]
        assert cluster.broker.offsets["g", "tea", 0] == 1
        assert cluster.broker.groups["g"] == {}


@on_loop
async def test_closing_does_not_wait_for_ever_for_a_listener() -> None:
    release = threading.Event()
    async with fake_cluster(tea=1) as cluster:
        cluster.broker.put("tea", 0, b"a")
        reader = consumer(cluster, listener=lambda message: release.wait(20), consume_threads=1)
        await reader.start()
        await eventually_async(lambda: len(reader.inbox) == 0 and any(reader.positions))
        await reader.close(drain=0.05)
        assert cluster.broker.offsets.get(("g", "tea", 0), 0) == 0  # not done, so it will come again
        release.set()


@on_loop
async def test_the_next_consumer_goes_on_where_the_last_one_stopped() -> None:
    async with fake_cluster(tea=1) as cluster:
        cluster.broker.put("tea", 0, *(b"%d" % n for n in range(10)))
        async with consumer(cluster) as reader:
            assert await take(reader, 4) == [b"0", b"1", b"2", b"3"]
        async with consumer(cluster) as reader:
            assert await take(reader, 6) == [b"4", b"5", b"6", b"7", b"8", b"9"]


@on_loop
async def test_a_resubscription_reaches_the_broker_and_the_queues() -> None:
    async with fake_cluster(tea=1, cake=1) as cluster, consumer(cluster) as reader:
        cluster.broker.put("cake", 0, b"carrot")
        await reader.subscribe({"cake": "*"})
        assert await take(reader, 1) == [b"carrot"]
        await reader.unsubscribe("tea")
        await eventually_async(lambda: {queue.topic for queue in reader.assigned} == {"cake"})
        ((_, data),) = cluster.broker.groups["g"].values()
        assert {subscription.topic for subscription in data.subscriptions} == {"cake", "%RETRY%g"}


@on_loop
async def test_a_topic_that_does_not_exist_yet_is_waited_for() -> None:
    async with fake_cluster() as cluster, consumer(cluster, route_poll_ms=50) as reader:
        assert reader.assigned == []
        cluster.broker.put("tea", 0, b"at last")
        cluster.create("tea", 1)
        assert await take(reader, 1) == [b"at last"]


@on_loop
async def test_without_a_name_server_starting_fails_and_says_why() -> None:
    async with fake_cluster(tea=1) as cluster:
        await cluster.nameservers[0].stop()
        reader = consumer(cluster)
        with pytest.raises(NotConnected, match="no name server answers"):
            await reader.start()
        with pytest.raises(ClientClosed):
            await reader.poll(0.1)


@on_loop
async def test_the_heartbeat_says_what_the_group_wants() -> None:
    async with fake_cluster(tea=1) as cluster, consumer(cluster, topics={"tea": "a || b"}):
        ((_, data),) = cluster.broker.groups["g"].values()
        assert data.from_where is ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
        wanted = {subscription.topic: subscription for subscription in data.subscriptions}
        assert set(wanted) == {"tea", "%RETRY%g"}
        assert (wanted["tea"].expression, wanted["tea"].tags, wanted["tea"].codes) == ("a || b", {"a", "b"}, {97, 98})


@on_loop
async def test_a_broker_may_ask_how_it_goes_and_reset_the_offsets() -> None:
    async with fake_cluster(tea=1) as cluster, consumer(cluster) as reader:
        cluster.broker.put("tea", 0, b"a", b"b", b"c")
        assert await take(reader, 3) == [b"a", b"b", b"c"]
        ((peer, _),) = cluster.broker.groups["g"].values()
        peer.send(request(GetRunningInfo(consumer_group="g", client_id="x")))
        await eventually_async(lambda: peer.answers)
        info = ConsumerRunningInfo.decode(peer.answers[0].body)
        queue = MessageQueue("tea", "broker-0", 0)
        assert info.queues[queue].commit_offset == 2
        body = ResetOffset(offsets={queue: 1}).encode()
        peer.send(request(ResetClientOffset(topic="tea", group="g", timestamp=0, force=True), body, oneway=True))
        await eventually_async(lambda: reader.positions[queue] == 1)
        assert await take(reader, 2) == [b"b", b"c"]


@on_loop
async def test_a_broker_that_restarts_is_introduced_to_us_again() -> None:
    async with fake_cluster(tea=1) as cluster, consumer(cluster) as reader:
        cluster.broker.put("tea", 0, b"before")
        assert await take(reader, 1) == [b"before"]
        await cluster.broker.stop()
        cluster.broker.groups.clear()
        await cluster.broker.start()
        cluster.broker.put("tea", 0, b"after")
        assert await take(reader, 1) == [b"after"]
        assert len(cluster.broker.groups["g"]) == 1


@on_loop
async def test_asking_and_listening_exclude_each_other() -> None:
    async with fake_cluster(tea=1) as cluster, consumer(cluster, listener=print) as reader:
        with pytest.raises(ConfigError, match="passes its messages to a listener"):
            await reader.poll(0)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"group": "a b", "topics": "tea"}, InvalidParameter, "group"),
        ({"group": "g", "topics": {}}, ConfigError, "needs a topic"),
        ({"group": "g", "topics": {"tea": 5}}, ConfigError, "filter of 'tea'"),
        ({"group": "g", "topics": "../tea"}, InvalidParameter, "topic"),
        ({"group": "g", "topics": "tea", "consume_from": "middle"}, ConfigError, "consume_from"),
        ({"group": "g", "topics": "tea", "balance": "fair"}, ConfigError, "fair"),
        ({"group": "g", "topics": "tea", "pull_hold_ms": 99_999}, ConfigError, "pull_timeout_ms"),
    ],
)
def test_wrong_options_are_named(options: dict, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        AsyncConsumer("127.0.0.1:9876", **options)
