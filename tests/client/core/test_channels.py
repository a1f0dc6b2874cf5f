from __future__ import annotations

import asyncio

import pytest

from kappamq.client.core.channels import Channels
from kappamq.errors import ClientClosed, NotConnected, RequestTimeout
from kappamq.net.channel import Channel
from kappamq.protocol.codes import RequestCode
from kappamq.protocol.headers.client import GetMaxOffset, HeartBeat
from tests.client.fake import FakeBroker, fake_cluster, hang_up, never
from tests.client.loop import on_loop
from tests.waiting import eventually_async

MAX = GetMaxOffset(topic="tea", queue_id=0)


def channels(**options: object) -> Channels:
    return Channels(connect_timeout=10.0, pending_max=100, **options)  # type: ignore[arg-type]


@on_loop
async def test_all_who_need_an_address_share_one_connection() -> None:
    async with fake_cluster() as cluster:
        pool = channels()
        found = await asyncio.gather(*(pool.get(cluster.broker.address) for _ in range(5)))
        assert len({id(channel) for channel in found}) == 1
        await eventually_async(lambda: len(cluster.broker.peers) == 1)
        await pool.close()
        assert not found[0].is_open
        with pytest.raises(ClientClosed):
            await pool.get(cluster.broker.address)


@on_loop
async def test_a_new_connection_is_introduced_before_anyone_uses_it() -> None:
    async def introduce(channel: Channel) -> None:
        await channel.request(HeartBeat(), b"{}")

    async with fake_cluster() as cluster:
        pool = channels(on_open=introduce)
        await asyncio.gather(*(pool.request(cluster.broker.address, MAX, b"", 1.0) for _ in range(3)))
        codes = [frame.code for frame in cluster.broker.requests]
        assert codes == [RequestCode.HEART_BEAT, *[RequestCode.GET_MAX_OFFSET] * 3]
        await pool.close()


@on_loop
async def test_a_connection_that_died_while_idle_is_noticed_and_replaced() -> None:
    async with fake_cluster() as cluster:
        pool = channels()
        await pool.request(cluster.broker.address, MAX, b"", 1.0)
        cluster.broker.script(RequestCode.GET_MAX_OFFSET, hang_up)
        assert (await pool.request(cluster.broker.address, MAX, b"", 1.0)).code == 0
        await pool.close()


@on_loop
async def test_every_connection_has_a_number_of_its_own() -> None:
    async with fake_cluster(brokers=2) as cluster:
        pool, (one, other) = channels(), [broker.address for broker in cluster.brokers]
        assert pool.number(one) is None
        await pool.get(one)
        await pool.get(other)
        first, second = pool.number(one), pool.number(other)
        await cluster.broker.stop()
        await eventually_async(lambda: pool.number(one) is None)
        await cluster.broker.start()
        await pool.get(one)
        assert len({first, second, pool.number(one), None}) == 4
        assert pool.number(other) == second
        await pool.close()


@on_loop
async def test_a_fresh_connection_that_dies_is_an_error() -> None:
    async with fake_cluster() as cluster:
        pool = channels()
        cluster.broker.script(RequestCode.GET_MAX_OFFSET, hang_up)
        with pytest.raises(NotConnected):
            await pool.request(cluster.broker.address, MAX, b"", 30.0)
        assert len(cluster.broker.seen(RequestCode.GET_MAX_OFFSET)) == 1
        await pool.close()


@on_loop
async def test_waiting_for_an_answer_has_an_end() -> None:
    async with fake_cluster() as cluster:
        pool = channels()
        cluster.broker.script(RequestCode.GET_MAX_OFFSET, never)
        with pytest.raises(RequestTimeout, match="GET_MAX_OFFSET"):
            await pool.request(cluster.broker.address, MAX, b"", 0.05)
        await pool.close()


@on_loop
async def test_dropping_makes_the_next_one_connect_anew() -> None:
    async with fake_cluster() as cluster:
        pool = channels()
        first = await pool.get(cluster.broker.address)
        pool.drop(cluster.broker.address)
        assert not first.is_open
        assert (await pool.get(cluster.broker.address)) is not first
        await pool.close()


@on_loop
async def test_an_attempt_that_failed_is_not_remembered() -> None:
    broker = FakeBroker("b")
    await broker.start()
    await broker.stop()
    pool = channels()
    for _ in range(2):
        with pytest.raises(NotConnected):
            await pool.get(broker.address)
    await broker.start()
    assert (await pool.get(broker.address)).is_open
    await pool.close()
    await broker.stop()


@on_loop
async def test_closing_ends_attempts_that_are_under_way() -> None:
    opening = asyncio.Event()

    async def slow(channel: Channel) -> None:
        opening.set()
        await asyncio.Event().wait()

    async with fake_cluster() as cluster:
        pool = channels(on_open=slow)
        waiting = asyncio.ensure_future(pool.get(cluster.broker.address))
        await opening.wait()
        await pool.close()
        with pytest.raises(ClientClosed):
            await waiting
        await eventually_async(lambda: not cluster.broker.peers)


@on_loop
async def test_who_asked_for_it_hears_of_lost_connections_but_not_of_closed_ones() -> None:
    lost: list[str] = []
    async with fake_cluster() as cluster:
        pool, address = channels(on_lost=lost.append), cluster.broker.address
        await pool.get(address)
        pool.drop(address)
        await pool.get(address)
        assert lost == []
        await eventually_async(lambda: len(cluster.broker.peers) == 1)
        for peer in list(cluster.broker.peers):
            peer.drop()
        await eventually_async(lambda: lost == [address])
        await pool.get(address)
        await pool.close()
        assert lost == [address]
