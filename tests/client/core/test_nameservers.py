from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from kappamq.client.core.channels import Channels
from kappamq.client.core.nameservers import NameServers
from kappamq.errors import BrokerError, NotConnected, TopicNotFound
from kappamq.protocol.bodies.topics import ClusterInfo
from kappamq.protocol.codes import RequestCode, ResponseCode
from kappamq.protocol.frame import reply
from kappamq.protocol.headers.nameserver import DeleteTopicInNameServer, GetClusterInfo, GetRoute
from tests.client.fake import FakeCluster, fake_cluster
from tests.client.loop import on_loop

ROUTE = RequestCode.GET_ROUTEINFO_BY_TOPIC


@asynccontextmanager
async def asking(cluster: FakeCluster) -> AsyncIterator[NameServers]:
    pool = Channels(connect_timeout=10.0, pending_max=100)
    yield NameServers([server.address for server in cluster.nameservers], pool, 1.0)
    await pool.close()


@on_loop
async def test_it_stays_with_one_until_that_fails_and_then_with_the_next() -> None:
    async with fake_cluster(nameservers=3, tea=1) as cluster, asking(cluster) as names:
        for _ in range(4):
            await names.request(GetRoute(topic="tea"))
        (used,) = [server for server in cluster.nameservers if server.requests]
        assert used.address == names.current
        await used.stop()
        for _ in range(3):
            await names.request(GetRoute(topic="tea"))
        (now,) = [server for server in cluster.nameservers if server.requests and server is not used]
        assert now.address == names.current
        assert len(now.requests) == 3


@on_loop
async def test_a_topic_that_one_does_not_know_is_asked_of_the_others() -> None:
    async with fake_cluster(nameservers=2) as cluster, asking(cluster) as names:
        cluster.nameservers[1].topics["tea"] = {"broker-0": 1}
        before = names.current
        assert (await names.request(GetRoute(topic="tea"))).code == 0
        assert names.current == before
        with pytest.raises(TopicNotFound, match="cake"):
            await names.request(GetRoute(topic="cake"))


@on_loop
async def test_one_that_is_down_does_not_hide_that_the_topic_is_unknown() -> None:
    async with fake_cluster(nameservers=2) as cluster, asking(cluster) as names:
        await cluster.nameservers[0].stop()
        with pytest.raises(TopicNotFound):
            await names.request(GetRoute(topic="tea"))


@on_loop
async def test_any_other_answer_is_the_answer() -> None:
    async with fake_cluster(nameservers=2) as cluster, asking(cluster) as names:
        for server in cluster.nameservers:
            server.script(RequestCode.GET_BROKER_CLUSTER_INFO, ResponseCode.SYSTEM_ERROR)
        with pytest.raises(BrokerError, match="scripted 1"):
            await names.request(GetClusterInfo())
        assert sum(len(server.requests) for server in cluster.nameservers) == 1


@on_loop
async def test_all_are_told_and_those_that_are_down_are_passed_over() -> None:
    header = DeleteTopicInNameServer(topic="tea")
    async with fake_cluster(nameservers=3) as cluster, asking(cluster) as names:
        for server in cluster.nameservers:
            server.script(RequestCode.DELETE_TOPIC_IN_NAMESRV, ResponseCode.SUCCESS)
        await cluster.nameservers[0].stop()
        await names.request_all(header)
        assert [len(server.requests) for server in cluster.nameservers] == [0, 1, 1]
        await cluster.nameservers[1].stop()
        await cluster.nameservers[2].stop()
        with pytest.raises(NotConnected, match="no name server answers"):
            await names.request_all(header)


@on_loop
async def test_whether_anybody_has_a_broker() -> None:
    empty = ClusterInfo().encode()
    async with fake_cluster(nameservers=2) as cluster, asking(cluster) as names:
        assert await names.know_a_broker()
        first, second = cluster.nameservers
        first.script(RequestCode.GET_BROKER_CLUSTER_INFO, lambda peer, frame: reply(frame, body=empty))
        assert await names.know_a_broker(), "the other one has"
        for server in (first, second):
            server.script(RequestCode.GET_BROKER_CLUSTER_INFO, lambda peer, frame: reply(frame, body=empty))
        assert not await names.know_a_broker()
        first.script(RequestCode.GET_BROKER_CLUSTER_INFO, lambda peer, frame: reply(frame, body=empty))
        await second.stop()
        assert await names.know_a_broker(), "nobody knows"
