"""What all members of a group can do: change what they want, pause, keep to limits."""

from __future__ import annotations

import pytest

from kappamq.client.consumer.consumer import AsyncConsumer
from kappamq.errors import ClientClosed
from kappamq.message import MessageQueue, sql
from kappamq.protocol.bodies.clients import ConsumeFromWhere, MessageModel
from kappamq.protocol.codes import RequestCode
from tests.client.fake import FakeCluster, fake_cluster
from tests.client.loop import on_loop
from tests.waiting import eventually_async

QUEUES = [MessageQueue("tea", "broker-0", n) for n in range(2)]


def consumer(cluster: FakeCluster, **options: object) -> AsyncConsumer:
    defaults = {"group": "g", "topics": "tea", "consume_from": "first"}
    return AsyncConsumer(**cluster.options(**{**defaults, **options}))


async def bodies(reader: AsyncConsumer, count: int) -> list[bytes]:
    messages = [await reader.poll(5) for _ in range(count)]
    return sorted(message.body for message in messages if message is not None)


@on_loop
async def test_a_paused_consumer_gets_nothing_and_loses_nothing() -> None:
    async with fake_cluster(tea=2) as cluster, consumer(cluster) as reader:
        cluster.broker.put("tea", 0, b"a")
        await eventually_async(lambda: len(reader.inbox) == 1)
        reader.pause()
        cluster.broker.put("tea", 0, b"b")
        cluster.broker.put("tea", 1, b"c")
        assert await reader.poll(0.05) is None
        reader.resume()
        assert await bodies(reader, 3) == [b"a", b"b", b"c"]


@on_loop
async def test_one_queue_can_be_paused_while_the_other_goes_on() -> None:
    async with fake_cluster(tea=2) as cluster, consumer(cluster) as reader:
        reader.pause([QUEUES[0]])
        for number in (0, 1):
            cluster.broker.put("tea", number, b"%d" % number)
        assert await bodies(reader, 1) == [b"1"]
        assert await reader.poll(0.05) is None
        reader.resume([QUEUES[0]])
        assert await bodies(reader, 1) == [b"0"]


@on_loop
async def test_a_queue_that_comes_later_is_paused_too() -> None:
    async with fake_cluster(tea=1) as cluster, consumer(cluster, route_poll_ms=30) as reader:
        reader.pause()
        cluster.broker.put("tea", 1, b"new")
        cluster.create("tea", 2)
        await eventually_async(lambda: len(reader.assigned) == 2)
        assert await reader.poll(0.05) is None
        reader.resume()
        assert await bodies(reader, 1) == [b"new"]


@on_loop
async def test_pausing_before_the_start_is_refused() -> None:
    async with fake_cluster(tea=1) as cluster:
        with pytest.raises(ClientClosed, match="has not been started"):
            consumer(cluster).pause()


@on_loop
async def test_limits_of_a_topic_are_shared_out_among_its_queues() -> None:
    async with fake_cluster(tea=2) as cluster:
        for number in (0, 1):
            cluster.broker.put("tea", number, *(b"%d" % n for n in range(50)))
        async with consumer(cluster, topic_messages_max=10, topic_bytes_max=1 << 20, pull_batch=1) as reader:
            await eventually_async(lambda: len(reader.inbox) == 10)
            assert reader._assignment is not None
            assert {queue.count for queue in reader._assignment.queues} == {5}
            assert {queue.limits.bytes_max for queue in reader._assignment.queues} == {1 << 19}


@on_loop
async def test_a_new_subscription_is_told_with_a_new_version_and_the_others_keep_theirs() -> None:
    async with fake_cluster(tea=1, cake=1) as cluster, consumer(cluster, topics={"tea": "a"}) as reader:
        ((_, before),) = cluster.broker.groups["g"].values()
        versions = {told.topic: told.version for told in before.subscriptions}
        await reader.subscribe("cake", sql("slices > 2"))
        ((_, after),) = cluster.broker.groups["g"].values()
        told = {told.topic: told for told in after.subscriptions}
        assert {name: told[name].version for name in ("tea", "%RETRY%g")} == versions
        assert told["cake"].version > versions["tea"]
        cake = told["cake"]
        assert (cake.expression, cake.expression_type, cake.codes) == ("slices > 2", "SQL92", set())
        await eventually_async(lambda: any(queue.topic == "cake" for queue in reader.assigned))
        pulls = [frame.ext for frame in cluster.broker.seen(RequestCode.PULL_MESSAGE)]
        await eventually_async(
            lambda: "SQL92" in {f.ext.get("expressionType") for f in cluster.broker.seen(RequestCode.PULL_MESSAGE)}
        )
        assert {ext.get("expressionType") for ext in pulls} >= {"TAG"}


@on_loop
async def test_a_broadcasting_member_says_so_and_has_no_retry_topic(tmp_path: object) -> None:
    async with (
        fake_cluster(tea=2) as cluster,
        consumer(cluster, broadcasting=True, offsets_dir=tmp_path, consume_from=1_700_000_000_000) as reader,
    ):
        ((_, told),) = cluster.broker.groups["g"].values()
        assert told.message_model is MessageModel.BROADCASTING
        assert told.from_where is ConsumeFromWhere.CONSUME_FROM_TIMESTAMP
        assert [subscription.topic for subscription in told.subscriptions] == ["tea"]
        assert reader.assigned == []  # the fake cannot search by time: it is tried again
