"""A real server on loopback for tests of net/: who receives, what time it is, and a peer that writes single bytes."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from kappamq.clock import Clock, SystemClock
from kappamq.config.net import NetConfig
from kappamq.net.serving.connection import Connection, Receiver
from kappamq.net.serving.server import FrameServer, Server
from kappamq.protocol.frame import Frame, FrameDecoder, reply

Answer = Frame | Awaitable[Frame | None] | None


class Echo:
    """A FrameService: answers with the body it got, or as `answer` says."""

    def __init__(self, answer: Callable[[Connection, Frame], Answer] | None = None) -> None:
        self.answer = answer or (lambda connection, frame: reply(frame, body=frame.body))
        self.seen: list[Frame] = []
        self.lost: list[Connection] = []

    def handle(self, connection: Connection, frame: Frame) -> Answer:
        self.seen.append(frame)
        return self.answer(connection, frame)

    def connection_lost(self, connection: Connection) -> None:
        self.lost.append(connection)


class Peer:
    """Somebody at the other end of a socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._decoder = FrameDecoder(16 << 20)
        self._frames: list[Frame] = []

    async def say(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def frame(self) -> Frame:
        """The next frame that comes."""
        while not self._frames:
            data = await asyncio.wait_for(self.reader.read(65_536), 10)
            assert data, "the server closed the connection"
            self._frames += self._decoder.feed(data)
        return self._frames.pop(0)

    async def closed(self) -> bool:
        """Wait for the end; whatever else comes is an error."""
        try:
            rest = await asyncio.wait_for(self.reader.read(), 10)
        except ConnectionError:
            return True
        return not rest


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 60))


@asynccontextmanager
async def frame_server(service: Echo, clock: Clock | None = None, **net: Any) -> AsyncIterator[tuple[FrameServer, int]]:
    server = FrameServer(service, NetConfig(**net), clock or SystemClock())
    port = await server.start("127.0.0.1", 0)
    try:
        yield server, port
    finally:
        await server.stop()


@asynccontextmanager
async def byte_server(receiver: Receiver, clock: Clock | None = None, **net: Any) -> AsyncIterator[tuple[Server, int]]:
    server = Server(receiver, NetConfig(**net), clock or SystemClock())
    port = await server.start("127.0.0.1", 0)
    try:
        yield server, port
    finally:
        await server.stop()


@asynccontextmanager
async def connected(port: int, receive_bytes: int | None = None, source: str = "") -> AsyncIterator[Peer]:
    """A peer; with `receive_bytes` one whose socket holds little, so that the server notices when it does not read; with
    `source` it comes from that address (127.0.0.2)."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.setblocking(False)
    if source:
        sock.bind((source, 0))
    if receive_bytes is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
    limit = receive_bytes or 64 << 10
    reader, writer = await asyncio.open_connection(sock=sock, limit=limit)
    sock_option = writer.get_extra_info("socket")
    sock_option.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        yield Peer(reader, writer)
    finally:
        writer.transport.abort()
