"""Every request to a name server has a size it may have, and a refusal is an answer."""

from __future__ import annotations

import asyncio

from kappamq.clock import SystemClock
from kappamq.config.nameserver import NameServerConfig
from kappamq.config.net import NetConfig
from kappamq.nameserver.nameserver import NameServer
from kappamq.nameserver.request_sizes import REQUEST_SIZES
from kappamq.net.channel import Channel
from kappamq.protocol.codes import RequestCode, ResponseCode
from kappamq.protocol.frame import Frame
from kappamq.protocol.headers.nameserver import GetRoute


def test_every_code_is_in_the_table_and_every_limit_is_a_setting() -> None:
    assert set(RequestCode) <= REQUEST_SIZES.keys()
    for limit in REQUEST_SIZES.values():
        assert getattr(NetConfig(), limit.body) > 0
        assert getattr(NetConfig(), limit.header) > 0


def test_what_is_too_large_is_refused_and_the_connection_goes_on() -> None:
    async def test() -> None:
        server = NameServer(NameServerConfig(listen_host="127.0.0.1", port=0), SystemClock())
        await server.start()
        channel = await Channel.connect(server.address)
        try:
            answer = await channel.request(GetRoute(topic="t"), bytes(100_000), timeout=20)
            assert answer.code == ResponseCode.INVALID_PARAMETER
            assert "net.request_bytes_max" in (answer.remark or "")
            long = Frame(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext={"topic": "t" * 300_000})
            answer = await channel.request(long, timeout=20)
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert "net.header_bytes_max" in (answer.remark or "")
            assert (await channel.request(GetRoute(topic="t"), timeout=20)).code == ResponseCode.TOPIC_NOT_EXIST
        finally:
            channel.close()
            await server.stop()

    asyncio.run(asyncio.wait_for(test(), 60))
