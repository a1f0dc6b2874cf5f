"""Reading queues by hand: any queue, any offset, as often as you like. Joins no group's balancing.

The group only names whose offsets `commit` stores and `committed` reads.
"""

from __future__ import annotations

import datetime
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final, Self

from kappamq.client import core as sharing
from kappamq.client.core import ClientCore
from kappamq.client.offsets import Offsets, time_ms
from kappamq.client.pulling import Interest, Wanted, pull
from kappamq.client.settings import client_config
from kappamq.config.client import ClientConfig
from kappamq.errors import ClientClosed
from kappamq.message import MessageQueue, PullResult, PullStatus, ReceivedMessage
from kappamq.protocol.headers_client import BoundaryType
from kappamq.protocol.names import check_group

GRACE_S: Final = 10.0
"""How much longer than it may hold a pull a broker gets for its answer."""


class AsyncPullConsumer:
    """Pulls what it is told to.

    >>> async with AsyncPullConsumer("127.0.0.1:9876", group="audit") as consumer:  # doctest: +SKIP
    ...     for queue in await consumer.queues("orders"):
    ...         result = await consumer.pull(queue, await consumer.min_offset(queue))
    """

    def __init__(
        self,
        nameserver: str | Sequence[str] | None = None,
        *,
        group: str,
        config: ClientConfig | None = None,
        **options: Any,
    ) -> None:
        self.config = client_config(nameserver, config, options)
        self.group = check_group(group)
        self._core: ClientCore | None = None
        self._closed = False
        self._positions: dict[MessageQueue, int] = {}

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def start(self) -> ClientCore:
        """Connects to nothing yet; also done by the first call."""
        if self._closed:
            raise ClientClosed("this consumer is closed: make a new one, a closed one does not start again")
        if self._core is None:
            self._core = sharing.acquire(self.config)
        return self._core

    async def close(self) -> None:
        """Close. Nothing is committed that you did not commit."""
        self._closed = True
        core, self._core = self._core, None
        if core is not None:
            await sharing.release(core)

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return the readable queues of a topic, sorted. Raises NoRoute."""
        return list((await self.start().routes.find(topic)).subscribe)

    async def pull(
        self,
        queue: MessageQueue,
        offset: int | None = None,
        *,
        count: int | None = None,
        wait: float = 0.0,
        tags: Wanted = "*",
    ) -> PullResult:
        """Return messages from `offset` on, at most `count`, and where to go on (`next_offset`).

        Without an offset: go on where the last pull or `seek` left, else at the committed offset, else at the start.
        `wait`: if there is nothing, how many seconds the broker may hold the question until something comes.
        """
        core = self.start()
        if offset is None:
            offset = await self.position(queue)
        result = await pull(
            core,
            self.group,
            queue,
            offset,
            Interest(queue.topic, tags, core.clock.message_ms()),
            count=self.config.pull_batch if count is None else count,
            hold_ms=int(wait * 1000),
            timeout=wait + GRACE_S,
            introduced=False,
        )
        self._positions[queue] = result.next_offset
        return result

    async def read(
        self, queue: MessageQueue, start: int, stop: int | None = None, *, tags: Wanted = "*"
    ) -> AsyncIterator[ReceivedMessage]:
        """Yield the messages from offset `start` up to before `stop`, by default up to what is the end now."""
        async for part in self.read_parts(queue, start, stop, tags=tags):
            for message in part:
                yield message

    async def read_parts(
        self, queue: MessageQueue, start: int, stop: int | None = None, *, tags: Wanted = "*"
    ) -> AsyncIterator[list[ReceivedMessage]]:
        """The same in lists, one for each pull."""
        end = await self.max_offset(queue) if stop is None else stop
        offset = start
        while offset < end:
            result = await self.pull(queue, offset, tags=tags)
            part = [message for message in result.messages if start <= message.queue_offset < end]
            if part:
                yield part
            # Not beyond: nothing is there yet, or it was cut off, and the queue is shorter than `stop`.
            if result.status is PullStatus.NO_NEW or result.next_offset <= offset:
                return
            offset = result.next_offset

    async def position(self, queue: MessageQueue) -> int:
        """Return the offset at which the next `pull` without one begins."""
        if queue not in self._positions:
            stored = await self.committed(queue)
            self._positions[queue] = await self.min_offset(queue) if stored is None else stored
        return self._positions[queue]

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Let the next `pull` without an offset begin here."""
        self._positions[queue] = offset

    async def commit(self, queue: MessageQueue, offset: int | None = None) -> None:
        """Store the group's offset of a queue, by default the position, and wait until the broker has it."""
        chosen = await self.position(queue) if offset is None else offset
        await Offsets(self.start(), self.group).commit({queue: chosen}, strict=True)

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the group's stored offset of a queue, None if there is none."""
        return await Offsets(self.start(), self.group).fetch(queue)

    async def search(self, queue: MessageQueue, moment: int | datetime.datetime, *, upper: bool = False) -> int:
        """Return the offset of the first message stored at or after `moment` (milliseconds since 1970 or a datetime).

        `upper`: that of the last message stored at or before it.
        """
        boundary = BoundaryType.UPPER if upper else None
        return await Offsets(self.start(), self.group).search(queue, time_ms(moment), boundary)

    async def min_offset(self, queue: MessageQueue) -> int:
        """Return the offset of the oldest message the broker still has."""
        return await Offsets(self.start(), self.group).min_offset(queue)

    async def max_offset(self, queue: MessageQueue) -> int:
        """Return the offset that the next message will get."""
        return await Offsets(self.start(), self.group).max_offset(queue)
