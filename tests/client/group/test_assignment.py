"""Members of a group share the queues, whoever comes and goes."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from kappamq.client.consumer.consumer import AsyncConsumer
from kappamq.message import MessageQueue
from kappamq.protocol.bodies.clients import ConsumerList
from kappamq.protocol.codes import RequestCode, ResponseCode
from kappamq.protocol.frame import reply
from tests.client.fake import FakeCluster, fake_cluster
from tests.client.loop import on_loop
from tests.waiting import eventually_async


def member(cluster: FakeCluster, **options: object) -> AsyncConsumer:
    quiet = {"rebalance_ms": 60_000}  # so that only notices of the broker can be the reason
    return AsyncConsumer(**cluster.options(group="g", topics="tea", consume_from="first", **{**quiet, **options}))


def shares(members: Iterable[AsyncConsumer]) -> list[list[int]]:
    return sorted([queue.queue_id for queue in reader.assigned if queue.topic == "tea"] for reader in members)


@pytest.mark.parametrize(("balance", "expected"), [("averagely", [[0, 1], [2, 3]]), ("circle", [[0, 2], [1, 3]])])
@on_loop
async def test_two_members_share_the_queues_and_the_rest_is_taken_over(balance: str, expected: list[list[int]]) -> None:
    async with fake_cluster(tea=4) as cluster, member(cluster, balance=balance) as first:
        assert shares([first]) == [[0, 1, 2, 3]]
        async with member(cluster, balance=balance) as second:
            await eventually_async(lambda: shares([first, second]) == expected)
            assert len(cluster.broker.groups["g"]) == 2
        await eventually_async(lambda: shares([first]) == [[0, 1, 2, 3]])


@on_loop
async def test_three_members_read_every_message_once_when_nobody_moves() -> None:
    async with fake_cluster(brokers=2, tea=3) as cluster:
        members = [member(cluster) for _ in range(3)]
        for one in members:
            await one.start()
        await eventually_async(lambda: [len(share) for share in shares(members)] == [2, 2, 2])
        for broker in cluster.brokers:
            for queue in range(3):
                broker.put("tea", queue, *(f"{broker.name}/{queue}/{n}".encode() for n in range(20)))
        bodies = []
        for one in members:
            for _ in range(40):
                message = await one.poll(5)
                assert message is not None
                bodies.append(message.body)
        assert len(bodies) == len(set(bodies)) == 120
        for one in members:
            await one.close()


@on_loop
async def test_a_queue_that_is_given_up_keeps_what_was_acknowledged() -> None:
    async with fake_cluster(tea=2) as cluster, member(cluster, commit_ms=60_000) as first:
        for queue in (0, 1):
            cluster.broker.put("tea", queue, b"%d-a" % queue, b"%d-b" % queue)
        messages = [await first.receive(5) for _ in range(4)]
        for message in messages:
            if message is not None and message.body.endswith(b"a"):
                first.ack(message)
        async with member(cluster) as second:
            await eventually_async(lambda: shares([first, second]) == [[0], [1]])
            taken = second.assigned[0].queue_id
            again = await second.poll(5)
            assert again is not None
            assert again.body == b"%d-b" % taken
            # An acknowledgement that comes too late changes nothing.
            for message in messages:
                assert message is not None
                first.ack(message)
            assert first.positions == {MessageQueue("tea", "broker-0", 1 - taken): 2}


@on_loop
async def test_a_list_without_us_is_not_believed() -> None:
    strangers = ConsumerList(consumer_ids=["stranger"]).encode()

    async with fake_cluster(tea=2) as cluster, member(cluster, rebalance_ms=50) as reader:
        cluster.broker.script(
            RequestCode.GET_CONSUMER_LIST_BY_GROUP, *[lambda peer, frame: reply(frame, body=strangers)] * 6
        )
        asked = len(cluster.broker.seen(RequestCode.GET_CONSUMER_LIST_BY_GROUP))
        await eventually_async(
            lambda: len(cluster.broker.seen(RequestCode.GET_CONSUMER_LIST_BY_GROUP)) > asked + 6, timeout=20
        )
        assert shares([reader]) == [[0, 1]]
        assert len(cluster.broker.seen(RequestCode.HEART_BEAT)) > 2


@on_loop
async def test_a_queue_whose_offset_cannot_be_told_yet_is_taken_a_little_later() -> None:
    async with fake_cluster(tea=1) as cluster:
        cluster.broker.script(RequestCode.QUERY_CONSUMER_OFFSET, ResponseCode.SYSTEM_BUSY)
        async with member(cluster, rebalance_ms=50) as reader:
            assert shares([reader]) == [[]]
            await eventually_async(lambda: shares([reader]) == [[0]])


@on_loop
async def test_new_queues_of_a_topic_are_found() -> None:
    async with fake_cluster(tea=1) as cluster, member(cluster, rebalance_ms=50, route_poll_ms=50) as reader:
        cluster.create("tea", 3)
        await eventually_async(lambda: shares([reader]) == [[0, 1, 2]])


@on_loop
async def test_a_queue_that_is_being_handed_over_at_the_end_is_stored_and_unlocked() -> None:
    async with fake_cluster(tea=1) as cluster:
        cluster.broker.put("tea", 0, b"a")
        async with member(cluster, ordered=True, commit_ms=60_000) as reader:
            assert await reader.poll(5) is not None
            queue = MessageQueue("tea", "broker-0", 0)
            await reader._started()._give_up([queue])  # another member is to have it, but its message is still in hand
            assert ("g", queue) in cluster.broker.locks
        assert cluster.broker.offsets["g", "tea", 0] == 1
        assert ("g", queue) not in cluster.broker.locks
