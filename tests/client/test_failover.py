"""A group loses its master and gets another one: what producers and consumers feel of it. Real sockets, members on command."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from kappamq.client.admin.admin import AsyncAdmin
from kappamq.client.consumer.consumer import AsyncConsumer
from kappamq.client.consumer.pull_consumer import AsyncPullConsumer
from kappamq.client.producer.producer import AsyncProducer
from kappamq.client.producer.transaction import AsyncTransactionProducer
from kappamq.errors import NoMaster, NotMaster, UnknownTopic
from kappamq.message import Decision, Message, MessageQueue
from kappamq.protocol.codes import RequestCode, ResponseCode
from kappamq.protocol.frame import Frame, reply
from kappamq.protocol.headers.client import PULL_COMMIT_OFFSET
from kappamq.protocol.leader_hint import with_leader
from tests.client.fake import FakeBroker, FakeCluster, Peer, fake_cluster, promote
from tests.client.loop import on_loop
from tests.client.real import real_cluster
from tests.waiting import eventually_async

SEND, ROUTE = RequestCode.SEND_MESSAGE_V2, RequestCode.GET_ROUTEINFO_BY_TOPIC


def routes_asked(cluster: FakeCluster) -> int:
    return len(cluster.nameservers[0].seen(ROUTE))


async def gone(broker: FakeBroker, producer: AsyncProducer) -> None:
    """The broker has died, the name server has noticed, and so has the client."""
    await broker.stop()
    broker.broker_id = None
    await eventually_async(lambda: not producer.running().brokers.open)


def consumer(cluster: FakeCluster, **options: object) -> AsyncConsumer:
    return AsyncConsumer(**cluster.options(group="g", topics="tea", consume_from="first", **options))


@pytest.mark.parametrize("pinned", [{}, {"key": "k"}, {"queue": MessageQueue("tea", "broker-0", 0)}], ids=str)
@on_loop
async def test_a_node_that_names_the_leader_sends_us_there_at_once(pinned: dict[str, object]) -> None:
    async with fake_cluster(members=3, tea=2) as cluster, AsyncProducer(**cluster.options()) as producer:
        one, two, three = cluster.brokers
        await producer.send(Message("tea", b"0"), **pinned)  # type: ignore[arg-type]
        asked = routes_asked(cluster)
        one.broker_id, one.leader, two.broker_id = 1, two.address, 0  # the name server hears of it, we do not
        for number in range(5):
            await producer.send(Message("tea", b"%d" % number), **pinned)  # type: ignore[arg-type]
        assert (len(one.seen(SEND)), len(two.seen(SEND)), len(three.seen(SEND))) == (2, 5, 0)
        assert routes_asked(cluster) == asked, "the answer says it all"


@pytest.mark.parametrize("pinned", [{}, {"key": "k"}, {"queue": MessageQueue("tea", "broker-0", 0)}], ids=str)
@on_loop
async def test_a_send_waits_for_a_master(pinned: dict[str, object]) -> None:
    async with (
        fake_cluster(members=2, tea=2) as cluster,
        AsyncProducer(**cluster.options(send_timeout_ms=30_000)) as producer,
    ):
        one, two = cluster.brokers
        await producer.send(Message("tea", b"before"), **pinned)  # type: ignore[arg-type]
        await gone(one, producer)
        asked = routes_asked(cluster)
        sends = [asyncio.create_task(producer.send(Message("tea", b"x"), **pinned)) for _ in range(3)]  # type: ignore[arg-type]
        await eventually_async(lambda: routes_asked(cluster) > asked + 5, text="far more than three tries")
        assert not any(send.done() for send in sends)
        promote(two)
        assert all(result.ok for result in await asyncio.gather(*sends))
        assert sorted(two.stored("tea")) == [b"before", b"x", b"x", b"x"]


@on_loop
async def test_the_wait_ends_with_the_timeout_and_says_why() -> None:
    async with fake_cluster(members=2, tea=1) as cluster, AsyncProducer(**cluster.options()) as producer:
        one, two = cluster.brokers
        one.broker_id = None
        with pytest.raises(NoMaster, match="no queue of topic 'tea' is writable at the moment: broker-0 has no master"):
            await producer.send(Message("tea", b"x"), timeout=0.3)
        one.broker_id, one.leader = 0, None
        await producer.send(Message("tea", b"x"))
        one.script(SEND, *[_not_the_master] * 1000)
        with pytest.raises(NotMaster, match="not the master now"):
            await producer.send(Message("tea", b"y"), timeout=0.3)
        assert two.stored("tea") == [b"x"]


def _not_the_master(peer: Peer, frame: Frame) -> Frame:
    return reply(frame, ResponseCode.SERVICE_NOT_AVAILABLE, with_leader("not the master now", None))


@on_loop
async def test_other_groups_take_over_at_once() -> None:
    async with (
        fake_cluster(brokers=2, members=2, tea=1) as cluster,
        AsyncProducer(**cluster.options(send_timeout_ms=30_000)) as producer,
    ):
        gone, _, other, _ = cluster.brokers
        await gone.stop()
        gone.broker_id = None
        results = [await producer.send(Message("tea", b"%d" % number)) for number in range(10)]
        assert {result.queue.broker for result in results} == {other.name}


@on_loop
async def test_a_restart_of_the_only_broker_is_waited_for_but_not_a_topic_that_never_was() -> None:
    async with fake_cluster(tea=1) as cluster, AsyncProducer(**cluster.options(send_timeout_ms=30_000)) as producer:
        broker = cluster.broker
        await producer.send(Message("tea", b"before"))
        await gone(broker, producer)
        sends = [asyncio.create_task(producer.send(Message("tea", b"x"))) for _ in range(3)]
        asked = routes_asked(cluster)
        await eventually_async(lambda: routes_asked(cluster) > asked + 3)
        assert not any(send.done() for send in sends)
        # Somebody else is registered, so a topic that nobody knows does not exist.
        cluster.nameservers[0].brokers.append(FakeBroker("elsewhere"))
        with pytest.raises(UnknownTopic):
            await producer.send(Message("coffee", b"x"))
        await broker.start()
        broker.broker_id = 0
        assert all(result.ok for result in await asyncio.gather(*sends))


@on_loop
async def test_a_lost_connection_makes_the_route_doubtful_at_once() -> None:
    async with fake_cluster(members=2, tea=1) as cluster, AsyncProducer(**cluster.options()) as producer:
        one, two = cluster.brokers
        await producer.send(Message("tea", b"0"))
        promote(two, one)
        asked = routes_asked(cluster)
        for peer in list(one.peers):
            peer.drop()  # it lives, and would take what is sent to it
        core = producer.running()
        await eventually_async(lambda: not core.brokers.open)
        await producer.send(Message("tea", b"1"))
        assert routes_asked(cluster) == asked + 1
        assert (len(one.seen(SEND)), len(two.seen(SEND))) == (1, 1)


@on_loop
async def test_a_consumer_goes_on_from_a_slave_and_comes_back() -> None:
    async with fake_cluster(members=2, tea=1) as cluster:
        one, two = cluster.brokers
        cluster.broker.put("tea", 0, b"0")
        async with consumer(cluster) as reader:
            assert await body(reader) == b"0"
            await eventually_async(lambda: one.offsets.get(("g", "tea", 0)) == 1)
            await one.stop()
            one.broker_id = None
            two.put("tea", 0, b"1")
            assert await body(reader) == b"1"
            assert two.pulled_by
            await eventually_async(
                lambda: two.offsets.get(("g", "tea", 0)) == 2, text="committed to the slave meanwhile"
            )
            assert not any(pull.sys_flag & PULL_COMMIT_OFFSET for pull in two.pulled_by), "but not by pulls"
            assert "g" in two.groups, "it knows our subscription, so pulls need not carry it"
            await one.start()
            one.broker_id = 0
            one.pulled_by.clear()
            await eventually_async(lambda: one.pulled_by, text="back at the master")
            await eventually_async(lambda: one.offsets.get(("g", "tea", 0)) == 2, text="and it is told what was done")
            one.put("tea", 0, b"2")
            assert await body(reader) == b"2"


async def body(reader: AsyncConsumer) -> bytes:
    message = await reader.receive(20)
    assert message is not None
    reader.ack(message)
    return message.body


@on_loop
async def test_pulls_follow_the_suggestion_of_the_master_and_of_the_slave() -> None:
    async with fake_cluster(members=2, tea=1) as cluster:
        one, two = cluster.brokers
        one.suggested, two.suggested = 1, 1
        one.put("tea", 0, b"0", b"1")
        async with consumer(cluster) as reader:
            assert [await body(reader), await body(reader)] == [b"0", b"1"]
            await eventually_async(lambda: len(two.pulled_by) > 1)
            assert len(one.pulled_by) == 1
            two.suggested = 0
            one.suggested = 0
            two.put("tea", 0, b"2")
            assert await body(reader) == b"2"
            await eventually_async(lambda: len(one.pulled_by) > 1)
        assert one.offsets["g", "tea", 0] == 3
        assert ("g", "tea", 0) not in two.offsets, "offsets go to the master"


@on_loop
async def test_a_master_out_of_reach_that_is_still_registered_is_replaced_by_its_slave() -> None:
    async with fake_cluster(members=2, tea=1) as cluster:
        one, two = cluster.brokers
        one.put("tea", 0, b"0")
        async with consumer(cluster) as reader:
            assert await body(reader) == b"0"
            await one.stop()
            two.put("tea", 0, b"1")
            assert await body(reader) == b"1"
            assert two.pulled_by


@on_loop
async def test_locks_go_to_the_leader() -> None:
    async with fake_cluster(members=2, tea=1) as cluster:
        one, two = cluster.brokers
        one.put("tea", 0, b"0")
        reader = AsyncConsumer(
            **cluster.options(group="g", topics="tea", consume_from="first", ordered=True, lock_renew_ms=50)
        )
        async with reader:
            assert await body(reader) == b"0"
            one.broker_id, one.leader, two.broker_id = 1, two.address, 0
            await eventually_async(lambda: two.locks)
            assert ("g", MessageQueue("tea", "broker-0", 0)) in two.locks


@on_loop
async def test_whatever_only_a_master_does_waits_for_the_role_of_a_real_broker(tmp_path: Path) -> None:
    """Sends, halves and ends of transactions, send-backs and recalls, while the only broker has lost the role."""
    async with (
        real_cluster(tmp_path) as cluster,
        AsyncAdmin(cluster.nameserver) as admin,
        AsyncTransactionProducer(
            **cluster.options(
                group="p", check=lambda message: Decision.UNKNOWN, send_timeout_ms=60_000, request_timeout_ms=60_000
            )
        ) as producer,
        AsyncPullConsumer(**cluster.options(group="reader")) as reader,
    ):
        broker = cluster.broker
        await admin.create_topic("tea", queues=1)
        delayed = await producer.send(Message("tea", b"never", delay=3600))
        open_one = producer.transaction(Message("tea", b"committed"))
        await open_one.__aenter__()
        await broker.end_role()

        async def begin_and_commit() -> None:
            async with producer.transaction(Message("tea", b"begun meanwhile")):
                pass

        refused, asked = Counter[int](), broker.bursts.handlers
        for code in (RequestCode.SEND_MESSAGE_V2, RequestCode.END_TRANSACTION, RequestCode.RECALL_MESSAGE):
            refuse = asked[code]
            asked[code] = lambda request, code=code, refuse=refuse: (refused.update([int(code)]), refuse(request))[1]  # type: ignore[misc]
        work = [
            asyncio.create_task(producer.send(Message("tea", b"sent"))),
            asyncio.create_task(begin_and_commit()),
            asyncio.create_task(_done(open_one)),
            asyncio.create_task(producer.recall(delayed)),
        ]
        await eventually_async(lambda: len(refused) == 3 and min(refused.values()) > 4, text="asked again and again")
        assert not any(task.done() for task in work)
        await broker.begin_role()
        await asyncio.gather(*work)
        found = await eventually_async(lambda: _all_three(reader))
        assert sorted(found) == [b"begun meanwhile", b"committed", b"sent"]


async def _done(transaction: Any) -> None:
    await transaction.__aexit__(None, None, None)


async def _all_three(reader: AsyncPullConsumer) -> list[bytes]:
    found = [message.body async for message in reader.read(MessageQueue("tea", "broker-0", 0), 0)]
    return found if len(found) >= 3 else []
