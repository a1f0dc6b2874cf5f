"""Connections between simulated processes: bytes arrive late and in order, wait while a link is cut, and are lost with a connection.

A `Side` is one end of a connection: the transport of its protocol, and before it has one, what `accept` returns.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from kappamq.sim.brokers.loop import Loop
from kappamq.sim.settings import Faults
from kappamq.sim.world import World

RETRY_MS = 200.0
LATE_MS = 150.0  # lost data is sent again
_END, _RESET = object(), object()


class Streams:
    def __init__(self, world: World, faults: Faults) -> None:
        self.world, self.faults = world, faults
        self.cut: set[tuple[str, str]] = set()
        self.down: set[str] = set()  # hosts without power: they do not answer
        self.healed = False
        self.listeners: dict[tuple[str, int], Listener] = {}
        self._ports = 40_000

    def delay(self) -> float:
        faults, world = self.faults, self.world
        delay = 0.05 + faults.delay_ms * world.dice.random()
        if not self.healed:
            if faults.loss and world.happens(faults.loss):
                delay += LATE_MS
            if faults.delay_tail and world.happens(faults.delay_tail):
                delay *= 50
        return delay

    def is_cut(self, source: str, target: str) -> bool:
        return (source, target) in self.cut or target in self.down or source in self.down

    def port(self) -> int:
        self._ports += 1
        return self._ports

    async def connect(self, loop: Loop, host: str, port: int) -> Side:
        """Raises ConnectionRefusedError; waits while the other host cannot be reached."""
        made = loop.create_future()
        self.world.after(self.delay(), self._arrive, loop, host, port, made)
        side: Side = await made
        return side

    def _arrive(self, loop: Loop, host: str, port: int, made: asyncio.Future[Side]) -> None:
        if not loop.alive or made.done():
            return
        if self.is_cut(loop.host, host) or self.is_cut(host, loop.host):
            self.world.after(RETRY_MS, self._arrive, loop, host, port, made)
            return
        listener = self.listeners.get((host, port))
        if listener is None or not listener.loop.alive:
            self.world.after(self.delay(), _refuse, loop, made)
            return
        here, there = (loop.host, self.port()), (host, port)
        near, far = Side(self, loop, here, there), Side(self, listener.loop, there, here)
        near.other, far.other = far, near
        listener.take(far)
        self.world.after(self.delay(), _connected, loop, made, near)


def _refuse(loop: Loop, made: asyncio.Future[Side]) -> None:
    if loop.alive and not made.done():
        made.set_exception(ConnectionRefusedError("nobody listens there"))


def _connected(loop: Loop, made: asyncio.Future[Side], side: Side) -> None:
    if loop.alive and not made.done():
        made.set_result(side)
    else:
        side.abort()


class Listener:
    """A listening socket."""

    def __init__(self, streams: Streams, loop: Loop, host: str, port: int) -> None:
        self.streams, self.loop, self.place = streams, loop, (host, port)
        self._come: deque[Side] = deque()
        self._waiting: deque[asyncio.Future[Side]] = deque()
        self._serve: Callable[[Side], object] | None = None
        streams.listeners[self.place] = self

    def serve(self, serve: Callable[[Side], object]) -> None:
        self._serve = serve
        while self._come:
            serve(self._come.popleft())

    def take(self, side: Side) -> None:
        if self._serve is not None:
            self.loop.call_soon(self._serve, side)
            return
        self._come.append(side)
        self.loop.call_soon(self._hand_out)

    def _hand_out(self) -> None:
        while self._come and self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.done():
                waiting.set_result(self._come.popleft())

    async def wait(self, loop: Loop) -> Side:
        waiting: asyncio.Future[Side] = loop.create_future()
        self._waiting.append(waiting)
        self._hand_out()
        return await waiting

    def getsockname(self) -> tuple[str, int]:
        return self.place

    def close(self) -> None:
        if self.streams.listeners.get(self.place) is self:
            del self.streams.listeners[self.place]


class Side(asyncio.Transport):
    other: Side

    def __init__(self, streams: Streams, loop: Loop, here: tuple[str, int], there: tuple[str, int]) -> None:
        super().__init__({"peername": there, "sockname": here})
        self._streams, self._loop = streams, loop
        self._host, self._peer = here[0], there[0]
        self._protocol: asyncio.Protocol | None = None
        self._out: deque[tuple[float, Any]] = deque()  # (arrival time, content)
        self._out_bytes = 0
        self._is_carried = False
        self._in: deque[Any] = deque()
        self._reading = True
        self._closing = self._lost = False
        loop.sides[self] = None

    # -- as an accepted socket ---------------------------------------------------------------------------------------------

    def setblocking(self, blocking: bool) -> None:
        pass

    def setsockopt(self, *options: int) -> None:
        pass

    def getpeername(self) -> tuple[str, int]:
        return self.get_extra_info("peername")  # type: ignore[no-any-return]

    def getsockname(self) -> tuple[str, int]:
        return self.get_extra_info("sockname")  # type: ignore[no-any-return]

    # -- as a transport ----------------------------------------------------------------------------------------------------

    def begin(self, protocol: asyncio.Protocol) -> None:
        self._protocol = protocol
        protocol.connection_made(self)
        self._loop.call_soon(self._read)
        if self._lost:  # before the connection was reported
            self._loop.call_soon(protocol.connection_lost, ConnectionResetError("the other side is gone"))

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol  # type: ignore[assignment]

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self._protocol is not None
        return self._protocol

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return self._out_bytes

    def is_closing(self) -> bool:
        return self._closing

    def is_reading(self) -> bool:
        return self._reading

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        self._loop.call_soon(self._read)

    def write(self, data: Any) -> None:
        if not self._closing and self._loop.alive:
            self._carry(bytes(data))

    def writelines(self, parts: Any) -> None:
        self.write(b"".join(parts))

    def close(self) -> None:
        self._end(_END)

    def abort(self) -> None:
        self._out.clear()
        self._end(_RESET)

    def _end(self, how: object) -> None:
        if not self._closing:
            self._closing = True
            self._carry(how)
            self._loop.call_soon(self._gone, None)

    def _gone(self, error: Exception | None) -> None:
        if not self._lost:
            self._lost = self._closing = True
            self._loop.sides.pop(self, None)
            if self._protocol is not None:
                self._protocol.connection_lost(error)

    # -- on the way --------------------------------------------------------------------------------------------------------

    def _carry(self, what: Any) -> None:
        now = self._streams.world.now
        arrival = now + self._streams.delay()
        if self._out:
            arrival = max(arrival, self._out[-1][0])
        self._out.append((arrival, what))
        self._out_bytes += len(what) if isinstance(what, bytes) else 0
        if not self._is_carried:
            self._is_carried = True
            self._streams.world.after(arrival - now, self._arrive)

    def _arrive(self) -> None:
        world = self._streams.world
        if self._streams.is_cut(self._host, self._peer):
            world.after(RETRY_MS, self._arrive)
            return
        while self._out and self._out[0][0] <= world.now:
            what = self._out.popleft()[1]
            self._out_bytes -= len(what) if isinstance(what, bytes) else 0
            self.other._come(what)
        self._is_carried = bool(self._out)
        if self._out:
            world.after(self._out[0][0] - world.now, self._arrive)

    def _come(self, what: Any) -> None:
        if not self._loop.alive:
            self._streams.world.after(self._streams.delay(), self._tell_reset)
            return
        if self._lost:
            return
        if what is _RESET:
            self._in.clear()
        self._in.append(what)
        self._loop.call_soon(self._read)

    def _tell_reset(self) -> None:
        """This side no longer has the connection: the system tells the other side so, once it can be reached."""
        if self._streams.is_cut(self._host, self._peer):
            self._streams.world.after(RETRY_MS, self._tell_reset)
        elif self.other._loop.alive:
            self.other._loop.call_soon(self.other._gone, ConnectionResetError("the other side is gone"))

    def lose(self) -> None:
        """The process of this side has ended; its system may still report that to the other side."""
        self._streams.world.after(self._streams.delay(), self._tell_reset)

    def _read(self) -> None:
        protocol = self._protocol
        if protocol is None:
            return
        while self._in and not self._lost and (self._reading or self._in[0] is _RESET):
            what = self._in.popleft()
            if what is _RESET:
                self._gone(ConnectionResetError("reset by the other side"))
            elif what is _END:
                protocol.eof_received()
                self._closing = True
                self._gone(None)
            elif not self._closing:
                self._protocol.data_received(what)  # type: ignore[union-attr]  # the protocol may have been replaced
