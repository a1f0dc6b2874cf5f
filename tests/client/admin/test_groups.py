"""Moving groups, with real servers: ours by default, Apache's with INTEROP_TARGETS=apache. What an admin asks of whom is in
test_admin.py."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kappamq.client import Admin, Consumer, Producer, PullConsumer
from kappamq.errors import InvalidParameter, KappaError
from kappamq.message import Message, MessageQueue
from tests.interop.targets import Target
from tests.waiting import eventually

pytestmark = pytest.mark.timeout(180)

Fresh = Callable[[str], str]


@pytest.fixture
def topic(server: Target, fresh: Fresh) -> str:
    """Ten messages in each of two queues."""
    name = fresh("T")
    with Admin(server.nameserver) as admin, Producer(server.nameserver) as producer:
        admin.create_topic(name, queues=2)
        for queue in producer.queues(name):
            for number in range(10):
                producer.send(Message(name, b"%d" % number), queue=queue)
    return name


def commit(server: Target, group: str, topic: str, *offsets: int) -> None:
    with PullConsumer(server.nameserver, group=group) as consumer:
        for queue, offset in zip(consumer.queues(topic), offsets, strict=True):
            consumer.commit(queue, offset)


def committed(server: Target, group: str, topic: str) -> list[int | None]:
    with PullConsumer(server.nameserver, group=group) as consumer:
        return [consumer.committed(queue) for queue in consumer.queues(topic)]


def test_a_group_is_put_where_another_one_is(server: Target, topic: str, fresh: Fresh) -> None:
    source, target = fresh("source"), fresh("target")
    with Admin(server.nameserver) as admin:
        for group in (source, target):
            admin.create_group(group)
        commit(server, source, topic, 3, 7)
        commit(server, target, topic, 9, 9)
        moved = admin.clone_offsets(source, target, topic)
        assert sorted(moved.values()) == [3, 7]
        assert {queue.topic for queue in moved} == {topic}
        assert committed(server, target, topic) == [3, 7]
        another = fresh("another")
        admin.clone_offsets(source, another)
        assert committed(server, another, topic) == [3, 7]
        with pytest.raises(InvalidParameter, match="nothing to clone"):
            admin.clone_offsets(fresh("nobody"), target, topic)
        with pytest.raises(InvalidParameter, match="itself"):
            admin.clone_offsets(source, source)


def test_a_consumer_that_runs_goes_where_its_group_is_put(server: Target, topic: str, fresh: Fresh) -> None:
    if server.kind == "apache":
        pytest.skip("Apache's broker clones for groups that do not run")
    source, target = fresh("source"), fresh("target")
    with Admin(server.nameserver) as admin:
        admin.create_group(source)
        commit(server, source, topic, 8, 10)
        seen: list[MessageQueue] = []
        with Consumer(
            server.nameserver, group=target, topics=topic, consume_from="first", listener=lambda m: seen.append(m.queue)
        ):
            eventually(lambda: len(seen) == 20)
            moved = admin.clone_offsets(source, target, topic)
            assert sorted(moved.values()) == [8, 10]
            eventually(lambda: len(seen) == 22, timeout=60)


def test_a_group_goes_back_in_time_while_it_consumes(server: Target, topic: str, fresh: Fresh) -> None:
    group = fresh("G")
    seen: list[bytes] = []
    with (
        Admin(server.nameserver) as admin,
        Consumer(
            server.nameserver, group=group, topics=topic, consume_from="first", listener=lambda m: seen.append(m.body)
        ),
    ):
        eventually(lambda: len(seen) == 20)
        assert set(admin.reset_offset(group, topic, 0).values()) == {0}
        eventually(lambda: len(seen) == 40, timeout=60)
        with pytest.raises(KappaError, match="nobody"):
            admin.reset_offset("nobody", topic, 0)
