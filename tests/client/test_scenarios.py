"""The client with real servers: ours by default, Apache's with INTEROP_TARGETS=apache."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable

import pytest

from kappamq import errors
from kappamq.client import Admin, Consumer, Producer, PullConsumer
from kappamq.message import Message, PullStatus, ReceivedMessage
from tests.interop.targets import Target
from tests.waiting import eventually

pytestmark = pytest.mark.timeout(180)

Fresh = Callable[[str], str]


def everything(server: Target, topic: str, group: str = "reader") -> list[ReceivedMessage]:
    with PullConsumer(server.nameserver, group=group) as consumer:
        return [m for queue in consumer.queues(topic) for m in consumer.read(queue, consumer.min_offset(queue))]


@pytest.fixture
def topic(server: Target, fresh: Fresh) -> str:
    name = fresh("T")
    with Admin(server.nameserver) as admin:
        admin.create_topic(name, queues=4)
    return name


def test_what_is_sent_in_any_way_comes_back_as_it_was(server: Target, topic: str) -> None:
    sent = {}
    with Producer(server.nameserver, group="shop") as producer:
        message = Message(
            topic, "tea für 2".encode(), tags="new", keys=("k1", "k2"), properties={"cup": "3", "größe": "½"}, flag=7
        )
        result = producer.send(message)
        sent[result.message_id] = result
        for future in [producer.send_async(Message(topic, b"async %d" % n)) for n in range(20)]:
            sent[future.result(10).message_id] = future.result()
        for result in producer.send_batch([Message(topic, b"batch %d" % n, keys=f"b{n}", tags="b") for n in range(5)]):
            sent[result.message_id] = result
        producer.send_oneway(Message(topic, b"oneway"))
        eventually(lambda: len(everything(server, topic)) == 27)
    received = everything(server, topic)
    assert Counter(m.body for m in received) == Counter(
        [message.body, b"oneway", *(b"async %d" % n for n in range(20)), *(b"batch %d" % n for n in range(5))]
    )
    for one in received:
        if one.body == b"oneway":
            continue
        result = sent[one.message_id]
        assert (one.queue, one.queue_offset, one.offset_id) == (result.queue, result.queue_offset, result.offset_id)
    (first,) = [m for m in received if m.keys == ("k1", "k2")]
    assert (first.body, first.tags, first.flag, first.properties["größe"]) == (message.body, "new", 7, "½")
    assert first.born_ms <= first.stored_ms + 1000
    assert first.properties["cup"] == "3"
    batch = sorted((m for m in received if m.tags == "b"), key=lambda m: m.queue_offset)
    assert [m.body for m in batch] == [b"batch %d" % n for n in range(5)]
    assert len({m.queue for m in batch}) == 1
    assert [m.queue_offset - batch[0].queue_offset for m in batch] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("kind", ["zlib", "lz4", "zstd"])
def test_compressed_bodies_come_back_whole(server: Target, topic: str, kind: str) -> None:
    body = b"the same again and again " * 10_000
    with Producer(server.nameserver, compress_kind=kind) as producer:
        assert producer.send(Message(topic, body)).ok
    (message,) = everything(server, topic)
    assert message.body == body
    assert message.stored_bytes < len(body) / 10


def test_a_topic_comes_into_being_with_the_first_send(server: Target, fresh: Fresh) -> None:
    name = fresh("T")
    with Producer(server.nameserver) as producer:
        for n in range(8):
            assert producer.send(Message(name, b"%d" % n)).ok
        eventually(lambda: len({producer.send(Message(name, b"more")).queue.queue_id for _ in range(8)}) == 4)
    with Admin(server.nameserver) as admin:
        assert name in admin.topics()
        assert len(admin.route(name).publish) == 4


def test_a_listener_gets_everything_and_the_broker_knows_it(server: Target, topic: str, fresh: Fresh) -> None:
    group, seen, done = fresh("G"), Counter[bytes](), threading.Event()

    def listen(message: ReceivedMessage) -> None:
        seen[message.body] += 1
        if len(seen) == 1000:
            done.set()

    with Producer(server.nameserver) as producer:
        for future in [producer.send_async(Message(topic, b"%d" % n)) for n in range(500)]:
            future.result(10)
        with Consumer(server.nameserver, group=group, topics=topic, consume_from="first", listener=listen):
            for future in [producer.send_async(Message(topic, b"%d" % n)) for n in range(500, 1000)]:
                future.result(10)
            assert done.wait(30)
    assert set(seen.values()) == {1}
    with Admin(server.nameserver) as admin:
        progress = [offset for queue, offset in admin.consumer_progress(group).items() if queue.topic == topic]
        assert sum(offset.consumer_offset for offset in progress) == 1000
        assert all(offset.broker_offset == offset.consumer_offset for offset in progress)


def test_tags_select_at_the_broker(server: Target, topic: str, fresh: Fresh) -> None:
    with Producer(server.nameserver) as producer:
        for n in range(30):
            producer.send(Message(topic, b"%d" % n, tags=("new", "paid", "lost")[n % 3]))
        producer.send(Message(topic, b"untagged"))
    wanted = Consumer(
        server.nameserver, group=fresh("G"), topics={topic: "new || paid"}, consume_from="first", idle_timeout=2
    )
    with wanted as consumer:
        assert Counter(m.tags for m in consumer) == {"new": 10, "paid": 10}


def test_a_key_keeps_its_order(server: Target, topic: str) -> None:
    with Producer(server.nameserver) as producer:
        for n in range(60):
            producer.send(Message(topic, b"%d" % n, keys=f"customer-{n % 6}"), key=f"customer-{n % 6}")
    by_key: dict[str, list[int]] = {}
    queues: dict[str, set[object]] = {}
    for message in everything(server, topic):
        by_key.setdefault(message.keys[0], []).append(int(message.body))
        queues.setdefault(message.keys[0], set()).add(message.queue)
    assert by_key == {f"customer-{k}": list(range(k, 60, 6)) for k in range(6)}
    assert all(len(used) == 1 for used in queues.values())


def test_a_consumer_goes_on_where_the_last_one_of_its_group_stopped(server: Target, topic: str, fresh: Fresh) -> None:
    group = fresh("G")
    with Producer(server.nameserver) as producer:
        for n in range(40):
            producer.send(Message(topic, b"%d" % n))
    bodies = []
    for _ in range(4):
        with Consumer(server.nameserver, group=group, topics=topic, consume_from="first") as consumer:
            for _ in range(10):
                message = consumer.poll(10)
                assert message is not None
                bodies.append(int(message.body))
    assert sorted(bodies) == list(range(40))


def test_members_share_a_topic_and_take_over_from_one_that_leaves(server: Target, topic: str, fresh: Fresh) -> None:
    group, seen = fresh("G"), Counter[bytes]()

    def member() -> Consumer:
        return Consumer(
            server.nameserver,
            group=group,
            topics=topic,
            consume_from="first",
            listener=lambda message: seen.update([message.body]),
            rebalance_ms=60_000,  # so that only the broker's notices can be the reason
        )

    def shares(*members: Consumer) -> list[int]:
        return [sum(queue.topic == topic for queue in one.assigned) for one in members]

    with Producer(server.nameserver) as producer, member() as first:
        assert shares(first) == [4]
        second = member()
        second.start()
        eventually(lambda: shares(first, second) == [2, 2])
        for n in range(100):
            producer.send(Message(topic, b"%d" % n))
        eventually(lambda: len(seen) == 100)
        second.close()
        eventually(lambda: shares(first) == [4])
        for n in range(100, 200):
            producer.send(Message(topic, b"%d" % n))
        eventually(lambda: len(seen) == 200)
    with Admin(server.nameserver) as admin:
        progress = admin.consumer_progress(group, topic)
        assert sum(offset.consumer_offset for offset in progress.values()) == 200


def test_a_waiting_consumer_hears_of_a_message_at_once(server: Target, topic: str, fresh: Fresh) -> None:
    options = {"group": fresh("G"), "topics": topic, "consume_from": "last"}
    with Producer(server.nameserver) as producer, Consumer(server.nameserver, **options) as consumer:
        delays = []
        for n in range(10):
            began = time.monotonic()
            producer.send(Message(topic, b"%d" % n))
            message = consumer.poll(10)
            delays.append(time.monotonic() - began)
            assert message is not None
            assert message.body == b"%d" % n
        assert sorted(delays)[5] < 0.5, delays


@pytest.mark.slow
def test_a_message_whose_listener_failed_comes_again(server: Target, topic: str, fresh: Fresh) -> None:
    seen: list[tuple[bytes, int]] = []
    again = threading.Event()

    def listen(message: ReceivedMessage) -> None:
        assert message.topic == topic
        seen.append((message.body, message.reconsume_times))
        if message.body == b"bad" and message.reconsume_times == 0:
            raise ValueError("the first time it fails")
        if message.reconsume_times == 1:
            again.set()

    with Producer(server.nameserver) as producer:
        producer.send(Message(topic, b"bad"))
        producer.send(Message(topic, b"good"))
    with Consumer(server.nameserver, group=fresh("G"), topics=topic, consume_from="first", listener=listen):
        assert again.wait(60)
    assert sorted(seen) == [(b"bad", 0), (b"bad", 1), (b"good", 0)]


def test_pulling_by_hand(server: Target, topic: str, fresh: Fresh) -> None:
    with Producer(server.nameserver) as producer, PullConsumer(server.nameserver, group=fresh("G")) as consumer:
        queue = consumer.queues(topic)[2]
        assert (consumer.min_offset(queue), consumer.max_offset(queue)) == (0, 0)
        assert consumer.pull(queue, 0).status is PullStatus.NO_NEW
        for n in range(50):
            producer.send(Message(topic, b"%d" % n, tags="even" if n % 2 == 0 else "odd"), queue=queue)
        eventually(lambda: consumer.max_offset(queue) == 50)
        result = consumer.pull(queue, 10, count=5)
        assert [int(m.body) for m in result.messages] == [10, 11, 12, 13, 14]
        assert (result.next_offset, result.min_offset, result.max_offset) == (15, 0, 50)
        assert [int(m.body) for m in consumer.pull(queue).messages][:2] == [15, 16]
        odd = list(consumer.read(queue, 0, tags="odd"))
        assert [int(m.body) for m in odd] == list(range(1, 50, 2))
        beyond = consumer.pull(queue, 1000)
        assert (beyond.status, beyond.next_offset) == (PullStatus.OFFSET_ILLEGAL, 50)
        assert consumer.committed(queue) is None
        consumer.commit(queue, 20)
        assert consumer.committed(queue) == 20
        assert consumer.search(queue, 0) == 0
        assert consumer.search(queue, int(time.time() * 1000) + 1000) in (49, 50)
        moment = odd[10].stored_ms
        found = consumer.search(queue, moment)
        stored = {m.queue_offset: m.stored_ms for m in consumer.read(queue, 0)}
        assert stored[found] >= moment
        assert all(stored[offset] < moment for offset in range(found))


def test_an_admin_makes_changes_and_deletes_topics(server: Target, fresh: Fresh) -> None:
    name = fresh("T")
    with Admin(server.nameserver) as admin:
        admin.create_topic(name, queues=3)
        assert name in admin.topics()
        (config,) = admin.topic_config(name).values()
        assert (config.write_queues, config.read_queues, config.permission) == (3, 3, 6)
        admin.update_topic(name, queues=5)
        assert len(admin.route(name).publish) == 5
        admin.update_topic(name, permission=4)
        assert admin.route(name).publish == ()
        with Producer(server.nameserver) as producer, pytest.raises(errors.NoRoute, match="read-only"):
            producer.send(Message(name, b"x"))
        admin.update_topic(name, permission=6)
        admin.delete_topic(name)
        assert name not in admin.topics()
        with pytest.raises(errors.TopicNotFound):
            admin.topic_stats(name)
        with pytest.raises(errors.KappaError):
            admin.create_topic("TBW102")


def test_an_admin_sees_topics_groups_and_brokers(server: Target, topic: str, fresh: Fresh) -> None:
    group = fresh("G")
    with Admin(server.nameserver) as admin, Producer(server.nameserver, group="shop") as producer:
        for n in range(20):
            producer.send(Message(topic, b"%d" % n))
        stats = admin.topic_stats(topic)
        assert len(stats) == 4
        assert sum(offset.max_offset - offset.min_offset for offset in stats.values()) == 20
        (broker,) = admin.masters()
        info = admin.runtime_info(broker)
        assert int(info["msgPutTotalTodayNow"]) >= 20
        assert "bootTimestamp" in info
        assert admin.broker_config(broker)["brokerName"] == broker
        with Consumer(server.nameserver, group=group, topics={topic: "x || y"}, consume_from="last") as consumer:
            eventually(lambda: consumer.assigned)
            seen = admin.consumers(group)
            assert [connection.language for connection in seen.connections] == ["PYTHON"]
            assert seen.subscriptions[topic].expression == "x || y"
            assert group in admin.groups()
        eventually(lambda: group in admin.groups_of_topic(topic))
        with pytest.raises(errors.ConsumerOffline):
            admin.consumers(group)


def test_messages_are_found_by_key_id_and_time(server: Target, topic: str) -> None:
    with Admin(server.nameserver) as admin, Producer(server.nameserver) as producer:
        results = [producer.send(Message(topic, b"%d" % n, keys=(f"order-{n}", f"day-{n % 3}"))) for n in range(30)]
        eventually(lambda: len(admin.query_by_key(topic, "day-1")) == 10)
        assert [int(m.body) for m in admin.query_by_key(topic, "order-7")] == [7]
        assert admin.query_by_key(topic, "order-777") == []
        seven = admin.query_by_id(results[7].offset_id)
        assert (seven.body, seven.message_id) == (b"7", results[7].message_id)
        assert admin.query_by_id(results[8].message_id, topic).body == b"8"
        with pytest.raises(errors.QueryNotFound):
            admin.query_by_id(results[8].message_id[:-4] + "FFFF", topic)
        with pytest.raises(errors.QueryNotFound):
            admin.query_by_id(results[7].offset_id[:-4] + "FFFF")
        moment = admin.query_by_id(results[20].offset_id).stored_ms
        later = admin.query_by_time(topic, moment)
        assert {int(m.body) for m in later} >= set(range(20, 30))
        assert all(m.stored_ms >= moment for m in later)
        assert admin.query_by_time(topic, moment + 3_600_000) == []


def test_a_group_can_be_sent_back_in_time(server: Target, topic: str, fresh: Fresh) -> None:
    group = fresh("G")
    with Producer(server.nameserver) as producer, Admin(server.nameserver) as admin:
        for n in range(20):
            producer.send(Message(topic, b"%d" % n))
        options = {"group": group, "topics": topic, "consume_from": "first", "idle_timeout": 2}
        with Consumer(server.nameserver, **options) as consumer:
            assert len(list(consumer)) == 20
        admin.reset_offset(group, topic, 0)
        with Consumer(server.nameserver, **options) as consumer:
            assert len(list(consumer)) == 20


def test_errors_say_what_is_wrong(server: Target, topic: str) -> None:
    with Producer(server.nameserver, message_bytes_max=64 << 20, compress_over_bytes=1 << 30) as producer:
        with pytest.raises(errors.IllegalMessage):
            producer.send(Message(topic, bytes(5 << 20)))
        with pytest.raises(errors.FrameTooLarge, match="send less"):
            producer.send(Message(topic, bytes(17 << 20)))
        assert producer.send(Message(topic, b"and the connection is fine")).ok
    with PullConsumer(server.nameserver, group="g") as consumer, pytest.raises(errors.NoRoute, match="topic create"):
        consumer.queues("no_such_topic_at_all")


def test_everything_travels_encrypted_if_asked_to(server: Target, topic: str, fresh: Fresh) -> None:
    secret = {"tls": True, "tls_verify": False}
    with Producer(server.nameserver, **secret) as producer:
        producer.send(Message(topic, b"secret"))
    options = {"group": fresh("G"), "topics": topic, "consume_from": "first", **secret}
    with Consumer(server.nameserver, **options) as consumer:
        message = consumer.poll(10)
        assert message is not None
        assert message.body == b"secret"
    with Producer(server.nameserver, tls=True) as producer, pytest.raises(errors.NotConnected, match="certificate"):
        producer.send(Message(topic, b"to a stranger"))


@pytest.mark.slow
def test_clients_survive_a_kill_of_all_servers(own_server: Target, fresh: Fresh) -> None:
    name, seen = fresh("T"), Counter[bytes]()
    sent = []
    with Producer(own_server.nameserver, group="shop", send_timeout_ms=1000) as producer:
        with Admin(own_server.nameserver) as admin:
            admin.create_topic(name, queues=2)
        consumer = Consumer(
            own_server.nameserver,
            group=fresh("G"),
            topics=name,
            consume_from="first",
            listener=lambda message: seen.update([message.body]),
        )
        with consumer:
            sent += [producer.send(Message(name, b"before %d" % n)) for n in range(20)]
            eventually(lambda: len(seen) == 20)
            own_server.kill()
            with pytest.raises(errors.KappaError):
                producer.send(Message(name, b"nobody there"))
            own_server.start()

            def works_again() -> bool:
                try:
                    return producer.send(Message(name, b"after")).ok
                except errors.KappaError:
                    return False

            eventually(works_again, timeout=60)
            eventually(lambda: seen[b"after"] >= 1, timeout=60)
            assert all(seen[b"before %d" % n] >= 1 for n in range(20))


@pytest.mark.slow
def test_what_a_killed_broker_forgot_of_a_group_is_told_again(own_server: Target, fresh: Fresh) -> None:
    name, group, seen = fresh("T"), fresh("G"), Counter[bytes]()
    with Admin(own_server.nameserver) as admin, Producer(own_server.nameserver, group="shop") as producer:

        def lag() -> int | None:
            try:
                progress = admin.consumer_progress(group, name)
            except errors.KappaError:
                return None  # the broker is not there yet
            return sum(queue.broker_offset - queue.consumer_offset for queue in progress.values())

        admin.create_topic(name, queues=2)
        consumer = Consumer(
            own_server.nameserver,
            group=group,
            topics=name,
            consume_from="first",
            commit_ms=500,
            listener=lambda message: seen.update([message.body]),
        )
        with consumer:
            for number in range(20):
                producer.send(Message(name, b"%d" % number))
            eventually(lambda: len(seen) == 20, timeout=60)
            consumer.commit()
            own_server.kill()  # before it has written down what it confirmed a moment ago
            own_server.start()
            eventually(lambda: lag() == 0, timeout=60, text="no phantom lag")
            # An operator's reset is not taken for something forgotten.
            seen.clear()
            admin.reset_offset(group, name, 0)
            eventually(lambda: len(seen) == 20, timeout=60)
            eventually(lambda: lag() == 0, timeout=60)
            own_server.kill()
            own_server.start()
        assert lag() == 0, "closing stores what the broker has forgotten"
