"""Batch transactions from the client's side, with real brokers: all messages or none, each once, also when repeated."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from kappamq.broker.broker import Broker
from kappamq.client import AsyncProducer
from kappamq.errors import ClientError, IllegalOperation, NotConnected
from kappamq.message import Message
from tests.broker.operating import make_topic
from tests.broker.running import run, speaking
from tests.client.real import RealCluster, real_cluster
from tests.waiting import eventually_async


async def topic_on_all(cluster: RealCluster, name: str, queues: int = 2) -> None:
    for broker in cluster.brokers.values():
        async with speaking(broker) as client:
            await make_topic(client, name, queues)


async def bodies(cluster: RealCluster, topic: str, queues: int = 2) -> list[bytes]:
    found: list[bytes] = []
    for broker in cluster.brokers.values():
        async with speaking(broker) as client:
            for queue_id in range(queues):
                found += [record.body for record in await client.read(topic, queue_id)]
    return found


def staged(broker: Broker) -> int:
    return len(broker.delivery_tables.staged.table)


async def nothing_staged(cluster: RealCluster) -> None:
    await eventually_async(
        lambda: not any(staged(broker) for broker in cluster.brokers.values()), text="nothing is staged"
    )


def test_all_messages_are_published_once_on_two_brokers(tmp_path: Path) -> None:
    async def test() -> None:
        async with real_cluster(tmp_path, 2) as cluster, AsyncProducer(cluster.nameserver, group="copy") as producer:
            await topic_on_all(cluster, "t")
            wanted = [b"%d" % number for number in range(5000)]
            async with producer.batch_transaction("scope", 0) as batch:
                for body in wanted[:2500]:
                    await batch.send(Message("t", body))
                await eventually_async(lambda: any(map(staged, cluster.brokers.values())), text="something is staged")
                assert await bodies(cluster, "t") == [], "nothing is seen before it is decided"
                for body in wanted[2500:]:
                    await batch.send(Message("t", body))
            assert batch.outcome is not None
            assert (batch.outcome.rows, batch.outcome.published, batch.outcome.repeated) == (5000, True, False)
            assert Counter(await bodies(cluster, "t")) == Counter(wanted)
            await nothing_staged(cluster)
            for broker in cluster.brokers.values():
                scope = broker.delivery_tables.scopes.table["scope"]
                assert not scope.publishing

    run(test())


def test_a_repeated_batch_changes_nothing(tmp_path: Path) -> None:
    async def write(producer: AsyncProducer, number: int, *texts: bytes) -> bool:
        async with producer.batch_transaction("scope", number) as batch:
            for text in texts:
                await batch.send(Message("t", text))
        assert batch.outcome is not None
        return batch.outcome.repeated

    async def test() -> None:
        async with real_cluster(tmp_path) as cluster, AsyncProducer(cluster.nameserver) as producer:
            await topic_on_all(cluster, "t")
            assert not await write(producer, 0, b"a", b"b")
            assert await write(producer, 0, b"b", b"a"), "the order of rows is not part of it"
            assert not await write(producer, 1, b"c")
            assert await write(producer, 0, b"a", b"b")
            with pytest.raises(IllegalOperation, match="was decided with 1 rows"):
                await write(producer, 1, b"other")
            assert sorted(await bodies(cluster, "t")) == [b"a", b"b", b"c"]
            await nothing_staged(cluster)

    run(test())


def test_nothing_of_an_aborted_batch_is_published(tmp_path: Path) -> None:
    async def test() -> None:
        async with real_cluster(tmp_path) as cluster, AsyncProducer(cluster.nameserver) as producer:
            await topic_on_all(cluster, "t")
            with pytest.raises(ZeroDivisionError):
                async with producer.batch_transaction("scope", 0) as batch:
                    await batch.send(Message("t", b"x" * 200_000))
                    await batch.send(Message("t", b"y" * 200_000))
                    raise ZeroDivisionError
            assert batch.outcome is None
            with pytest.raises(ClientError, match="within"):
                await batch.send(Message("t", b"late"))
            async with producer.batch_transaction("scope", 0) as batch:
                await batch.send(Message("t", b"z"))
                batch.rollback()
            assert await bodies(cluster, "t") == []
            cluster.broker.delivery.batches.participant.settle("scope")
            await nothing_staged(cluster)

    run(test())


def test_a_scope_belongs_to_its_owner(tmp_path: Path) -> None:
    async def test() -> None:
        async with real_cluster(tmp_path, 2) as cluster, AsyncProducer(cluster.nameserver) as producer:
            await topic_on_all(cluster, "t")
            async with producer.batch_transaction("scope", 0, owner="query 1") as batch:
                await batch.send(Message("t", b"a"))
            with pytest.raises(IllegalOperation, match=r"belongs to query 1, not to query 2.*scope reset scope"):
                async with producer.batch_transaction("scope", 0, owner="query 2"):
                    pass

    run(test())


def test_a_master_that_cannot_be_reached_is_named(tmp_path: Path) -> None:
    async def test() -> None:
        async with real_cluster(tmp_path, 2) as cluster, AsyncProducer(cluster.nameserver) as producer:
            await topic_on_all(cluster, "t")
            await cluster.brokers["broker-1"].server.stop()
            with pytest.raises(NotConnected, match=r"broker-1 .*cannot be reached"):
                async with producer.batch_transaction("scope", 0):
                    pass

    run(test())


def test_keys_keep_their_queue_and_order_and_delays_hold(tmp_path: Path) -> None:
    async def test() -> None:
        async with (
            real_cluster(tmp_path, delay_levels=" ".join(["1s"] * 18)) as cluster,
            AsyncProducer(cluster.nameserver) as producer,
        ):
            await topic_on_all(cluster, "t")
            async with producer.batch_transaction("scope", 0) as batch:
                for number in range(20):
                    await batch.send(Message("t", b"%d" % number), key="k")
                await batch.send(Message("t", b"later", delay_level=3))
            await eventually_async(lambda: _count(cluster, "t", 21), text="the delayed message is there")
            async with speaking(cluster.broker) as client:
                queues = [[record.body for record in await client.read("t", queue_id)] for queue_id in range(2)]
            queues = [[body for body in queue if body != b"later"] for queue in queues]
            assert sorted(queues, key=len) == [[], [b"%d" % number for number in range(20)]]

    run(test())


def _count(cluster: RealCluster, topic: str, wanted: int) -> bool:
    kernel = cluster.broker.kernel
    return sum(kernel.queue_state(topic, queue_id).end for queue_id in range(2)) == wanted
