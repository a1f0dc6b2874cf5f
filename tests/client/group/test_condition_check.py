"""An SQL filter is checked by the brokers before a consumer begins with it."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from kappamq.client.consumer.consumer import AsyncConsumer
from kappamq.client.consumer.pull_consumer import AsyncPullConsumer
from kappamq.client.core.core import acquire, release
from kappamq.client.core.settings import client_config
from kappamq.client.group.condition_check import check_conditions
from kappamq.client.producer.producer import AsyncProducer
from kappamq.client.pulling.pulling import Interest
from kappamq.errors import BrokerError, SubscriptionInvalid
from kappamq.message import Message, sql
from kappamq.protocol.codes import RequestCode
from tests.client.fake import fake_cluster
from tests.client.loop import on_loop
from tests.client.real import RealCluster, real_cluster


async def send(cluster: RealCluster, count: int) -> None:
    async with AsyncProducer(**cluster.options(group="p")) as producer:
        for number in range(count):
            await producer.send(Message("tea", b"%d" % number, properties={"cups": str(number)}))


@on_loop
async def test_only_what_is_wanted_comes(tmp_path: Path) -> None:
    async with real_cluster(tmp_path) as cluster:
        await send(cluster, 20)
        options = cluster.options(
            group="g", topics={"tea": sql("cups BETWEEN 5 AND 8")}, consume_from="first", idle_timeout=3
        )
        async with AsyncConsumer(**options) as consumer:
            assert sorted([int(message.body) async for message in consumer]) == [5, 6, 7, 8]
            await consumer.subscribe("tea", sql("cups = 40 OR cups > 41"))
            await send(cluster, 45)
            assert sorted([int(message.body) async for message in consumer]) == [40, 42, 43, 44]


@on_loop
async def test_a_bad_expression_is_refused_at_subscribe(tmp_path: Path) -> None:
    async with real_cluster(tmp_path) as cluster:
        await send(cluster, 3)
        wrong = AsyncConsumer(**cluster.options(group="g", topics={"tea": sql("cups > 'many'")}))
        with pytest.raises(SubscriptionInvalid, match=r"wrong at column 8: a text is neither larger nor smaller"):
            await wrong.start()
        assert not cluster.broker.clients.consumers["g"].members, "it has left again"
        async with AsyncConsumer(**cluster.options(group="g", topics="tea", consume_from="first")) as consumer:
            with pytest.raises(SubscriptionInvalid, match="LIKE follows"):
                await consumer.subscribe({"tea": sql("kind LIKE 'gr%'")})
            # What was wanted before is still wanted.
            assert {(await consumer.poll(5) or pytest.fail("nothing came")).body for _ in range(3)} == {
                b"0",
                b"1",
                b"2",
            }


@on_loop
async def test_a_pull_is_told_as_well(tmp_path: Path) -> None:
    async with real_cluster(tmp_path) as cluster, AsyncPullConsumer(**cluster.options(group="g")) as consumer:
        await send(cluster, 12)
        found = [
            int(message.body)
            for queue in await consumer.queues("tea")
            async for message in consumer.read(queue, 0, tags=sql("cups >= 10"))
        ]
        assert sorted(found) == [10, 11]
        with pytest.raises(SubscriptionInvalid, match="column 5"):
            await consumer.pull((await consumer.queues("tea"))[0], 0, tags=sql("n = NULL"))


@on_loop
async def test_a_broker_that_does_not_filter(tmp_path: Path) -> None:
    async with real_cluster(tmp_path, sql_filters=False) as cluster:
        await send(cluster, 1)
        consumer = AsyncConsumer(**cluster.options(group="g", topics={"tea": sql("cups > 1")}))
        with pytest.raises(BrokerError, match="enablePropertyFilter is off"):
            await consumer.start()


@on_loop
async def test_who_cannot_answer_is_no_obstacle(caplog: pytest.LogCaptureFixture) -> None:
    async with fake_cluster(tea=2) as cluster:
        core = acquire(client_config(cluster.address, None, {"pull_hold_ms": 500}))
        try:
            wanted = [Interest("tea", sql("n > 1"), 1), Interest("tea", "tag", 1), Interest("nowhere", sql("n > 1"), 1)]
            await check_conditions(core, "g", wanted)  # the fake does not know the request, as old brokers do not
            assert len(list(cluster.broker.seen(RequestCode.CHECK_CLIENT_CONFIG))) == 1
            await core.routes.find("tea")
            await cluster.broker.stop()
            with caplog.at_level(logging.WARNING):
                await check_conditions(core, "g", wanted)
            assert "could not validate the filter 'n > 1'" in caplog.text
        finally:
            await release(core)
