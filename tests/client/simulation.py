"""Whole consumers on a virtual clock and a network in memory: one seed, one history, minutes in milliseconds.

The clients are the real ones, from `AsyncConsumer` down to the frames their channels write. Name server and broker are
those of fake.py. Between them lie delays, and what a test does to them: processes die, are cut off, and come back.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import random
import selectors
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from kappamq.client.core import core
from kappamq.errors import NotConnected
from kappamq.net.channel import Channel
from kappamq.protocol.frame import FrameDecoder
from tests.client.fake import FakeBroker, FakeCluster, FakeNameServer, FakeServer, Peer

START_MS = 1_700_000_000_000
_here: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)


class _Jumping(selectors.SelectSelector):
    """Waits for nothing: where an ordinary loop would sleep, time jumps."""

    now = 1000.0

    def select(self, timeout: float | None = None) -> list[Any]:
        ready = super().select(0)
        if not ready:
            if timeout is None:
                raise RuntimeError("everybody waits for ever")
            self.now += max(timeout, 0.0)
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.jumping = _Jumping()
        super().__init__(self.jumping)

    def time(self) -> float:
        return self.jumping.now


class VirtualTime:
    """The clock of every client in the simulation."""

    def message_ms(self) -> int:
        return START_MS + int(self.liveness() * 1000)

    def liveness(self) -> float:
        return asyncio.get_running_loop().time()

    def uptime_ms(self) -> int:
        return int(self.liveness() * 1000)


class Process:
    """One program with clients in it: it can be killed and cut off."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.cut_off = False
        # In the order of their coming: a set of objects has another order in each run.
        self.tasks: dict[asyncio.Task[Any], None] = {}
        self.links: dict[_Link, None] = {}

    async def run(self, work: Callable[[], Awaitable[Any]]) -> Any:
        """Do something in this process."""

        async def inside() -> Any:
            _here.set(self)
            return await work()

        return await asyncio.get_running_loop().create_task(inside(), context=contextvars.copy_context())

    def kill(self, *, silently: bool = False) -> None:
        """Nothing of it runs any more. `silently`: its machine is gone, too, and nobody closes its connections."""
        self.alive = False
        for task in list(self.tasks):
            task.cancel()
        if not silently:
            for link in list(self.links):
                link.break_off()


class _Link:
    """A connection in memory: bytes arrive late, in order, or not at all."""

    def __init__(self, world: World, process: Process, channel: Channel, server: FakeServer) -> None:
        self.world, self.process, self.channel, self.server = world, process, channel, server
        self.peer = Peer(self)  # type: ignore[arg-type]
        self.transport = self  # what a Peer looks for in a stream writer
        self._decoder = FrameDecoder()
        self._closed = False
        self._arrivals = [0.0, 0.0]
        server.peers[self.peer] = None
        process.links[self] = None

    def break_off(self) -> None:
        if self._closed:
            return
        self._closed = True
        self.process.links.pop(self, None)
        self.server.peers.pop(self.peer, None)
        self.server.lost(self.peer)
        if self.process.alive:
            self.channel.connection_lost(None)

    abort = close = break_off

    # As the transport of the client's channel.

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_extra_info(self, name: str) -> tuple[str, int]:
        return ("127.0.0.1", 5)

    def writelines(self, parts: list[bytes]) -> None:
        self._send(0, b"".join(parts), self._at_server)

    # As the transport of the client's channel and as the writer of the server's peer: told apart by who calls.

    def write(self, data: bytes) -> None:
        if _here.get() is self.process:
            self._send(0, data, self._at_server)
        else:
            self._send(1, data, self._at_client)

    def is_closing(self) -> bool:
        return self._closed

    def _send(self, way: int, data: bytes, arrive: Callable[[bytes], None]) -> None:
        if self._closed or not self.process.alive or self.process.cut_off:
            return
        loop = asyncio.get_running_loop()
        self._arrivals[way] = max(self._arrivals[way], loop.time() + self.world.dice.uniform(0.0005, 0.02))
        context = contextvars.copy_context()
        context.run(_here.set, self.process if way else None)
        loop.call_at(self._arrivals[way], arrive, data, context=context)

    def _at_server(self, data: bytes) -> None:
        if self._closed or self.process.cut_off:
            return
        for frame in self._decoder.feed(data):
            self.server.requests.append(frame)
            if frame.is_response:
                self.peer.answers.append(frame)
            else:
                self.server._answer(self.peer, frame)

    def _at_client(self, data: bytes) -> None:
        if not self._closed and self.process.alive and not self.process.cut_off:
            _feed(self.channel, data)


def _feed(channel: Channel, data: bytes) -> None:
    """What a socket does for a protocol with a buffer of its own."""
    while data:
        room = channel.get_buffer(len(data))
        count = min(len(room), len(data))
        room[:count] = data[:count]
        channel.buffer_updated(count)
        data = data[count:]


class World:
    """One name server, some brokers, and as many processes as a test starts."""

    def __init__(self, seed: int, brokers: int = 1) -> None:
        self.dice = random.Random(seed)
        made = [FakeBroker(f"broker-{number}") for number in range(brokers)]
        self.cluster = FakeCluster(made, [FakeNameServer(made, {})])
        self.servers: dict[str, FakeServer] = {}
        servers: list[FakeServer] = [*self.cluster.brokers, *self.cluster.nameservers]
        for port, server in enumerate(servers, 1):
            server.port = port
            self.servers[server.address] = server

    @property
    def now(self) -> float:
        return asyncio.get_running_loop().time()

    async def connect(self, cls: type[Channel], address: str, *, timeout: float, **options: Any) -> Channel:
        options.pop("tls", None)
        process, server = _here.get(), self.servers[address]
        assert process is not None, "a client must live in a process"
        await asyncio.sleep(self.dice.uniform(0.001, 0.01))
        if process.cut_off or not process.alive:
            await asyncio.sleep(timeout)
            raise NotConnected(f"no connection to {address} within {timeout:g} s")
        channel = cls(address, **options)
        channel.connection_made(_Link(self, process, channel, server))  # type: ignore[arg-type]
        return channel


@contextmanager
def _patched(world: World) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:

        async def connect(cls: type[Channel], address: str, **options: Any) -> Channel:
            return await world.connect(cls, address, **options)

        patch.setattr(Channel, "connect", classmethod(connect))
        patch.setattr(core, "SystemClock", VirtualTime)
        random.seed(world.dice.random())
        before = logging.root.manager.disable
        logging.disable(logging.CRITICAL)  # there is much to complain about
        try:
            yield
        finally:
            logging.disable(before)


def simulate(world: World, history: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    """Run a history to its end; what it left behind is torn down without a word."""
    loop = VirtualLoop()

    def remembered(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
        process = _here.get()
        if process is not None and not process.alive:
            coroutine.close()
            never = loop.create_future()
            never.cancel()
            return never  # type: ignore[return-value] # the dead start nothing
        task: asyncio.Task[Any] = asyncio.Task(coroutine, loop=loop, **options)
        if process is not None:
            process.tasks[task] = None
            task.add_done_callback(lambda done: process.tasks.pop(done, None))
        return task

    loop.set_task_factory(remembered)  # type: ignore[arg-type]
    with _patched(world):
        try:
            loop.run_until_complete(history(world))
        finally:
            loop.set_task_factory(None)
            for task in asyncio.all_tasks(loop):
                task.cancel()
            loop.run_until_complete(asyncio.sleep(0.1))
            core._cores.pop(loop, None)  # the dead give nothing back
            loop.close()
