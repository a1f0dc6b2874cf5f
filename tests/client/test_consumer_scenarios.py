"""Every kind of consumer with real servers: ours by default, Apache's with INTEROP_TARGETS=apache."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kappamq.client import Admin, Consumer, LitePullConsumer, Producer, PullConsumer
from kappamq.message import Message, ReceivedMessage, Redeliver
from tests.interop.targets import Target
from tests.waiting import eventually

pytestmark = pytest.mark.timeout(180)

Fresh = Callable[[str], str]


@pytest.fixture
def topic(server: Target, fresh: Fresh) -> str:
    name = fresh("T")
    with Admin(server.nameserver) as admin:
        admin.create_topic(name, queues=2)
    return name


def fill(server: Target, topic: str, count: int) -> None:
    with Producer(server.nameserver) as producer:
        for queue in producer.queues(topic):
            for n in range(count):
                producer.send(Message(topic, b"%d" % n), queue=queue)


def stored(server: Target, topic: str) -> list[bytes]:
    with PullConsumer(server.nameserver, group="reader") as consumer:
        return [m.body for queue in consumer.queues(topic) for m in consumer.read(queue, consumer.min_offset(queue))]


def test_what_fails_comes_again_or_is_buried(server: Target, topic: str, fresh: Fresh) -> None:
    group, seen = fresh("G"), Counter[tuple[bytes, int, str]]()

    def listen(message: ReceivedMessage) -> Redeliver | None:
        seen[message.body, message.reconsume_times, message.topic] += 1
        if message.reconsume_times == 0 and message.body in (b"1", b"2"):
            return Redeliver(level=1 if message.body == b"1" else -1)
        return None

    with Producer(server.nameserver) as producer:
        for n in range(4):
            producer.send(Message(topic, b"%d" % n))
    with Consumer(server.nameserver, group=group, topics=topic, consume_from="first", listener=listen):
        eventually(lambda: seen[b"1", 1, topic] == 1, timeout=60)
    assert set(seen) == {(b"0", 0, topic), (b"1", 0, topic), (b"1", 1, topic), (b"2", 0, topic), (b"3", 0, topic)}
    assert eventually(lambda: stored(server, f"%DLQ%{group}"), timeout=30) == [b"2"]


def test_order_stays_through_failures_and_a_change_of_owner(server: Target, topic: str, fresh: Fresh) -> None:
    group, done, failed = fresh("G"), {0: [], 1: []}, set[tuple[int, bytes]]()
    lock, half = threading.Lock(), threading.Event()

    def listen(message: ReceivedMessage) -> None:
        where = (message.queue.queue_id, message.body)
        with lock:
            if message.body in (b"3", b"17") and where not in failed:
                failed.add(where)
                raise ValueError("not yet")
            done[message.queue.queue_id].append(int(message.body))
            if sum(map(len, done.values())) >= 20:
                half.set()

    def member() -> Consumer:
        options: dict[str, Any] = {"group": group, "topics": topic, "consume_from": "first", "suspend_ms": 50}
        return Consumer(server.nameserver, listener=listen, ordered=True, rebalance_ms=500, **options)

    with member() as first:
        fill(server, topic, 15)
        assert half.wait(60)
        with member() as second:
            mine = eventually(lambda: [q for q in second.assigned if q.topic == topic], timeout=60)
            assert len(mine) == 1
            fill_more = [(0, n) for n in range(15, 30)] + [(1, n) for n in range(15, 30)]
            with Producer(server.nameserver) as producer:
                queues = producer.queues(topic)
                for queue, n in fill_more:
                    producer.send(Message(topic, b"%d" % n), queue=queues[queue])
            eventually(lambda: all(len(set(bodies)) == 30 for bodies in done.values()), timeout=60)
            assert first.assigned
    assert done == {0: list(range(30)), 1: list(range(30))}


def test_everybody_gets_a_broadcast(server: Target, topic: str, fresh: Fresh, tmp_path: Path) -> None:
    group, seen = fresh("G"), {name: Counter[bytes]() for name in ("ann", "bob")}

    def member(name: str) -> Consumer:
        options: dict[str, Any] = {"broadcasting": True, "instance": name, "offsets_dir": tmp_path}
        listener = lambda message: seen[name].update([message.body])  # noqa: E731
        return Consumer(
            server.nameserver, group=group, topics=topic, consume_from="first", listener=listener, **options
        )

    fill(server, topic, 5)
    with member("ann"), member("bob"):
        eventually(lambda: all(sum(counted.values()) == 10 for counted in seen.values()), timeout=30)
    with member("ann"):
        fill(server, topic, 1)
        eventually(lambda: sum(seen["ann"].values()) == 12, timeout=30)
    assert sum(seen["bob"].values()) == 10


def test_polling_seeking_and_assigning(server: Target, topic: str, fresh: Fresh) -> None:
    group = fresh("G")
    fill(server, topic, 50)

    def take(reader: LitePullConsumer, count: int) -> list[ReceivedMessage]:
        messages: list[ReceivedMessage] = []
        while len(messages) < count:
            found = reader.poll(10, count - len(messages))
            assert found, f"only {len(messages)} of {count}"
            messages += found
        return messages

    with LitePullConsumer(server.nameserver, group=group, topics=topic, consume_from="first") as reader:
        assert len(take(reader, 100)) == 100
    with Admin(server.nameserver) as admin:
        progress = admin.consumer_progress(group, topic)
        assert [offset.consumer_offset for offset in progress.values()] == [50, 50]
    with LitePullConsumer(server.nameserver, group=group, auto_commit=False) as reader:
        queue = reader.queues(topic)[1]
        reader.assign([queue])
        assert reader.poll(0.5) == []
        reader.seek(queue, 40)
        assert [int(m.body) for m in take(reader, 10)] == list(range(40, 50))
        assert reader.committed(queue) == 50
        reader.commit({queue: 45})
        assert reader.committed(queue) == 45


def test_a_reset_reaches_consumers_that_run(server: Target, topic: str, fresh: Fresh) -> None:
    group, seen = fresh("G"), Counter[bytes]()
    fill(server, topic, 5)
    options: dict[str, Any] = {"group": group, "topics": topic, "consume_from": "first", "pull_hold_ms": 1000}
    with (
        Admin(server.nameserver) as admin,
        Consumer(server.nameserver, listener=lambda message: seen.update([message.body]), **options) as reader,
    ):
        eventually(lambda: sum(seen.values()) == 10, timeout=30)
        reader.commit()
        admin.reset_offset(group, topic, 0)
        eventually(lambda: sum(seen.values()) >= 20, timeout=60)
    assert set(seen.values()) == {4}
