from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from kappamq.client.consumer.consumer import AsyncConsumer
from kappamq.client.core.core import ClientCore
from kappamq.client.group.balance import Strategy, averagely
from kappamq.client.group.shares import Share, Shares
from kappamq.message import MessageQueue
from kappamq.protocol.codes import RequestCode, ResponseCode
from tests.client.fake import FakeCluster, fake_cluster
from tests.client.loop import on_loop

QUEUES = {MessageQueue("tea", f"broker-{broker}", queue) for broker in (0, 1) for queue in (0, 1)}


@asynccontextmanager
async def shares(strategy: Strategy | None = averagely) -> AsyncIterator[tuple[FakeCluster, Shares]]:
    options = {"group": "g", "topics": "tea", "rebalance_ms": 60_000}
    async with fake_cluster(brokers=2, tea=2) as cluster, AsyncConsumer(**cluster.options(**options)) as member:
        core = member._core
        assert isinstance(core, ClientCore)
        yield cluster, Shares(core, "g", strategy)


@on_loop
async def test_alone_everything_is_ours() -> None:
    async with shares() as (_, mine):
        assert await mine.of("tea") == Share("tea", QUEUES, 1)


@on_loop
async def test_with_another_it_is_shared_out() -> None:
    async with shares() as (cluster, mine):
        for broker in cluster.brokers:
            ((peer, data),) = broker.groups["g"].values()
            broker.groups["g"]["zz"] = (peer, data)
        assert await mine.of("tea") == Share("tea", {queue for queue in QUEUES if queue.broker == "broker-0"}, 2)


@on_loop
async def test_one_broker_that_answers_is_enough() -> None:
    async with shares() as (cluster, mine):
        await cluster.brokers[0].stop()
        share = await mine.of("tea")
        assert share is not None
        assert share.mine == QUEUES


@on_loop
async def test_broadcasting_nobody_is_asked() -> None:
    async with shares(None) as (cluster, mine):
        asked = len(cluster.broker.seen(RequestCode.GET_CONSUMER_LIST_BY_GROUP))
        assert await mine.of("tea") == Share("tea", QUEUES, 1)
        assert len(cluster.broker.seen(RequestCode.GET_CONSUMER_LIST_BY_GROUP)) == asked


@on_loop
async def test_what_cannot_be_told_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    async with shares() as (cluster, mine):
        assert await mine.of("%RETRY%g") == Share("%RETRY%g", set(), 0)
        assert await mine.of("cake") is None
        assert await mine.of("cake") is None
        told = [record.getMessage() for record in caplog.records if record.name == "kappamq.client.group.shares"]
        assert told == ["topic cake does not exist yet; group g will consume it as soon as it is created"]
        for broker in cluster.brokers:
            broker.script(RequestCode.GET_CONSUMER_LIST_BY_GROUP, *[ResponseCode.SYSTEM_BUSY] * 3)
        for _ in range(3):
            assert await mine.of("tea") is None
        assert caplog.text.count("could not rebalance topic tea and keeps its queues") == 1
        assert await mine.of("tea") == Share("tea", QUEUES, 1)
        for broker in cluster.brokers:
            broker.script(RequestCode.GET_CONSUMER_LIST_BY_GROUP, ResponseCode.SYSTEM_BUSY)
        assert await mine.of("tea") is None
        assert caplog.text.count("could not rebalance topic tea and keeps its queues") == 2, "it is another trouble"
