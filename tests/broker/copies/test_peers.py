"""A member's connection to another one: what is said in order, also behind what is still being read, and what happens if that fails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from kappamq.broker.copies.peers import MemberLink, Peer
from kappamq.config.copies import CopiesConfig
from kappamq.errors import StoreError
from kappamq.native import pure
from kappamq.replication.greeting import MemberHello
from tests.broker.running import run
from tests.waiting import eventually_async

HOST = "127.0.0.1"


class Side:
    """One of two members: what it hears, and of which connections."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.config = CopiesConfig(
            group="g", members={"n0": f"{HOST}:1", "n1": f"{HOST}:2", "n2": f"{HOST}:3"}, member=name
        )
        self.heard: list[bytes] = []
        self.connections = 0
        self.losses = 0

    def ours(self) -> MemberHello:
        return MemberHello(
            cluster="c", name="b", group="g", members="n0,n1,n2", member=self.name, address=f"{HOST}:9", segment_bytes=1 << 20,
            delay_levels="1s", term=0, end=0, group_id="",
        )  # fmt: skip

    def connected(self, hello: MemberHello) -> None:
        self.connections += 1

    def disconnected(self, member: str) -> None:
        self.losses += 1

    def received(self, member: str, content: bytes) -> None:
        self.heard.append(content)


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[Side, Side, Peer]]:
    here, there = Side("n0"), Side("n1")
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: MemberLink(there, pure.crc32, lambda link: None), HOST, 0)
    port = server.sockets[0].getsockname()[1]
    peer = Peer(here, "n1", f"{HOST}:{port}", pure.crc32)
    try:
        await eventually_async(lambda: peer.is_connected)
        yield here, there, peer
    finally:
        await peer.stop()
        server.close()


def test_what_is_being_read_keeps_its_place() -> None:
    async def test() -> None:
        async with connected() as (_here, there, peer):
            read: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
            peer.say(b"first")
            peer.say_later(read)
            peer.say(b"third")
            await eventually_async(lambda: there.heard == [b"first"])
            read.set_result(b"second")
            await eventually_async(lambda: there.heard == [b"first", b"second", b"third"])

    run(test())


def test_what_cannot_be_read_ends_the_connection_and_a_new_one_begins() -> None:
    """Else the other member would wait for ever for what nobody reads again."""

    async def test() -> None:
        async with connected() as (here, there, peer):
            read: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
            peer.say_later(read)
            peer.say(b"behind it")
            read.set_exception(StoreError("the log cannot be read at 7"))
            await eventually_async(lambda: here.connections == 2 and here.losses == 1)
            assert there.heard == []
            peer.say(b"anew")
            await eventually_async(lambda: there.heard == [b"anew"])

    run(test())
