"""From bytes to requests: sizes, order, and what is answered instead of being read."""

from __future__ import annotations

import asyncio
import struct
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from kappamq.clock import SystemClock
from kappamq.config.net import NetConfig
from kappamq.net.channel import Channel
from kappamq.net.requests.reader import InOrder, RequestReader
from kappamq.net.requests.sizes import RequestLimit
from kappamq.net.serving.connection import Connection
from kappamq.net.serving.server import FrameServer
from kappamq.protocol.bodies.clients import LockBatch
from kappamq.protocol.frame import Frame, reply
from tests.waiting import eventually_async

LOCK, PLAIN = 41, 30
SIZES = {LOCK: RequestLimit("list_bytes_max", kind=LockBatch), PLAIN: RequestLimit()}
BIG = b'{"clientId":"' + b"x" * 8000 + b'"}'


class Service:
    """Notes what it is asked, in order."""

    def __init__(self, handle: Callable[[Frame], Any]) -> None:
        self._handle = handle
        self.asked: list[Frame] = []

    def handle(self, connection: Connection, frame: Frame) -> Any:
        self.asked.append(frame)
        return self._handle(frame)

    def connection_lost(self, connection: Connection) -> None: ...


@asynccontextmanager
async def serving(
    handle: Callable[[Frame], Any] = reply, **net: Any
) -> AsyncIterator[tuple[Service, Channel, FrameServer]]:
    service = Service(handle)
    server = FrameServer(service, NetConfig(**net), SystemClock(), SIZES)
    port = await server.start("127.0.0.1", 0)
    channel = await Channel.connect(f"127.0.0.1:{port}")
    try:
        yield service, channel, server
    finally:
        channel.close()
        await server.stop()


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 60))


def test_large_bodies_are_read_beside_the_loop_and_order_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        threads: list[int] = []
        plain_decode = LockBatch.decode

        def decode(data: bytes, **options: Any) -> LockBatch:
            threads.append(threading.get_ident())
            return plain_decode(data, **options)

        monkeypatch.setattr(LockBatch, "decode", decode)
        async with serving() as (service, channel, _):
            asked = [Frame(LOCK, body=BIG), Frame(PLAIN), Frame(LOCK, body=BIG), Frame(PLAIN)]
            answers = await asyncio.gather(*(channel.request(frame, timeout=20) for frame in asked))
            assert [answer.code for answer in answers] == [0] * 4
            assert [frame.code for frame in service.asked] == [LOCK, PLAIN, LOCK, PLAIN]
            assert service.asked[0].parsed.client_id == "x" * 8000
            assert len(threads) == 2
            assert threading.get_ident() not in threads

    run(test())


def test_what_follows_waits_for_a_handler_that_asks_for_it() -> None:
    async def test() -> None:
        go_on = asyncio.Event()

        async def slowly(frame: Frame) -> Frame:
            await go_on.wait()
            return reply(frame)

        def handle(frame: Frame) -> Frame | InOrder | Awaitable[Frame]:
            return InOrder(slowly(frame)) if frame.code == LOCK else reply(frame)

        async with serving(handle) as (service, channel, _):
            first = asyncio.create_task(channel.request(Frame(LOCK), timeout=20))
            second = asyncio.create_task(channel.request(Frame(PLAIN), timeout=20))
            await eventually_async(lambda: service.asked, pause=0)
            for _ in range(50):
                await asyncio.sleep(0)
            assert [frame.code for frame in service.asked] == [LOCK]
            go_on.set()
            await asyncio.gather(first, second)
            assert [frame.code for frame in service.asked] == [LOCK, PLAIN]

    run(test())


def test_bodies_that_cannot_be_read_are_answered() -> None:
    async def test() -> None:
        async with serving() as (service, channel, _):
            answer = await channel.request(Frame(LOCK, body=b"{" * 8000), timeout=20)
            assert answer.code == 1
            assert "not JSON" in (answer.remark or "")
            assert not service.asked
            assert (await channel.request(Frame(PLAIN), timeout=20)).code == 0

    run(test())


def test_long_headers_are_answered_when_they_have_come() -> None:
    async def test() -> None:
        async with serving(header_bytes_max=2048) as (service, channel, _):
            for binary in (False, True):
                answer = await channel.request(Frame(PLAIN, ext={"a": "x" * 300_000}, binary=binary), timeout=20)
                assert answer.code == 1
                assert answer.binary is binary
                assert "net.header_bytes_max" in (answer.remark or "")
            assert not service.asked
            assert (await channel.request(Frame(PLAIN), timeout=20)).code == 0

    run(test())


@pytest.mark.parametrize(
    "header", [b"{code:30,x:'" + b"x" * 5000 + b"'}", b"{code:30,opaque:99999999999,x:'" + b"x" * 5000 + b"'}"]
)
def test_what_does_not_say_where_an_answer_belongs_ends_the_connection(header: bytes) -> None:
    async def test() -> None:
        async with serving() as (service, _, server):
            port = server._sockets[0].getsockname()[1]
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(struct.pack(">ii", 4 + len(header), len(header)) + header)
            assert await reader.read() == b""
            writer.close()
            assert not service.asked

    run(test())


def test_slow_requests_of_one_peer_do_not_fill_a_turn() -> None:
    """Thirty requests that take 3 ms each, in one read of the socket, and one of somebody else: it is not the last."""

    async def test() -> None:
        def handle(frame: Frame) -> Frame:
            if frame.code == LOCK:
                until = asyncio.get_running_loop().time() + 0.003
                while asyncio.get_running_loop().time() < until:
                    pass
            return reply(frame)

        async with serving(handle) as (service, channel, server):
            port = server._sockets[0].getsockname()[1]
            other = await Channel.connect(f"127.0.0.1:{port}")
            costly = [asyncio.create_task(channel.request(Frame(LOCK), timeout=20)) for _ in range(30)]
            await asyncio.sleep(0)
            cheap = asyncio.create_task(other.request(Frame(PLAIN), timeout=20))
            await asyncio.gather(cheap, *costly)
            codes = [frame.code for frame in service.asked]
            assert codes.index(PLAIN) < 20
            other.close()

    run(test())


def test_a_server_is_starting_until_it_is_ready_or_gives_up() -> None:
    async def test() -> None:
        ready, given_up = RequestReader({}, NetConfig()), RequestReader({}, NetConfig())
        watch = ready.watch
        assert watch._starting == 2
        ready.start()
        assert watch._starting == 1
        given_up.stop()
        ready.stop()
        assert watch._starting == 0
        ready.start()
        ready.stop()
        assert watch._starting == 0, "each ends one start"

    run(test())
