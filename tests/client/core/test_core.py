from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from kappamq.client.admin.admin import AsyncAdmin
from kappamq.client.consumer.consumer import AsyncConsumer
from kappamq.client.consumer.pull_consumer import AsyncPullConsumer
from kappamq.client.core import core as sharing
from kappamq.client.core.core import every, local_host
from kappamq.client.producer.producer import AsyncProducer
from kappamq.errors import Busy, ClientClosed, MaybeStored, NotConnected
from kappamq.message import Message, MessageQueue
from kappamq.protocol.codes import RequestCode, ResponseCode
from kappamq.protocol.frame import Frame, reply
from kappamq.protocol.headers.client import GetMaxOffset, OffsetResponse
from kappamq.protocol.leader_hint import not_known
from tests.client.fake import Peer, fake_cluster
from tests.client.loop import on_loop
from tests.waiting import eventually_async

MAX = GetMaxOffset(topic="tea", queue_id=0)
QUEUE = MessageQueue("tea", "broker-0", 0)


@on_loop
async def test_clients_of_one_name_server_share_connections_and_id() -> None:
    async with fake_cluster(tea=1) as cluster:
        options = cluster.options()
        async with AsyncProducer(**options, group="a") as first, AsyncProducer(**options, group="b") as second:
            await first.send(Message("tea", b"x"))
            await second.send(Message("tea", b"x"))
            assert first.running() is second.running()
            assert len(cluster.broker.peers) == 1
            # The second group joined on an open connection, and is not left to the next regular heartbeat.
            await eventually_async(lambda: cluster.broker.producers == {"a", "b"})
            async with AsyncProducer(**{**options, "compress_level": 1}) as stranger:
                assert stranger.running() is not first.running(), "nobody's options are ignored"
        await eventually_async(lambda: not cluster.broker.peers)


@on_loop
async def test_two_consumers_of_a_group_are_two_clients_but_of_two_groups_one() -> None:
    async with fake_cluster(tea=2) as cluster:
        options = cluster.options(topics="tea")
        async with (
            AsyncConsumer(**options, group="g"),
            AsyncConsumer(**options, group="g"),
            AsyncConsumer(**options, group="h"),
        ):
            assert len(cluster.broker.groups["g"]) == 2
            assert set(cluster.broker.groups["h"]) < set(cluster.broker.groups["g"])


@on_loop
async def test_heartbeats_come_by_themselves() -> None:
    async with fake_cluster(tea=1) as cluster, AsyncProducer(**cluster.options(heartbeat_ms=20)) as producer:
        await producer.send(Message("tea", b"x"))
        await eventually_async(lambda: len(cluster.broker.seen(RequestCode.HEART_BEAT)) >= 4)


@on_loop
async def test_routes_are_asked_again_by_themselves() -> None:
    async with fake_cluster(tea=1) as cluster, AsyncProducer(**cluster.options(route_poll_ms=20)) as producer:
        await producer.send(Message("tea", b"x"))
        cluster.create("tea", 5)
        await eventually_async(lambda: producer.running().routes.cached("tea").publish[-1].queue_id == 4)  # type: ignore[union-attr]


@on_loop
async def test_an_answer_that_is_not_accepted_is_raised_as_its_error() -> None:
    async with fake_cluster(tea=1) as cluster, AsyncAdmin(**cluster.options()) as admin:
        core = admin.start()
        cluster.broker.script(RequestCode.GET_MAX_OFFSET, ResponseCode.SYSTEM_BUSY)
        with pytest.raises(Busy, match="scripted 2"):
            await core.ask(cluster.broker.address, MAX)


@on_loop
async def test_a_server_that_goes_away_is_asked_again_on_a_new_connection() -> None:
    async with fake_cluster(tea=1) as cluster, AsyncAdmin(**cluster.options()) as admin:
        cluster.broker.script(RequestCode.GET_MAX_OFFSET, ResponseCode.GO_AWAY)
        answer = await admin.start().ask(cluster.broker.address, MAX)
        assert OffsetResponse.decode(answer.ext).offset == 0


@on_loop
async def test_what_may_have_been_done_is_asked_for_again_only_if_it_may_be_done_twice() -> None:
    """The master was deposed while it worked."""

    def maybe(peer: Peer, frame: Frame) -> Frame:
        return reply(frame, ResponseCode.SERVICE_NOT_AVAILABLE, not_known("another broker leads now"))

    async with fake_cluster(tea=1) as cluster, AsyncAdmin(**cluster.options()) as admin:
        core = admin.start()
        cluster.broker.script(RequestCode.GET_MAX_OFFSET, maybe)
        assert (await core.ask_master("tea", "broker-0", MAX)).code == 0
        assert len(cluster.broker.seen(RequestCode.GET_MAX_OFFSET)) == 2
        cluster.broker.script(RequestCode.GET_MAX_OFFSET, maybe)
        with pytest.raises(MaybeStored):
            await core.ask_master("tea", "broker-0", MAX, again=False)
        assert len(cluster.broker.seen(RequestCode.GET_MAX_OFFSET)) == 3


@on_loop
async def test_a_queue_is_asked_at_its_new_address_after_a_move() -> None:
    async with fake_cluster(tea=1) as cluster, AsyncAdmin(**cluster.options()) as admin:
        core = admin.start()
        await core.ask_queue(QUEUE, MAX)
        await cluster.broker.stop()
        with pytest.raises(NotConnected):
            await core.ask_queue(QUEUE, MAX)
        cluster.broker.port = 0
        await cluster.broker.start()
        assert (await core.ask_queue(QUEUE, MAX)).code == 0


@on_loop
async def test_a_closed_core_says_so() -> None:
    async with fake_cluster(tea=1) as cluster, AsyncAdmin(**cluster.options()) as admin:
        core = admin.start()
        await admin.close()
        with pytest.raises(ClientClosed):
            await core.ask(cluster.broker.address, MAX)
        with pytest.raises(ClientClosed):
            await core.ask_nameserver(MAX)


@on_loop
async def test_a_core_lives_as_long_as_its_last_user() -> None:
    async with fake_cluster(tea=1) as cluster:
        admin = AsyncAdmin(**cluster.options())
        core = admin.start()
        again = sharing.acquire(admin.config)
        assert again is core
        await admin.close()
        await core.ask(cluster.broker.address, MAX)
        await sharing.release(again)
        with pytest.raises(ClientClosed):
            await core.ask(cluster.broker.address, MAX)
        new = sharing.acquire(admin.config)
        assert new is not core
        await sharing.release(new)


@on_loop
async def test_work_that_fails_is_reported_and_done_again(caplog: pytest.LogCaptureFixture) -> None:
    done: list[int] = []

    async def work() -> None:
        done.append(1)
        raise Busy("not now") if len(done) == 1 else ValueError("a bug")

    with caplog.at_level(logging.WARNING):
        task = asyncio.create_task(every(0.001, work, "the work"))
        await eventually_async(lambda: len(done) > 2)
        task.cancel()
    assert "the work failed: not now" in caplog.text
    assert "a bug" in caplog.text


def test_the_client_id_shows_where_we_are() -> None:
    assert local_host("127.0.0.1:9876") == "127.0.0.1"
    assert local_host("[::1]:9876") in ("::1", __import__("socket").gethostname())
    assert local_host("some.name:9876")  # no look-up, so no waiting


@on_loop
async def test_what_a_broker_says_about_a_group_is_a_warning_once(caplog: pytest.LogCaptureFixture) -> None:
    """As when members of the group subscribe differently: the beat is taken, and its answer has a remark."""
    async with fake_cluster(tea=1) as cluster:
        for _ in range(3):
            cluster.broker.script(RequestCode.HEART_BEAT, ResponseCode.SUCCESS)
        async with AsyncProducer(**cluster.options(heartbeat_ms=20)) as producer:
            await producer.send(Message("tea", b"x"))
            await eventually_async(lambda: len(cluster.broker.seen(RequestCode.HEART_BEAT)) >= 6)
    assert [
        message for message in caplog.messages if "reports a problem with our consumer groups: scripted 0" in message
    ] == [f"broker {cluster.broker.address} reports a problem with our consumer groups: scripted 0"]


@pytest.mark.parametrize("make", [AsyncProducer, AsyncAdmin, lambda: AsyncPullConsumer(group="g")])
def test_a_closed_client_says_what_to_do(make: Callable[[], Any]) -> None:
    async def main() -> None:
        client = make()
        await client.close()
        with pytest.raises(ClientClosed, match="is closed: create a new one"):
            client.running() if isinstance(client, AsyncProducer) else client.start()

    asyncio.run(main())
