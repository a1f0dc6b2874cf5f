"""The operator's side as a whole: every request of the tools has its answer."""

from __future__ import annotations

import asyncio
from pathlib import Path

from kappamq.broker.broker import Broker
from kappamq.broker.requests.table import REQUESTS
from kappamq.clock import SystemClock
from kappamq.config.nameserver import NameServerConfig
from kappamq.nameserver.nameserver import NameServer
from kappamq.net.channel import Channel
from kappamq.protocol.bodies.topics import TopicRouteData
from kappamq.protocol.codes import RequestCode
from kappamq.protocol.frame import Frame
from kappamq.protocol.headers.admin import DeleteTopic
from kappamq.protocol.headers.nameserver import GetRoute
from tests.broker.admin.test_settings import change
from tests.broker.operating import make_topic, ok, on_broker
from tests.broker.running import Speaker, running, speaking
from tests.waiting import eventually_async as eventually

NAME_SERVER_ONLY = set(range(100, 107)) | {
    205, 206, 216, 217, 219, 224, 304, 311, 312, 313, 318, 319, 322, 327, 901, 904, 905,
}  # fmt: skip
BROKER_TO_CLIENT = {40, 220, 221, 326}


@on_broker()
async def test_every_code_has_a_handler(broker: Broker, client: Speaker) -> None:
    known = set(REQUESTS)
    missing = [code.name for code in RequestCode if code not in known | NAME_SERVER_ONLY | BROKER_TO_CLIENT]
    assert not missing


@on_broker()
async def test_requests_without_a_header_or_body_are_answered(broker: Broker, client: Speaker) -> None:
    """Whatever is missing: an answer with a reason, and the connection lives on."""
    for code in REQUESTS:
        answer = await client.channel.request(Frame(code=code), timeout=10)
        assert answer.code == 0 or answer.remark, code
    assert client.channel.is_open


def test_a_topic_is_in_the_route_when_its_making_is_answered(tmp_path: Path) -> None:
    async def main() -> None:
        clock = SystemClock()
        servers = [
            NameServer(NameServerConfig(port=0, listen_host="127.0.0.1", root=tmp_path / name), clock)
            for name in ("one", "two")
        ]
        for server in servers:
            await server.start()
        try:
            first, second = (f"127.0.0.1:{server.port}" for server in servers)
            async with running(tmp_path / "b", nameservers=(first,)) as broker, speaking(broker) as client:
                channels = [await Channel.connect(address) for address in (first, second)]

                async def route(number: int, topic: str) -> TopicRouteData | None:
                    answer = await channels[number].request(GetRoute(topic=topic))
                    return TopicRouteData.decode(answer.body) if answer.code == 0 else None

                await make_topic(client, "t", 3)
                found = await route(0, "t")
                assert found is not None
                assert (found.queues[0].read_queues, found.queues[0].permission) == (3, 6)
                await make_topic(client, "t", 5)
                found = await route(0, "t")
                assert found is not None
                assert found.queues[0].read_queues == 5

                # The broker as a whole stops taking messages: routes say so.
                await change(client, brokerPermission="4")
                await broker.registration.announced()
                found = await route(0, "t")
                assert found is not None
                assert found.queues[0].permission == 4

                # Another name server, at run time.
                assert await route(1, "t") is None
                await change(client, namesrvAddr=second)
                await eventually(lambda: route(1, "t"))
                await asyncio.gather(*broker.registration._leaving)
                assert await route(0, "t") is None, "the old one was told that we left"
                await ok(client, DeleteTopic(topic="t"))
                for channel in channels:
                    channel.close()
        finally:
            for server in servers:
                await server.stop()

    asyncio.run(main())
