"""What an admin asks of whom. What real brokers make of it is in test_scenarios.py."""

from __future__ import annotations

from functools import partial

import pytest

from kappamq.client.admin import admin as admin_module
from kappamq.client.admin.admin import AsyncAdmin
from kappamq.errors import BrokerError, ClientClosed, ConsumerOffline, InvalidParameter, NoRoute, TopicNotFound
from kappamq.message import MessageQueue
from kappamq.protocol.bodies.admin import ConsumeOffset, ConsumerConnection, ConsumeStats, TopicOffset, TopicStatsTable
from kappamq.protocol.bodies.clients import SubscriptionGroupConfig, SubscriptionGroupTable
from kappamq.protocol.bodies.topics import KVTable, TopicConfig
from kappamq.protocol.codes import RequestCode, ResponseCode
from kappamq.protocol.frame import Frame, reply
from kappamq.protocol.headers.admin import GetConsumeStats, ResetOffsetByBroker, UpdateTopic
from tests.client.fake import FakeCluster, fake_cluster
from tests.client.loop import on_loop


def takes_topics(cluster: FakeCluster) -> None:
    """Let brokers create and delete topics, and the name servers show them."""

    def update(peer: object, frame: Frame) -> Frame:
        header = UpdateTopic.decode(frame.ext)
        cluster.create(header.topic, header.write_queues, header.read_queues)
        return reply(frame)

    for broker in cluster.brokers:
        broker.script(RequestCode.UPDATE_AND_CREATE_TOPIC, *[update] * 5)
        broker.script(RequestCode.DELETE_TOPIC_IN_BROKER, ResponseCode.SUCCESS)

    def forget(peer: object, frame: Frame) -> Frame:
        for nameserver in cluster.nameservers:
            nameserver.topics.pop(frame.ext["topic"], None)
        return reply(frame)

    for nameserver in cluster.nameservers:
        nameserver.script(RequestCode.DELETE_TOPIC_IN_NAMESRV, forget)


@on_loop
async def test_a_topic_is_created_on_every_broker_and_deleted_everywhere() -> None:
    async with fake_cluster(brokers=2, nameservers=2) as cluster, AsyncAdmin(**cluster.options()) as admin:
        takes_topics(cluster)
        await admin.create_topic("tea", 5, read_queues=7, order=True, attributes={"message.type": "FIFO"})
        for broker in cluster.brokers:
            header = UpdateTopic.decode(broker.seen(RequestCode.UPDATE_AND_CREATE_TOPIC)[0].ext)
            assert (header.write_queues, header.read_queues, header.permission, header.order) == (5, 7, 6, True)
            assert header.attributes == "+message.type=FIFO"
        assert await admin.topics() == ["tea"]
        await admin.delete_topic("tea")
        assert [len(server.seen(RequestCode.DELETE_TOPIC_IN_NAMESRV)) for server in cluster.nameservers] == [1, 1]
        with pytest.raises(TopicNotFound, match="kappamq topic create tea"):
            await admin.route("tea")
        with pytest.raises(TopicNotFound):
            await admin.delete_topic("tea")


@on_loop
async def test_a_topic_may_be_created_on_some_brokers() -> None:
    async with fake_cluster(brokers=2) as cluster, AsyncAdmin(**cluster.options()) as admin:
        takes_topics(cluster)
        await admin.create_topic("tea", brokers=["broker-1"])
        assert [len(b.seen(RequestCode.UPDATE_AND_CREATE_TOPIC)) for b in cluster.brokers] == [0, 1]
        with pytest.raises(InvalidParameter, match=r"no broker broker-9 .*broker-0, broker-1"):
            await admin.create_topic("tea", brokers=["broker-9"])
        with pytest.raises(InvalidParameter, match=r"unknown cluster 'x' \(known: c\)"):
            await admin.create_topic("tea", cluster="x")


@on_loop
async def test_a_topic_that_does_not_become_visible_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_module, "VISIBLE_S", 0.1)
    async with fake_cluster() as cluster, AsyncAdmin(**cluster.options()) as admin:
        cluster.broker.script(RequestCode.UPDATE_AND_CREATE_TOPIC, ResponseCode.SUCCESS)
        with pytest.raises(NoRoute, match="name server does not show it"):
            await admin.create_topic("tea")


@on_loop
async def test_updating_changes_only_what_is_named() -> None:
    now = TopicConfig(name="tea", read_queues=3, write_queues=2, permission=4, order=True)
    async with fake_cluster(tea=2) as cluster, AsyncAdmin(**cluster.options()) as admin:
        takes_topics(cluster)
        cluster.broker.script(RequestCode.GET_TOPIC_CONFIG, lambda peer, frame: reply(frame, body=now.encode()))
        await admin.update_topic("tea", permission=6)
        header = UpdateTopic.decode(cluster.broker.seen(RequestCode.UPDATE_AND_CREATE_TOPIC)[0].ext)
        assert (header.read_queues, header.write_queues, header.permission, header.order) == (3, 2, 6, True)
        cluster.broker.script(RequestCode.GET_TOPIC_CONFIG, ResponseCode.TOPIC_NOT_EXIST)
        with pytest.raises(TopicNotFound):
            await admin.update_topic("cake", queues=3)


@pytest.mark.parametrize(("name", "queues"), [("../etc", 1), ("", 1), ("tea", 0)])
@on_loop
async def test_a_topic_that_cannot_be_is_refused_before_anyone_is_asked(name: str, queues: int) -> None:
    async with fake_cluster() as cluster, AsyncAdmin(**cluster.options()) as admin:
        with pytest.raises(InvalidParameter):
            await admin.create_topic(name, queues)
        assert not cluster.nameservers[0].requests


@on_loop
async def test_topics_hide_what_belongs_to_the_system() -> None:
    async with (
        fake_cluster(tea=1, TBW102=1, SCHEDULE_TOPIC_XXXX=1, c=1) as cluster,
        AsyncAdmin(**cluster.options()) as admin,
    ):
        for topic in ("%RETRY%g", "%DLQ%g", "broker-0", "c_REPLY_TOPIC", "rmq_sys_kappamq_topics"):
            cluster.create(topic)
        assert await admin.topics() == ["tea"]
        assert len(await admin.topics(system=True)) == 9


@on_loop
async def test_figures_of_all_brokers_are_put_together() -> None:
    async with fake_cluster(brokers=2, tea=1) as cluster, AsyncAdmin(**cluster.options()) as admin:
        queues = [MessageQueue("tea", broker.name, 0) for broker in cluster.brokers]
        for number, (broker, queue) in enumerate(zip(cluster.brokers, queues, strict=True)):
            stats = TopicStatsTable(offsets={queue: TopicOffset(number, 10, 99)})
            progress = ConsumeStats(offsets={queue: ConsumeOffset(broker_offset=10, consumer_offset=number)})
            groups = SubscriptionGroupTable(groups={f"g{number}": SubscriptionGroupConfig(name=f"g{number}")})
            for code, body in (
                (RequestCode.GET_TOPIC_STATS_INFO, stats.encode()),
                (RequestCode.GET_CONSUME_STATS, progress.encode()),
                (RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, groups.encode()),
            ):
                broker.script(code, lambda peer, frame, body=body: reply(frame, body=body))
        assert {queue: offset.min_offset for queue, offset in (await admin.topic_stats("tea")).items()} == {
            queues[0]: 0,
            queues[1]: 1,
        }
        found = await admin.consumer_progress("g", "tea")
        assert [found[queue].consumer_offset for queue in queues] == [0, 1]
        assert GetConsumeStats.decode(cluster.broker.seen(RequestCode.GET_CONSUME_STATS)[0].ext).topic == "tea"
        assert await admin.groups() == ["g0", "g1"]


@on_loop
async def test_what_masters_say_is_not_asked_of_slaves() -> None:
    async with fake_cluster(brokers=2, tea=1) as cluster, AsyncAdmin(**cluster.options()) as admin:
        for broker in cluster.brokers:
            stats = TopicStatsTable(offsets={MessageQueue("tea", broker.name, 0): TopicOffset(0, 10, 99)}).encode()
            answer = partial(lambda body, _peer, frame: reply(frame, body=body), stats)
            broker.script(RequestCode.GET_TOPIC_STATS_INFO, *[answer] * 5)
        assert await admin.master_stats("tea") == await admin.topic_stats("tea")
        cluster.brokers[1].broker_id = 1  # a slave alone
        assert len(await admin.topic_stats("tea")) == 2
        assert {queue.broker for queue in await admin.master_stats("tea", partial=True)} == {"broker-0"}
        with pytest.raises(NoRoute, match="broker 'broker-1' has no master, so"):
            await admin.master_stats("tea")


@on_loop
async def test_a_broker_is_named_by_name_or_address() -> None:
    table = KVTable(table={"brokerVersionDesc": "V5"}).encode()
    async with fake_cluster() as cluster, AsyncAdmin(**cluster.options()) as admin:
        for broker in ("broker-0", cluster.broker.address):
            cluster.broker.script(RequestCode.GET_BROKER_RUNTIME_INFO, lambda peer, frame: reply(frame, body=table))
            assert await admin.runtime_info(broker) == {"brokerVersionDesc": "V5"}
        with pytest.raises(InvalidParameter, match="nobody"):
            await admin.runtime_info("nobody")


@on_loop
async def test_settings_travel_as_properties_text() -> None:
    async with fake_cluster() as cluster, AsyncAdmin(**cluster.options()) as admin:
        body = b"a=1\n# said\nb=x\\:y\n"
        cluster.broker.script(RequestCode.GET_BROKER_CONFIG, lambda peer, frame: reply(frame, body=body))
        assert await admin.broker_config("broker-0") == {"a": "1", "b": "x:y"}
        cluster.broker.script(RequestCode.UPDATE_BROKER_CONFIG, ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR)
        await admin.update_broker_config("broker-0", {"flushDiskType": "SYNC_FLUSH"})
        assert b"flushDiskType=SYNC_FLUSH" in cluster.broker.seen(RequestCode.UPDATE_BROKER_CONFIG)[0].body
        with pytest.raises(BrokerError, match="scripted 1"):
            await admin.update_broker_config("broker-0", {"listenPort": "1"})


@on_loop
async def test_consumers_are_found_wherever_they_are_connected() -> None:
    connected = ConsumerConnection().encode()
    code = RequestCode.GET_CONSUMER_CONNECTION_LIST
    async with fake_cluster(brokers=2) as cluster, AsyncAdmin(**cluster.options()) as admin:
        cluster.brokers[0].script(code, ResponseCode.CONSUMER_NOT_ONLINE, ResponseCode.CONSUMER_NOT_ONLINE)
        cluster.brokers[1].script(
            code, lambda peer, frame: reply(frame, body=connected), ResponseCode.CONSUMER_NOT_ONLINE
        )
        assert (await admin.consumers("g")).connections == []
        with pytest.raises(ConsumerOffline):
            await admin.consumers("g")


@on_loop
async def test_resetting_says_when() -> None:
    code = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
    async with fake_cluster(tea=1) as cluster, AsyncAdmin(**cluster.options()) as admin:
        cluster.broker.script(code, *[lambda peer, frame: reply(frame, body=b'{"offsetTable":{}}')] * 2)
        await admin.reset_offset("g", "tea")
        await admin.reset_offset("g", "tea", 123)
        headers = [ResetOffsetByBroker.decode(frame.ext) for frame in cluster.broker.seen(code)]
        assert [(header.timestamp, header.queue_id, header.force) for header in headers] == [
            (-1, -1, True),
            (123, -1, True),
        ]


@on_loop
async def test_no_broker_at_all_says_what_to_do() -> None:
    async with fake_cluster(brokers=0) as cluster, AsyncAdmin(**cluster.options()) as admin:
        with pytest.raises(NoRoute, match="no broker is registered"):
            await admin.create_topic("tea")


@on_loop
async def test_a_closed_admin_says_so() -> None:
    async with fake_cluster() as cluster:
        admin = AsyncAdmin(**cluster.options())
        await admin.topics()
        await admin.close()
        with pytest.raises(ClientClosed):
            await admin.topics()
