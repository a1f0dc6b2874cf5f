"""Stages the messages of a batch, or of one partition of it: gathers them into chunks and sends these to the brokers.

Messages without a key fill one chunk after the other, each for the next queue; messages with a key, or for a chosen
queue, go to their queue, in order. A chunk whose answer was lost is staged again: only chunks that the decision lists are published.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from kappamq.client.batches.patience import PATIENCE_S, Patience
from kappamq.client.batches.scope import CHECKSUM_MASK, Part, Ticket, open_scope
from kappamq.client.core.core import ClientCore
from kappamq.client.producer.outgoing import member
from kappamq.client.producer.selection import RoundRobin, by_key
from kappamq.client.producer.sending import Key
from kappamq.config.client import ClientConfig
from kappamq.errors import Busy, InvalidParameter, KappaError, NoRoute
from kappamq.message import Message, MessageQueue
from kappamq.protocol.headers.batches import StageChunk, StageChunkResponse
from kappamq.protocol.records import batch

CHUNK_BYTES_MAX: Final = 256 << 10
IN_FLIGHT_MAX: Final = 8
"""The number of chunks in flight."""


@dataclass(slots=True)
class _Filling:
    """A chunk that is not full."""

    topic: str
    queue: MessageQueue | None  # None: any
    members: list[batch.Member] = field(default_factory=list)
    size: int = 0


class Stager:
    """Any number of tasks may add to it, but the order of messages is that of the calls."""

    def __init__(
        self,
        core: ClientCore,
        config: ClientConfig,
        ticket: Ticket,
        next_id: Callable[[int], str],
        *,
        partition: int = 0,
        attempt: int = 0,
        patience_s: float = PATIENCE_S,
    ) -> None:
        """`patience_s`: how long a broker may be away."""
        self._core = core
        self._config = config
        self._ticket = ticket
        self._next_id = next_id
        self._partition = partition
        self._attempt = attempt
        self._patience_s = patience_s
        self._filling: dict[tuple[str, MessageQueue | None], _Filling] = {}
        self._selection = RoundRobin()
        self._staged: list[tuple[str, int, int] | None] = []  # broker, place, CRC; by number of the chunk
        self._tasks: set[asyncio.Task[None]] = set()
        self._room = asyncio.Semaphore(IN_FLIGHT_MAX)
        self._failure: BaseException | None = None
        self.rows = 0
        self._checksum = 0

    async def add(self, message: Message, *, key: Key | None = None, queue: MessageQueue | None = None) -> None:
        """Add a message; it is staged when its chunk is full. Raises the error of an earlier one."""
        chosen = key if key is not None else message.sharding_key or None
        if queue is None and chosen is not None:
            route = await self._core.routes.find_for_sending(message.topic)
            queue = by_key(route.publish, chosen)
        made = member(message, self._next_id(self._core.clock.message_ms()), self._config)
        size = batch.MEMBER_BYTES + len(made.body) + len(made.properties.encode())
        filling = self._filling.get((message.topic, queue))
        if filling is not None and (
            filling.size + size > CHUNK_BYTES_MAX or len(filling.members) >= self._ticket.rows_max
        ):
            await self._send(filling)
            filling = None
        if filling is None:
            filling = self._filling[message.topic, queue] = _Filling(message.topic, queue)
        filling.members.append(made)
        filling.size += size
        self.rows += 1
        self._checksum = (self._checksum + zlib.crc32(made.body)) & CHECKSUM_MASK

    async def add_encoded(
        self, topic: str, body: bytes, rows: int, checksum: int, *, queue: MessageQueue | None = None
    ) -> None:
        """Add a chunk whose body is already encoded: `rows` messages, for a queue or for any, whose CRCs add up to `checksum`."""
        self.rows += rows
        self._checksum = (self._checksum + checksum) & CHECKSUM_MASK
        await self._stage(topic, queue, body, rows)

    async def finish(self) -> Part:
        """Stage the rest, wait until everything is stored, and return the part, which is needed to decide the batch."""
        for filling in list(self._filling.values()):
            await self._send(filling)
        while self._tasks:
            await asyncio.wait(self._tasks)
        self._raise()
        part = Part(rows=self.rows, checksum=self._checksum)
        for staged in self._staged:
            assert staged is not None
            broker, place, crc = staged
            part.chunks.setdefault(broker, []).append([place, crc])
        return part

    def cancel(self) -> None:
        """Stop staging: the batch will not be decided."""
        for task in self._tasks:
            task.cancel()

    # -- chunks ------------------------------------------------------------------------------------------------------------

    async def _send(self, filling: _Filling) -> None:
        del self._filling[filling.topic, filling.queue]
        await self._stage(filling.topic, filling.queue, batch.encode(filling.members), len(filling.members))

    async def _stage(self, topic: str, queue: MessageQueue | None, body: bytes, rows: int) -> None:
        self._raise()
        if self._ticket.transaction is None:
            return
        await self._room.acquire()
        number = len(self._staged)
        self._staged.append(None)
        task = asyncio.create_task(self._try(number, topic, queue, body, rows))
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._room.release()
        if not task.cancelled() and task.exception() is not None and self._failure is None:
            self._failure = task.exception()

    def _raise(self) -> None:
        if self._failure is not None:
            raise self._failure

    async def _try(self, number: int, topic: str, queue: MessageQueue | None, body: bytes, rows: int) -> None:
        ticket, crc = self._ticket, zlib.crc32(body)
        assert ticket.transaction is not None
        avoid: str | None = None
        patience, outdated, unknown, reopened = Patience(self._patience_s), False, False, False
        while True:
            try:
                if unknown and not reopened:  # a broker that is new since the scope was opened
                    await open_scope(self._core, ticket.scope, ticket.owner)
                    reopened = True
                if outdated:
                    await self._core.routes.refresh(topic)
                route = await self._core.routes.find_for_sending(topic)
                if not route.publish:
                    raise NoRoute(f"topic {topic} has no queue to write to")
                chosen = queue or self._selection.choose(route.publish, avoid)
                avoid = chosen.broker
                header = StageChunk(
                    topic=topic, queue_id=chosen.queue_id, scope=ticket.scope, owner=ticket.owner, number=ticket.number,
                    transaction=ticket.transaction, partition=self._partition, attempt=self._attempt, sequence=number,
                    rows=rows, crc=crc, born_ms=self._core.clock.message_ms(),
                )  # fmt: skip
                answer = await self._core.ask_master(
                    topic, chosen.broker, header, body, timeout=self._timeout, patient=queue is not None
                )
                self._staged[number] = chosen.broker, StageChunkResponse.decode(answer.ext).place, crc
                return
            except InvalidParameter:
                if reopened:
                    raise
                unknown = True
            except KappaError as error:
                await patience.wait_after(error)
                outdated = not isinstance(error, Busy)

    @property
    def _timeout(self) -> float:
        return max(self._config.send_timeout_ms, self._config.request_timeout_ms) / 1000
