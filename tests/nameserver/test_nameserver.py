"""A name server on a real socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from kappamq.clock import SystemClock
from kappamq.config.nameserver import NameServerConfig
from kappamq.errors import ConfigError
from kappamq.nameserver.nameserver import NameServer
from kappamq.net.channel import Channel
from kappamq.protocol.bodies.all import TopicRouteData
from kappamq.protocol.codes import RequestCode, ResponseCode
from kappamq.protocol.frame import Frame, request
from kappamq.protocol.headers.nameserver import GetKv, GetRoute, PutKv
from tests.nameserver.samples import body, header
from tests.net.openings import HELLO_H2, V2
from tests.net.running import connected
from tests.waiting import eventually_async


@asynccontextmanager
async def running(**options: Any) -> AsyncIterator[NameServer]:
    server = NameServer(NameServerConfig(listen_host="127.0.0.1", port=0, **options), SystemClock())
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


async def route_code(channel: Channel) -> int:
    return (await channel.request(GetRoute(topic="T"))).code


def test_broker_comes_and_goes() -> None:
    async def scenario() -> None:
        async with running() as server:
            assert server.address == f"127.0.0.1:{server.port}"
            broker = await Channel.connect(server.address)
            client = await Channel.connect(server.address)
            assert await route_code(client) == ResponseCode.TOPIC_NOT_EXIST
            await broker.request(header(address="127.0.0.1:10911"), body().encode())
            answer = await client.request(GetRoute(topic="T"))
            assert TopicRouteData.decode(answer.body).brokers[0].addresses == {0: "127.0.0.1:10911"}
            broker.close()

            await eventually_async(lambda: not server.service.routes.topics(), text="the closed broker's route")
            assert await route_code(client) == ResponseCode.TOPIC_NOT_EXIST
            client.close()

    asyncio.run(scenario())


def test_clients_come_through_a_proxy_and_strangers_are_told(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with running() as server, connected(server.port) as client, connected(server.port) as stranger:
            await client.say(V2 + request(GetRoute(topic="T")).encode())
            assert (await client.frame()).code == ResponseCode.TOPIC_NOT_EXIST
            await stranger.say(HELLO_H2)
            assert await stranger.closed()

    asyncio.run(scenario())
    assert [("gRPC" in record.message, record.levelname) for record in caplog.records] == [(True, "WARNING")]


def test_errors_are_answers() -> None:
    async def scenario() -> None:
        async with running() as server:
            channel = await Channel.connect(server.address)
            for frame, code, text in (
                (Frame(code=9999), ResponseCode.REQUEST_CODE_NOT_SUPPORTED, " request type 9999 not supported"),
                (Frame(code=105), ResponseCode.SYSTEM_ERROR, "field 'topic' of GetRoute is missing"),
                (
                    Frame(code=105, ext={"topic": "x"}, binary=True),
                    ResponseCode.TOPIC_NOT_EXIST,
                    "No topic route info in name server for the topic: x",
                ),
            ):
                answer = await channel.request(frame)
                assert answer.code == code
                assert answer.remark is not None
                assert answer.remark.startswith(text)
                assert answer.binary == frame.binary
            channel.close()

    asyncio.run(scenario())


def test_kv_survives_a_restart(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(root=tmp_path) as server:
            channel = await Channel.connect(server.address)
            assert (await channel.request(PutKv(namespace="ns", key="k", value="v"))).code == 0
            channel.close()
        async with running(root=tmp_path) as server:
            channel = await Channel.connect(server.address)
            assert (await channel.request(GetKv(namespace="ns", key="k"))).ext == {"value": "v"}
            channel.close()

    asyncio.run(scenario())


def test_who_sends_beats_is_missed_between_the_scans() -> None:
    async def scenario() -> None:
        async with running(scan_ms=3_600_000) as server:
            closed = asyncio.Event()
            broker = await Channel.connect(server.address, on_closed=lambda _: closed.set())
            await broker.request(header(timeout_ms=50), body().encode())
            async with asyncio.timeout(10):
                await closed.wait()
            assert server.service.routes.topics() == []

    asyncio.run(scenario())


def test_a_name_server_that_stood_still_blames_nobody(caplog: pytest.LogCaptureFixture) -> None:
    class Jumping(SystemClock):
        ahead = 0.0

        def liveness(self) -> float:
            return super().liveness() + self.ahead

    async def scenario() -> None:
        clock = Jumping()
        server = NameServer(NameServerConfig(listen_host="127.0.0.1", port=0), clock)
        await server.start()
        broker = await Channel.connect(server.address)
        try:
            await broker.request(header(timeout_ms=60_000), body().encode())
            scans = []
            expire = server.service.expire
            server.service.expire = lambda **how: (scans.append(how), expire(**how))[1]  # type: ignore[method-assign, func-returns-value]
            await eventually_async(lambda: scans)
            Jumping.ahead = 61.0  # what a suspended process sees when it goes on
            await eventually_async(lambda: "stood still" in caplog.text)
            assert server.service.routes.topics() == ["T", "U"]
            await broker.request(GetRoute(topic="T"))
            scans.clear()
            await eventually_async(lambda: scans)
            assert server.service.routes.topics() == ["T", "U"], "it was heard before the next scan"
        finally:
            broker.close()
            await server.stop()

    asyncio.run(scenario())


def test_silent_broker_is_scanned_away_and_closed() -> None:
    async def scenario() -> None:
        async with running(scan_ms=10) as server:
            closed = asyncio.Event()
            broker = await Channel.connect(server.address, on_closed=lambda _: closed.set())
            await broker.request(header(timeout_ms=50), body().encode())
            async with asyncio.timeout(10):
                await closed.wait()
            assert server.service.routes.topics() == []

    asyncio.run(scenario())


def test_group_is_told_about_its_smallest_id() -> None:
    async def scenario() -> None:
        async with running(notify_min_broker_id=True) as server, running() as other:
            told: asyncio.Queue[Frame] = asyncio.Queue()
            # Any server will do as the slave that is told; this one has no handler for it, so listen in between.
            other.service._handlers[RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE] = lambda _, frame: told.put_nowait(frame)
            channel = await Channel.connect(server.address)
            await channel.request(header(address=other.address, broker_id=1), body().encode())
            await channel.request(request(header(address="127.0.0.1:1"), body().encode()))
            async with asyncio.timeout(10):
                frames = [await told.get(), await told.get()]
            found = sorted((frame.ext["minBrokerId"], frame.ext["minBrokerAddr"]) for frame in frames)
            assert found == [("0", "127.0.0.1:1"), ("1", other.address)]
            assert all(frame.is_oneway for frame in frames)
            channel.close()

    asyncio.run(scenario())


def test_taken_port() -> None:
    async def scenario() -> None:
        async with running() as server:
            second = NameServer(NameServerConfig(listen_host="127.0.0.1", port=server.port), SystemClock())
            with pytest.raises(ConfigError, match=f"port {server.port} is in use"):
                await second.start()
            await second.stop()
            await second.stop()

    asyncio.run(scenario())
