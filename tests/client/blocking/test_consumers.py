"""The blocking consumers, against the fake cluster on a loop of its own thread."""

from __future__ import annotations

import threading
from collections import Counter

import pytest

from kappamq.client.blocking.clients import Producer
from kappamq.client.blocking.consumers import Consumer, LitePullConsumer, PullConsumer
from kappamq.errors import ConfigError
from kappamq.message import Message, MessageQueue, ReceivedMessage, Redeliver
from tests.client.fake import FakeCluster
from tests.client.fake_thread import cluster
from tests.waiting import eventually

__all__ = ["cluster"]

QUEUE = MessageQueue("tea", "broker-0", 0)


def test_a_loop_over_a_consumer(cluster: FakeCluster) -> None:
    for queue in range(4):
        cluster.broker.put("tea", queue, *(b"%d-%d" % (queue, n) for n in range(10)))
    options = cluster.options(group="g", topics="tea", consume_from="first", idle_timeout=30)
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
    assert ended.wait(30)


def test_a_listener_is_called(cluster: FakeCluster) -> None:
    seen: list[ReceivedMessage] = []
    options = cluster.options(group="g", topics="tea", consume_from="first")
    with Consumer(**options, listener=seen.append) as consumer:
        cluster_put = Producer(**cluster.options())
        for n in range(10):
            cluster_put.send(Message("tea", b"%d" % n))
        eventually(lambda: len(seen) == 10)
        with pytest.raises(ConfigError, match="passes its messages to a listener"):
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


def test_polling_lists(cluster: FakeCluster) -> None:
    for queue in range(4):
        cluster.broker.put("tea", queue, *(b"%d-%d" % (queue, n) for n in range(10)))
    options = cluster.options(group="g", topics="tea", consume_from="first", idle_timeout=5)
    with LitePullConsumer(**options) as consumer:
        first = consumer.poll(30, 7)
        assert 1 <= len(first) <= 7
        rest = [message.body for message in consumer]
        assert len({message.body for message in first} | set(rest)) == 40
        consumer.seek(QUEUE, 9)
        assert [message.body for message in consumer.poll(30)] == [b"0-9"]
        consumer.commit()
        assert consumer.committed(QUEUE) == 10
    with LitePullConsumer(**cluster.options(group="other")) as consumer:
        consumer.assign([QUEUE])
        consumer.seek_to_begin(QUEUE)
        assert consumer.poll(30, 1)[0].body == b"0-0"
        consumer.pause()
        assert consumer.poll(0.05) == []
        consumer.resume()
        assert consumer.poll(30, 1)[0].body == b"0-1"


def test_pausing_and_giving_back(cluster: FakeCluster) -> None:
    with Consumer(**cluster.options(group="g", topics="tea", consume_from="first")) as consumer:
        consumer.pause([QUEUE])
        cluster.broker.put("tea", 0, b"a")
        assert consumer.receive(0.05) is None
        consumer.resume([QUEUE])
        message = consumer.receive(5)
        assert message is not None
        consumer.retry(message, Redeliver(level=4))
        eventually(lambda: consumer.positions[QUEUE] == 1)
        assert [header.delay_level for header in cluster.broker.sent_back] == [4]
        consumer.subscribe("tea", "hot")
