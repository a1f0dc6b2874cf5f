from __future__ import annotations

from typing import Any

import pytest

from kappamq.client.consumer.pull_consumer import AsyncPullConsumer
from kappamq.errors import ClientClosed, NoRoute
from kappamq.message import MessageQueue, PullResult, PullStatus
from tests.client.fake import fake_cluster
from tests.client.loop import on_loop

QUEUE = MessageQueue("tea", "broker-0", 0)


@on_loop
async def test_queues_are_listed_and_an_unknown_topic_says_so() -> None:
    async with fake_cluster(brokers=2, tea=2) as cluster, AsyncPullConsumer(**cluster.options(group="g")) as consumer:
        assert await consumer.queues("tea") == [MessageQueue("tea", f"broker-{b}", n) for b in (0, 1) for n in (0, 1)]
        with pytest.raises(NoRoute, match="kappamq topic create cake"):
            await consumer.queues("cake")


@on_loop
async def test_the_position_moves_with_the_pulls_and_with_seek() -> None:
    async with fake_cluster(tea=1) as cluster, AsyncPullConsumer(**cluster.options(group="g")) as consumer:
        cluster.broker.put("tea", 0, *(b"%d" % n for n in range(5)))
        assert [m.body for m in (await consumer.pull(QUEUE, count=2)).messages] == [b"0", b"1"]
        assert [m.body for m in (await consumer.pull(QUEUE, count=2)).messages] == [b"2", b"3"]
        consumer.seek(QUEUE, 1)
        assert await consumer.position(QUEUE) == 1
        assert [m.body for m in (await consumer.pull(QUEUE, count=1)).messages] == [b"1"]
        assert [m.body for m in (await consumer.pull(QUEUE, 4)).messages] == [b"4"]
        assert (await consumer.pull(QUEUE)).status is PullStatus.NO_NEW


@on_loop
async def test_a_committed_offset_is_where_the_next_one_begins() -> None:
    async with fake_cluster(tea=1) as cluster:
        cluster.broker.put("tea", 0, *(b"%d" % n for n in range(5)))
        async with AsyncPullConsumer(**cluster.options(group="g")) as consumer:
            assert await consumer.committed(QUEUE) is None
            await consumer.pull(QUEUE, count=3)
            await consumer.commit(QUEUE)
        assert cluster.broker.offsets["g", "tea", 0] == 3
        async with AsyncPullConsumer(**cluster.options(group="g")) as consumer:
            assert await consumer.position(QUEUE) == 3
            await consumer.commit(QUEUE, 1)
            assert await consumer.committed(QUEUE) == 1


@on_loop
async def test_a_pull_may_wait_for_a_message() -> None:
    async with fake_cluster(tea=1) as cluster, AsyncPullConsumer(**cluster.options(group="g")) as consumer:
        assert (await consumer.pull(QUEUE, 0, wait=0.05)).status is PullStatus.NO_NEW


@on_loop
async def test_reading_a_range_stops_where_it_should() -> None:
    async with (
        fake_cluster(tea=1) as cluster,
        AsyncPullConsumer(**cluster.options(group="g", pull_batch=3)) as consumer,
    ):
        cluster.broker.first["tea", 0] = 10
        for n in range(10, 30):
            cluster.broker.put("tea", 0, b"%d" % n, tag="even" if n % 2 == 0 else "odd")

        async def offsets(start: int, stop: int | None = None, tags: str = "*") -> list[int]:
            return [message.queue_offset async for message in consumer.read(QUEUE, start, stop, tags=tags)]

        assert await offsets(10) == list(range(10, 30))
        assert await offsets(12, 20) == list(range(12, 20))
        assert await offsets(0, 13) == [10, 11, 12]
        assert await offsets(28, 99) == [28, 29]
        assert await offsets(50, 60) == []
        assert await offsets(10, tags="odd") == list(range(11, 30, 2))
        assert await offsets(10, tags="none") == []


@on_loop
async def test_a_broker_that_says_again_is_not_at_its_end() -> None:
    """RocketMQ's code PULL_RETRY_IMMEDIATELY with the same offset: it could not read from its disk in time."""

    class Refused(AsyncPullConsumer):
        refusals = 2

        async def pull(self, queue: MessageQueue, offset: int | None = None, **how: Any) -> PullResult:
            if offset == 3 and self.refusals:
                self.refusals -= 1
                return PullResult(status=PullStatus.NO_MATCH, next_offset=3, min_offset=0, max_offset=5)
            return await super().pull(queue, offset, **how)

    async with fake_cluster(tea=1) as cluster, Refused(**cluster.options(group="g", pull_batch=3)) as consumer:
        cluster.broker.put("tea", 0, *(b"%d" % n for n in range(5)))
        assert [m.body async for m in consumer.read(QUEUE, 0)] == [b"%d" % n for n in range(5)]
        assert consumer.refusals == 0


@on_loop
async def test_it_joins_no_group() -> None:
    async with fake_cluster(tea=1) as cluster:
        async with AsyncPullConsumer(**cluster.options(group="g")) as consumer:
            await consumer.pull(QUEUE, 0)
            assert cluster.broker.groups["g"] == {}
        with pytest.raises(ClientClosed):
            await consumer.pull(QUEUE, 0)
