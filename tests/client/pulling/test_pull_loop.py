"""One queue, pulled on and on, whatever the broker answers."""

from __future__ import annotations

import pytest

from kappamq.client.consumer.consumer import AsyncConsumer
from kappamq.message import MessageQueue
from kappamq.protocol.codes import RequestCode, ResponseCode
from kappamq.protocol.headers.client import PULL_COMMIT_OFFSET, PULL_SUSPEND, PullMessage
from tests.client.fake import FakeCluster, fake_cluster, hang_up
from tests.client.loop import on_loop
from tests.waiting import eventually_async

PULL = RequestCode.PULL_MESSAGE
QUEUE = MessageQueue("tea", "broker-0", 0)


def consumer(cluster: FakeCluster, **options: object) -> AsyncConsumer:
    return AsyncConsumer(**cluster.options(group="g", topics="tea", consume_from="first", **options))


@on_loop
async def test_an_offset_before_the_queue_jumps_to_its_start() -> None:
    async with fake_cluster(tea=1) as cluster:
        cluster.broker.first["tea", 0] = 100
        cluster.broker.offsets["g", "tea", 0] = 7
        cluster.broker.put("tea", 0, b"oldest")
        async with consumer(cluster) as reader:
            message = await reader.poll(5)
            assert message is not None
            assert (message.body, message.queue_offset) == (b"oldest", 100)
        assert cluster.broker.offsets["g", "tea", 0] == 101


@on_loop
async def test_an_offset_behind_the_queue_comes_back_to_its_end() -> None:
    async with fake_cluster(tea=1) as cluster:
        cluster.broker.offsets["g", "tea", 0] = 99
        cluster.broker.put("tea", 0, b"a", b"b")
        async with consumer(cluster) as reader:
            await eventually_async(lambda: reader.positions.get(QUEUE) == 2)
            cluster.broker.put("tea", 0, b"c")
            message = await reader.poll(5)
            assert message is not None
            assert message.body == b"c"


@pytest.mark.parametrize(
    "trouble",
    [
        hang_up,
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.FLOW_CONTROL,
        ResponseCode.NO_PERMISSION,
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.SUBSCRIPTION_NOT_EXIST,
        ResponseCode.SUBSCRIPTION_NOT_LATEST,
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
        ResponseCode.GO_AWAY,
    ],
    ids=lambda trouble: getattr(trouble, "name", "lost connection"),
)
@on_loop
async def test_no_trouble_stops_a_queue_for_good(trouble: object) -> None:
    async with fake_cluster(tea=1) as cluster:
        cluster.broker.put("tea", 0, b"a")
        cluster.broker.script(PULL, trouble, trouble)  # type: ignore[arg-type]
        async with consumer(cluster) as reader:
            message = await reader.poll(5)
            assert message is not None
            assert message.body == b"a"


@on_loop
async def test_a_broker_that_does_not_know_the_group_is_told() -> None:
    async with fake_cluster(tea=1) as cluster:
        cluster.broker.script(PULL, ResponseCode.SUBSCRIPTION_NOT_EXIST)
        async with consumer(cluster):
            before = len(cluster.broker.seen(RequestCode.HEART_BEAT))
            await eventually_async(lambda: len(cluster.broker.seen(PULL)) == 2)
            assert len(cluster.broker.seen(RequestCode.HEART_BEAT)) > before


@on_loop
async def test_pulls_pause_while_enough_is_held_and_go_on_when_there_is_room() -> None:
    async with fake_cluster(tea=1) as cluster:
        cluster.broker.put("tea", 0, *(b"%d" % n for n in range(40)))
        async with consumer(cluster, cached_messages_max=5, pull_batch=5) as reader:
            await eventually_async(lambda: len(reader.inbox) == 5)
            assert len(cluster.broker.seen(PULL)) == 1
            bodies = []
            for _ in range(40):
                message = await reader.poll(2)  # less than FULL_S: it must be the acknowledgement that wakes it
                assert message is not None
                bodies.append(message.body)
                assert len(reader.inbox) <= 9
            assert bodies == [b"%d" % n for n in range(40)]


@on_loop
async def test_a_pull_may_be_held_and_carries_the_offset() -> None:
    async with fake_cluster(tea=1) as cluster:
        cluster.broker.put("tea", 0, b"a")
        async with consumer(cluster, commit_ms=60_000) as reader:
            assert await reader.poll(5)
            assert await reader.poll(0.01) is None  # acknowledges a
            cluster.broker.put("tea", 0, b"b")
            await eventually_async(lambda: len(cluster.broker.seen(PULL)) == 3)
            first, _, third = (PullMessage.decode(frame.ext) for frame in cluster.broker.seen(PULL))
            assert (first.sys_flag, first.queue_offset, first.hold_ms) == (PULL_SUSPEND, 0, 500)
            assert (third.sys_flag, third.commit_offset) == (PULL_SUSPEND | PULL_COMMIT_OFFSET, 1)


@on_loop
async def test_an_offset_that_is_known_already_is_not_committed_again() -> None:
    async with fake_cluster(tea=1) as cluster:
        cluster.broker.offsets["g", "tea", 0] = 2
        cluster.broker.put("tea", 0, b"a", b"b", b"c")
        async with consumer(cluster, commit_ms=60_000, pull_hold_ms=20) as reader:
            assert await reader.poll(5)
            await eventually_async(lambda: len(cluster.broker.seen(PULL)) >= 3)
            assert await reader.poll(0.01) is None  # acknowledges c
            await eventually_async(lambda: len(cluster.broker.seen(PULL)) >= 6)
            commits = [PullMessage.decode(frame.ext).commit_offset for frame in cluster.broker.seen(PULL)]
            assert [offset for offset in commits if offset] == [3]
