"""A broker that starts: nobody gets in before everything is in its place."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kappamq.broker.naming.registration import Registration
from kappamq.errors import NotConnected
from kappamq.net.channel import Channel
from kappamq.ports import choose_port
from tests.broker.running import running, speaking


def test_clients_that_know_the_port_wait_until_it_is_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        asked, go_on = asyncio.Event(), asyncio.Event()

        async def slow(self: Registration) -> None:
            asked.set()
            await go_on.wait()
            self._address.learn("127.0.0.1")

        monkeypatch.setattr(Registration, "learn_address", slow)
        port = choose_port("broker", "127.0.0.1", 0, 0, (0, -2))

        async def serve() -> None:
            async with running(tmp_path, port=port) as broker, speaking(broker) as client:
                sent = await client.send("t", b"x")
                assert (sent.code, sent.ext["msgId"][:8]) == (0, "7F000001"), "the host of an id is known by then"

        serving = asyncio.create_task(serve())
        await asked.wait()
        with pytest.raises(NotConnected):
            await Channel.connect(f"127.0.0.1:{port}")
        go_on.set()
        await serving

    asyncio.run(main())
