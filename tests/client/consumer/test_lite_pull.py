from __future__ import annotations

from pathlib import Path

import pytest

from kappamq.client.admin.admin import AsyncAdmin
from kappamq.client.consumer.lite_pull import AsyncLitePullConsumer
from kappamq.client.producer.producer import AsyncProducer
from kappamq.errors import ClientClosed, ConfigError, InvalidParameter
from kappamq.message import Message, MessageQueue
from kappamq.protocol.bodies.clients import ConsumeType
from kappamq.protocol.codes import RequestCode, ResponseCode
from kappamq.protocol.headers.client import PULL_LITE, PULL_SUBSCRIPTION, PULL_SUSPEND, PullMessage
from tests.client.fake import FakeCluster, fake_cluster
from tests.client.loop import on_loop
from tests.client.real import real_cluster
from tests.waiting import eventually_async

LITE, PULL = RequestCode.LITE_PULL_MESSAGE, RequestCode.PULL_MESSAGE
QUEUES = [MessageQueue("tea", "broker-0", n) for n in range(2)]


def consumer(cluster: FakeCluster, **options: object) -> AsyncLitePullConsumer:
    defaults = {"group": "g", "topics": "tea", "consume_from": "first"}
    return AsyncLitePullConsumer(**cluster.options(**{**defaults, **options}))


async def polled(reader: AsyncLitePullConsumer, count: int) -> list[bytes]:
    bodies: list[bytes] = []
    while len(bodies) < count:
        messages = await reader.poll(5, count - len(bodies))
        assert messages, f"only {bodies} came"
        bodies += [message.body for message in messages]
    return bodies


@on_loop
async def test_a_poll_gives_what_is_there_and_says_that_the_poll_before_is_done() -> None:
    async with fake_cluster(tea=2) as cluster:
        cluster.broker.put("tea", 0, *(b"%d" % n for n in range(10)))
        async with consumer(cluster) as reader:
            assert await polled(reader, 4) == [b"0", b"1", b"2", b"3"]
            assert reader.positions[QUEUES[0]] == 0
            assert await polled(reader, 2) == [b"4", b"5"]
            assert reader.positions[QUEUES[0]] == 4
            await eventually_async(lambda: cluster.broker.offsets.get(("g", "tea", 0)) == 4)
        assert cluster.broker.offsets["g", "tea", 0] == 6


@on_loop
async def test_an_error_leaves_the_last_poll_undone() -> None:
    async with fake_cluster(tea=1) as cluster:
        cluster.broker.put("tea", 0, b"a", b"b")
        with pytest.raises(RuntimeError, match="spilled"):
            async with consumer(cluster) as reader:
                assert await polled(reader, 1) == [b"a"]
                assert await polled(reader, 1) == [b"b"]
                raise RuntimeError("spilled")
        assert cluster.broker.offsets["g", "tea", 0] == 1


@on_loop
async def test_a_poll_with_nothing_ends_after_its_time_and_collects_over_queues() -> None:
    async with fake_cluster(tea=2) as cluster, consumer(cluster) as reader:
        assert await reader.poll(0.01) == []
        for number in (0, 1):
            cluster.broker.put("tea", number, b"%d" % number)
        await eventually_async(lambda: len(reader.inbox) == 2)
        assert sorted(message.body for message in await reader.poll(1)) == [b"0", b"1"]


@on_loop
async def test_by_hand_only_commit_stores() -> None:
    async with fake_cluster(tea=1) as cluster:
        cluster.broker.put("tea", 0, *(b"%d" % n for n in range(10)))
        async with consumer(cluster, auto_commit=False, commit_ms=10) as reader:
            await polled(reader, 4)
            await polled(reader, 2)
            assert cluster.broker.seen(RequestCode.UPDATE_CONSUMER_OFFSET) == []
            await reader.commit()
            assert cluster.broker.offsets["g", "tea", 0] == 6
            assert await reader.committed(QUEUES[0]) == 6
            await polled(reader, 2)
            await reader.commit({QUEUES[0]: 3})
        assert cluster.broker.offsets["g", "tea", 0] == 3


@on_loop
async def test_a_commit_by_hand_is_made_again_if_the_broker_forgets_it() -> None:
    async with fake_cluster(tea=1) as cluster:
        cluster.broker.put("tea", 0, *(b"%d" % n for n in range(10)))
        async with consumer(cluster, auto_commit=False, commit_ms=10) as reader:
            await polled(reader, 6)
            for commit, stored in ((None, 6), ({QUEUES[0]: 3}, 3)):
                await reader.commit(commit)
                await cluster.broker.stop()
                cluster.broker.offsets["g", "tea", 0] = 0
                await cluster.broker.start()
                await eventually_async(lambda stored=stored: cluster.broker.offsets["g", "tea", 0] == stored)


@on_loop
async def test_seeking_goes_anywhere_the_queue_has() -> None:
    async with fake_cluster(tea=1) as cluster:
        cluster.broker.first["tea", 0] = 5
        cluster.broker.put("tea", 0, *(b"%d" % n for n in range(5, 15)))
        async with consumer(cluster) as reader:
            assert await polled(reader, 2) == [b"5", b"6"]
            await reader.seek(QUEUES[0], 12)
            assert await polled(reader, 1) == [b"12"]
            await reader.seek_to_begin(QUEUES[0])
            assert await polled(reader, 1) == [b"5"]
            await reader.seek_to_end(QUEUES[0])
            assert await reader.poll(0.05) == []
            cluster.broker.put("tea", 0, b"new")
            assert await polled(reader, 1) == [b"new"]
            for wrong in (4, 17):
                with pytest.raises(InvalidParameter, match=f"no offset {wrong}: it holds 5 to 16"):
                    await reader.seek(QUEUES[0], wrong)
            with pytest.raises(InvalidParameter, match="is not assigned to this consumer"):
                await reader.seek(QUEUES[1], 5)
        assert cluster.broker.offsets["g", "tea", 0] == 16


@on_loop
async def test_going_back_is_stored_too() -> None:
    async with fake_cluster(tea=1) as cluster:
        cluster.broker.put("tea", 0, *(b"%d" % n for n in range(10)))
        async with consumer(cluster, commit_ms=60_000) as reader:
            await polled(reader, 8)
            await reader.commit()
            assert cluster.broker.offsets["g", "tea", 0] == 8
            await reader.seek(QUEUES[0], 2)
            assert await polled(reader, 1) == [b"2"]
            await reader.commit()
        assert cluster.broker.offsets["g", "tea", 0] == 3


@on_loop
async def test_what_is_stored_late_does_not_throw_back_who_has_the_queue_now(tmp_path: Path) -> None:
    async with real_cluster(tmp_path) as cluster:
        options = cluster.options(commit_ms=60_000, rebalance_ms=60_000)
        async with AsyncProducer(**cluster.options()) as producer, AsyncAdmin(cluster.nameserver) as admin:
            await admin.create_topic("tea", queues=1)
            for number in range(10):
                await producer.send(Message("tea", b"%d" % number))
        async with AsyncLitePullConsumer(group="g", topics="tea", **options) as reader:
            assert len(await polled(reader, 5)) == 5
            cluster.broker.offsets.set("g", "tea", 0, 9)  # by another member that has had the queue meanwhile
            await reader.commit()
            assert cluster.broker.offsets.get("g", "tea", 0) == 9
            await reader.seek(QUEUES[0], 2)
            assert await polled(reader, 1) == [b"2"]
            await reader.commit()
            assert cluster.broker.offsets.get("g", "tea", 0) == 3, "going back on purpose"


@on_loop
async def test_it_pulls_with_its_own_code_and_falls_back_where_that_is_unknown_or_off() -> None:
    for code in (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, ResponseCode.NO_PERMISSION):
        async with fake_cluster(tea=1) as cluster:
            cluster.broker.put("tea", 0, b"a")
            cluster.broker.script(LITE, code)
            async with consumer(cluster) as reader:
                assert await polled(reader, 1) == [b"a"]
                cluster.broker.put("tea", 0, b"b")
                assert await polled(reader, 1) == [b"b"]
            assert len(cluster.broker.seen(LITE)) == 1
            first = PullMessage.decode(cluster.broker.seen(LITE)[0].ext)
            assert first.sys_flag == PULL_SUSPEND | PULL_SUBSCRIPTION | PULL_LITE
            assert first.subscription == "*"
            assert PullMessage.decode(cluster.broker.seen(PULL)[0].ext).sys_flag == PULL_SUSPEND | PULL_SUBSCRIPTION


@on_loop
async def test_a_broker_that_forbids_the_topic_is_asked_again() -> None:
    async with fake_cluster(tea=1) as cluster:
        cluster.broker.put("tea", 0, b"a")
        cluster.broker.script(LITE, ResponseCode.NO_PERMISSION)
        cluster.broker.script(PULL, ResponseCode.NO_PERMISSION)
        async with consumer(cluster) as reader:
            assert await polled(reader, 1) == [b"a"]
        assert len(cluster.broker.seen(LITE)) >= 2


@on_loop
async def test_members_share_the_queues_and_have_no_retry_topic() -> None:
    async with fake_cluster(tea=2) as cluster, consumer(cluster) as first, consumer(cluster) as second:
        await eventually_async(lambda: [len(first.assigned), len(second.assigned)] == [1, 1])
        told = [data for _, data in cluster.broker.groups["g"].values()]
        assert {data.consume_type for data in told} == {ConsumeType.CONSUME_ACTIVELY}
        assert [[s.topic for s in data.subscriptions] for data in told] == [["tea"], ["tea"]]


@on_loop
async def test_assigned_queues_are_read_without_telling_anybody() -> None:
    async with fake_cluster(tea=2) as cluster:
        for number in (0, 1):
            cluster.broker.put("tea", number, b"%d" % number, tag="hot")
        async with consumer(cluster, topics=None) as reader:
            with pytest.raises(ConfigError, match="nothing to poll"):
                await reader.poll(0)
            assert await reader.queues("tea") == QUEUES
            await reader.assign([QUEUES[1]], "hot || cold")
            assert await polled(reader, 1) == [b"1"]
            await reader.assign(QUEUES)
            assert await polled(reader, 1) == [b"0"]
            assert reader.assigned == QUEUES
            await reader.commit()
            await reader.assign([])
            assert reader.assigned == []
            assert cluster.broker.groups["g"] == {}
        assert [cluster.broker.offsets["g", "tea", n] for n in (0, 1)] == [1, 1]


@on_loop
async def test_subscribing_and_assigning_exclude_each_other() -> None:
    async with fake_cluster(tea=2) as cluster:
        async with consumer(cluster) as reader:
            with pytest.raises(ConfigError, match="has subscribed"):
                await reader.assign(QUEUES)
        async with consumer(cluster, topics=None) as reader:
            await reader.assign(QUEUES)
            with pytest.raises(ConfigError, match="reads assigned queues"):
                await reader.subscribe("tea")
        late = consumer(cluster, topics=None)
        await late.subscribe("tea")
        cluster.broker.put("tea", 0, b"a")
        assert await polled(late, 1) == [b"a"]
        assert len(cluster.broker.groups["g"]) == 1
        await late.close()


@on_loop
async def test_fetching_stops_when_enough_waits_in_all_queues_together() -> None:
    async with fake_cluster(tea=2) as cluster:
        for number in (0, 1):
            cluster.broker.put("tea", number, *(b"%d" % n for n in range(100)))
        async with consumer(cluster, cached_all_max=20, pull_batch=10) as reader:
            await eventually_async(lambda: len(reader.inbox) >= 20)
            pulls = len(cluster.broker.seen(LITE))
            assert len(reader.inbox) <= 40
            assert len(await polled(reader, 200)) == 200
            assert len(cluster.broker.seen(LITE)) > pulls


@on_loop
async def test_iteration_and_what_needs_a_start() -> None:
    async with fake_cluster(tea=1) as cluster:
        cluster.broker.put("tea", 0, b"a", b"b")
        late = consumer(cluster)
        with pytest.raises(ClientClosed, match="has not been started"):
            await late.commit()
        with pytest.raises(ConfigError, match="count_max=0"):
            await late.poll(0, 0)
        await late.close()
        async with consumer(cluster, idle_timeout=5) as reader:
            assert [message.body async for message in reader] == [b"a", b"b"]
        assert cluster.broker.offsets["g", "tea", 0] == 2
