"""The blocking faces, against the fake cluster on a loop of its own thread."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator

import pytest

from kappamq.client.blocking import Admin, Consumer, Producer, PullConsumer
from kappamq.errors import ClientClosed, ConfigError, IllegalMessage
from kappamq.message import Message, MessageQueue, ReceivedMessage
from tests.client.fake import FakeCluster, fake_cluster
from tests.waiting import eventually

QUEUE = MessageQueue("tea", "broker-0", 0)


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    loop = asyncio.new_event_loop()
    ready, stop = threading.Event(), asyncio.Event()
    made: list[FakeCluster] = []

    async def serve() -> None:
        async with fake_cluster(brokers=1, tea=4) as running:
            made.append(running)
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    assert ready.wait(10)
    yield made[0]
    loop.call_soon_threadsafe(stop.set)
    thread.join(10)
    loop.close()


def test_sends_of_every_kind(cluster: FakeCluster) -> None:
    with Producer(**cluster.options(), group="shop") as producer:
        assert producer.send(Message("tea", b"sync")).ok
        future = producer.send_async(Message("tea", b"async"))
        assert future.result(5).ok
        producer.send_oneway(Message("tea", b"oneway"))
        assert [result.queue_offset for result in producer.send_batch([Message("tea", b"b1"), Message("tea", b"b2")])]
        eventually(lambda: sorted(cluster.broker.stored("tea")) == [b"async", b"b1", b"b2", b"oneway", b"sync"])
        assert len(producer.queues("tea")) == 4
        assert list(producer.in_batches([Message("tea", b"x")])) == [[Message("tea", b"x")]]
    with pytest.raises(ClientClosed):
        producer.send(Message("tea", b"late"))


def test_one_producer_serves_many_threads(cluster: FakeCluster) -> None:
    with Producer(**cluster.options()) as producer:

        def work(name: int) -> None:
            for n in range(25):
                producer.send(Message("tea", b"%d-%d" % (name, n)))

        threads = [threading.Thread(target=work, args=(name,)) for name in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
    stored = cluster.broker.stored("tea")
    assert len(stored) == len(set(stored)) == 200


def test_async_sends_report_their_errors_in_the_future(cluster: FakeCluster) -> None:
    with Producer(**cluster.options()) as producer:
        with pytest.raises(IllegalMessage):
            producer.send_async(Message("tea", b"")).result(5)
        futures = [producer.send_async(Message("tea", b"%d" % n)) for n in range(200)]
        assert all(future.result(10).ok for future in futures)


def test_async_sends_wait_when_enough_is_on_its_way(cluster: FakeCluster) -> None:
    with Producer(**cluster.options(inflight_max=2)) as producer:
        futures = [producer.send_async(Message("tea", b"%d" % n)) for n in range(50)]
        assert sum(not future.done() for future in futures) <= 3
        assert all(future.result(10).ok for future in futures)


def test_a_loop_over_a_consumer(cluster: FakeCluster) -> None:
    for queue in range(4):
        cluster.broker.put("tea", queue, *(b"%d-%d" % (queue, n) for n in range(10)))
    options = cluster.options(group="g", topics="tea", consume_from="first", idle_timeout=5)
    bodies = []
    with Consumer(**options) as consumer:
        assert len(consumer.assigned) == 4
        for message in consumer:
            bodies.append(message.body)
            if len(bodies) == 40:
                break
    assert len(set(bodies)) == 40
    assert [cluster.broker.offsets["g", "tea", queue] for queue in range(4)] == [10] * 4


def test_polling_from_several_threads_acknowledges_each_threads_own(cluster: FakeCluster) -> None:
    for queue in range(4):
        cluster.broker.put("tea", queue, *(b"%d-%d" % (queue, n) for n in range(50)))
    seen: Counter[bytes] = Counter()
    with Consumer(**cluster.options(group="g", topics="tea", consume_from="first")) as consumer:

        def read() -> None:
            while (message := consumer.poll(0.5)) is not None:
                seen[message.body] += 1

        threads = [threading.Thread(target=read) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
    assert len(seen) == 200
    assert set(seen.values()) == {1}
    assert [cluster.broker.offsets["g", "tea", queue] for queue in range(4)] == [50] * 4


def test_an_error_in_the_loop_leaves_the_message_unacknowledged(cluster: FakeCluster) -> None:
    cluster.broker.put("tea", 0, b"a", b"b")
    options = cluster.options(group="g", topics="tea", consume_from="first")
    with pytest.raises(RuntimeError, match="at b"), Consumer(**options) as consumer:
        for message in consumer:
            if message.body == b"b":
                raise RuntimeError("at b")
    assert cluster.broker.offsets["g", "tea", 0] == 1
    with Consumer(**options) as consumer:
        message = consumer.receive(5)
        assert message is not None
        assert message.body == b"b"
        consumer.ack(message)
        consumer.commit()
        assert consumer.positions[QUEUE] == 2


def test_closing_from_another_thread_ends_the_loop(cluster: FakeCluster) -> None:
    consumer = Consumer(**cluster.options(group="g", topics="tea"))
    consumer.start()
    ended = threading.Event()

    def read() -> None:
        for _ in consumer:
            pass
        ended.set()

    threading.Thread(target=read).start()
    consumer.close()
    assert ended.wait(5)


def test_a_listener_is_called(cluster: FakeCluster) -> None:
    seen: list[ReceivedMessage] = []
    options = cluster.options(group="g", topics="tea", consume_from="first")
    with Consumer(**options, listener=seen.append) as consumer:
        cluster_put = Producer(**cluster.options())
        for n in range(10):
            cluster_put.send(Message("tea", b"%d" % n))
        eventually(lambda: len(seen) == 10)
        with pytest.raises(ConfigError, match="has a listener"):
            consumer.poll()
        cluster_put.close()


def test_pulling_by_hand(cluster: FakeCluster) -> None:
    cluster.broker.put("tea", 0, *(b"%d" % n for n in range(100)))
    with PullConsumer(**cluster.options(group="g")) as consumer:
        assert QUEUE in consumer.queues("tea")
        assert [message.body for message in consumer.read(QUEUE, 90)] == [b"%d" % n for n in range(90, 100)]
        consumer.seek(QUEUE, 5)
        result = consumer.pull(QUEUE, count=2)
        assert (result.next_offset, consumer.position(QUEUE)) == (7, 7)
        consumer.commit(QUEUE)
        assert consumer.committed(QUEUE) == 7
        assert (consumer.min_offset(QUEUE), consumer.max_offset(QUEUE)) == (0, 100)


def test_an_admin_asks(cluster: FakeCluster) -> None:
    with Admin(**cluster.options()) as admin:
        assert admin.topics() == ["tea"]
        assert admin.masters() == {"broker-0": cluster.broker.address}
