"""Topics grow and shrink, and nobody loses a message; with real brokers."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kappamq.client.admin.admin import AsyncAdmin
from kappamq.client.consumer.consumer import AsyncConsumer
from kappamq.client.producer.producer import AsyncProducer
from kappamq.errors import InvalidParameter, RequestTimeout
from kappamq.message import Message, MessageQueue
from tests.client.loop import on_loop
from tests.client.real import RealCluster, real_cluster
from tests.waiting import eventually_async


def consumer(cluster: RealCluster, group: str, **options: object) -> AsyncConsumer:
    return AsyncConsumer(**cluster.options(group=group, topics="tea", **options))


async def read(cluster: RealCluster, group: str, count: int) -> list[bytes]:
    """So many messages, and then none."""
    bodies: list[bytes] = []
    async with consumer(cluster, group) as reader:
        while len(bodies) < count:
            message = await reader.poll(30)
            assert message is not None, f"{len(bodies)} of {count} came"
            bodies.append(message.body)
        assert await reader.poll(0.3) is None
    return bodies


@on_loop
async def test_a_group_that_is_away_misses_nothing_of_a_topic_that_grows(tmp_path: Path) -> None:
    async with (
        real_cluster(tmp_path, brokers=2) as cluster,
        AsyncAdmin(**cluster.options()) as admin,  # the producer shares its routes
        AsyncProducer(**cluster.options()) as producer,
    ):
        await admin.create_topic("tea", queues=2)
        async with consumer(cluster, "away") as reader:  # begins at the end, and is known from now on
            await producer.send(Message("tea", b"first"))
            message = await reader.receive(5)
            assert message is not None
            reader.ack(message)
        await admin.resize_topic("tea", 6)
        queues = await producer.queues("tea")
        assert len(queues) == 12
        sent = [b"%d" % n for n in range(60)]
        for number, body in enumerate(sent):
            await producer.send(Message("tea", body), queue=queues[number % 12])
        assert sorted(await read(cluster, "away", 60)) == sorted(sent)


@on_loop
async def test_who_listens_while_a_topic_grows_gets_everything(tmp_path: Path) -> None:
    async with (
        real_cluster(tmp_path) as cluster,
        AsyncAdmin(**cluster.options(instance="admin", route_poll_ms=50)) as admin,
        AsyncProducer(**cluster.options(route_poll_ms=50)) as producer,
    ):
        await admin.create_topic("tea", queues=1)
        got: list[bytes] = []
        sent: list[bytes] = []

        async def listen(message) -> None:
            got.append(message.body)

        async with consumer(cluster, "g", listener=listen, route_poll_ms=50):
            for queues in (2, 5, 3, 1):
                await admin.resize_topic("tea", queues, timeout=10)
                for _ in range(30):
                    sent.append(b"%d" % len(sent))
                    await producer.send(Message("tea", sent[-1]))
            await eventually_async(lambda: len(got) >= len(sent))
        assert sorted(got) == sorted(sent)


@on_loop
async def test_a_topic_shrinks_only_when_everything_was_read(tmp_path: Path) -> None:
    async with (
        real_cluster(tmp_path, brokers=2) as cluster,
        AsyncAdmin(**cluster.options(instance="admin", route_poll_ms=50)) as admin,
        AsyncProducer(**cluster.options()) as producer,
    ):
        await admin.create_topic("tea", queues=4)
        async with consumer(cluster, "slow", consume_from="first"):
            pass  # it exists, and has read nothing
        for number in range(16):
            await producer.send(Message("tea", b"old %d" % number))
        await eventually_async(lambda: _offset(cluster, "slow") is not None)
        with pytest.raises(
            RequestTimeout, match=r"1 queues now, but group slow has a lag of 12 messages in the others"
        ):
            await admin.resize_topic("tea", 1, timeout=5)
        configs = (await admin.topic_config("tea")).values()
        assert {(config.write_queues, config.read_queues) for config in configs} == {(1, 4)}
        # Nobody writes to the others any more, and what is in them can still be read.
        await producer.running().routes.refresh("tea", at_once=True)
        results = [await producer.send(Message("tea", b"new %d" % number)) for number in range(6)]
        assert {result.queue.queue_id for result in results} == {0}
        await read(cluster, "slow", 22)
        await admin.resize_topic("tea", 1, timeout=10)
        route = await admin.route("tea")
        assert route.publish == route.subscribe == tuple(MessageQueue("tea", f"broker-{n}", 0) for n in range(2))


def _offset(cluster: RealCluster, group: str) -> int | None:
    return cluster.broker.offsets.get(group, "tea", 0)


@on_loop
async def test_a_producer_that_has_not_heard_of_it_finds_a_queue_that_is_left(tmp_path: Path) -> None:
    async with (
        real_cluster(tmp_path) as cluster,
        AsyncAdmin(**cluster.options(instance="admin", route_poll_ms=50)) as admin,
        AsyncProducer(**cluster.options()) as producer,
    ):
        await admin.create_topic("tea", queues=8)
        assert len(await producer.queues("tea")) == 8
        await admin.resize_topic("tea", 1)
        assert len(await producer.queues("tea")) == 8
        results = [await producer.send(Message("tea", b"x")) for _ in range(8)]
        results += [await producer.send(Message("tea", b"x"), key=f"k{n}") for n in range(8)]
        assert {result.queue.queue_id for result in results} == {0}
        with pytest.raises(InvalidParameter, match="queueId"):  # somebody wants exactly that one
            await producer.send(Message("tea", b"x"), queue=MessageQueue("tea", "broker-0", 7))


@on_loop
async def test_a_topic_keeps_a_queue(tmp_path: Path) -> None:
    async with (
        real_cluster(tmp_path) as cluster,
        AsyncAdmin(**cluster.options(instance="admin", route_poll_ms=50)) as admin,
    ):
        with pytest.raises(InvalidParameter, match="at least 1 queue"):
            await admin.resize_topic("tea", 0)


@on_loop
async def test_what_a_producer_with_an_old_route_writes_in_the_last_moment_is_read(tmp_path: Path) -> None:
    async with (
        real_cluster(tmp_path) as cluster,
        AsyncAdmin(**cluster.options(instance="admin", route_poll_ms=60_000)) as admin,
        AsyncProducer(**cluster.options()) as producer,
    ):
        await admin.create_topic("tea", queues=4)
        async with consumer(cluster, "g", consume_from="first"):
            pass
        until_read, late = admin._until_read, [b"late"]

        async def just_before(topic: str, queues: int, timeout: float) -> None:
            await until_read(topic, queues, timeout)
            if late:
                await producer.send(Message("tea", late.pop()), queue=MessageQueue("tea", "broker-0", 3))

        admin._until_read = just_before  # type: ignore[method-assign]
        with pytest.raises(RequestTimeout, match="group g has a lag of 1 messages"):
            await admin.resize_topic("tea", 1, timeout=5, notice=0)
        assert await read(cluster, "g", 1) == [b"late"]
        await admin.resize_topic("tea", 1, notice=0)
        assert len((await admin.route("tea")).subscribe) == 1


@on_loop
async def test_producers_get_time_to_hear_of_it(tmp_path: Path) -> None:
    async with (
        real_cluster(tmp_path) as cluster,
        AsyncAdmin(**cluster.options(instance="admin")) as admin,
        AsyncProducer(**cluster.options(route_poll_ms=20)) as producer,
    ):
        await admin.create_topic("tea", queues=4)
        assert len(await producer.queues("tea")) == 4
        shrinking = asyncio.create_task(admin.resize_topic("tea", 1, notice=60))

        async def heard() -> bool:
            return len(await producer.queues("tea")) == 1

        await eventually_async(heard)
        assert len((await admin.route("tea")).subscribe) == 4
        shrinking.cancel()
