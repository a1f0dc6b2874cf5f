"""The network between members: each connection goes through a relay of ours, and each direction can be cut.

What is cut is not lost: it waits, as in a network whose packets are sent again, and arrives late when the cut is over. A connection
that is made meanwhile gets no answer.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import permutations

HOST = "127.0.0.1"
_PIECE = 1 << 16


@dataclass(slots=True)
class Relay:
    source: str
    target: str
    port: int  # where it listens
    to: int = 0  # where the target listens
    held: socket.socket | None = None
    server: asyncio.Server | None = None
    tasks: set[asyncio.Task[None]] = field(default_factory=set)


class Network:
    def __init__(self, names: Iterable[str]) -> None:
        self._open: dict[tuple[str, str], asyncio.Event] = {}
        self._relays: dict[tuple[str, str], Relay] = {}
        for source, target in permutations(names, 2):
            self._open[source, target] = asyncio.Event()
            self._open[source, target].set()
            held = socket.create_server((HOST, 0))
            self._relays[source, target] = Relay(source, target, held.getsockname()[1], held=held)

    def route(self, source: str, target: str, port: int) -> int:
        relay = self._relays[source, target]
        relay.to = port
        return relay.port

    async def start(self) -> None:
        for relay in self._relays.values():
            assert relay.to, "nobody has asked for its route"
            relay.server = await asyncio.start_server(
                lambda r, w, relay=relay: self._carry(relay, r, w), sock=relay.held
            )

    async def stop(self) -> None:
        for relay in self._relays.values():
            if relay.server is not None:
                relay.server.close()
            for task in relay.tasks:
                task.cancel()
        await asyncio.gather(*(t for relay in self._relays.values() for t in relay.tasks), return_exceptions=True)

    def cut(self, source: str, target: str) -> None:
        """Nothing that `source` says reaches `target` any more."""
        self._open[source, target].clear()

    def heal(self) -> None:
        for event in self._open.values():
            event.set()

    async def _carry(self, relay: Relay, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        relay.tasks.add(task)
        there, back = self._open[relay.source, relay.target], self._open[relay.target, relay.source]
        far: asyncio.StreamWriter | None = None
        try:
            await there.wait()
            far_reader, far = await asyncio.open_connection(HOST, relay.to)
            await _first(_pump(reader, far, there), _pump(far_reader, writer, back))
        except (OSError, asyncio.CancelledError):
            pass  # one of the two is gone
        finally:
            relay.tasks.discard(task)
            for each in (writer, far):
                if each is not None:
                    each.transport.abort()


async def _first(*what: object) -> None:
    """Wait until one of them ends, and end the others."""
    tasks = [asyncio.ensure_future(one) for one in what]  # type: ignore[call-overload]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, is_open: asyncio.Event) -> None:
    while data := await reader.read(_PIECE):
        await is_open.wait()
        writer.write(data)
        await writer.drain()
    await is_open.wait()  # the end of a connection does not come through, either
