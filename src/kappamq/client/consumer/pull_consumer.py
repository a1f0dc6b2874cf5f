"""Pulling by hand from any queue at any offset, without joining the group's rebalancing.

The group only determines whose offsets `commit` stores and `committed` reads.
"""

from __future__ import annotations

import asyncio
import datetime
import functools
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from typing import Final, Self, Unpack

from kappamq.client.core import arguments
from kappamq.client.core import core as sharing
from kappamq.client.core.core import ClientCore
from kappamq.client.core.settings import client_config
from kappamq.client.group.offsets import Offsets, time_ms
from kappamq.client.pulling.damage import DamageReports
from kappamq.client.pulling.pulling import Interest, Wanted, pull, pull_bytes
from kappamq.client.pulling.raw_reads import LANES, STRIPE, Pace, ask_again, read_in_lanes, read_in_turn
from kappamq.config.client import ClientConfig, ClientOptions
from kappamq.errors import ClientClosed
from kappamq.message import MessageQueue, PulledBytes, PullResult, PullStatus, ReceivedMessage, SqlFilter
from kappamq.protocol.headers.client import BoundaryType
from kappamq.protocol.names import check_group
from kappamq.protocol.records.tags import Subscription

PULLS_AT_ONCE: Final = 64
GRACE_S: Final = 10.0
"""Time added to the long-polling time before a pull request times out."""


class AsyncPullConsumer:
    """Pulls from the queues and offsets the caller names.

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
        **options: Unpack[ClientOptions],
    ) -> None:
        self.config = client_config(nameserver, config, options, type(self))
        self.group = check_group(group)
        self._core: ClientCore | None = None
        self._closed = False
        self._positions: dict[MessageQueue, int] = {}
        self._damage = DamageReports()
        self.missing = 0
        """How many offsets brokers left out of unfiltered pulls."""

    @property
    def damaged(self) -> int:
        """How many damaged messages have been skipped; the log names them."""
        return self._damage.count

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def start(self) -> ClientCore:
        """Start without connecting yet; the first call does this as well."""
        if self._closed:
            raise ClientClosed("this consumer is closed: create a new one, it cannot be restarted")
        if self._core is None:
            self._core = sharing.acquire(self.config)
        return self._core

    async def close(self) -> None:
        """Close. Commits nothing that you did not commit."""
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
        """Return messages from `offset` on, at most `count`, and the offset to continue at (`next_offset`).

        Without an offset: continue where the last pull or `seek` left off, else at the committed offset, else at the start.
        `wait`: how many seconds the broker may hold the request if there are no messages (long polling).
        """
        arguments.queue(queue)
        arguments.seconds("wait", wait)
        for name, number in (("offset", offset), ("count", count)):
            if number is not None:
                arguments.number(name, number)
        arguments.expect("tags", tags, (str, SqlFilter), 'a str such as "new || paid", or sql("price > 100")')
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
        for damaged in result.damaged:
            self._damage.report(damaged)
        self.missing += result.missing
        return result

    async def pull_bytes(
        self, queue: MessageQueue, offset: int, *, count: int | None = None, wait: float = 0.0, tags: str = "*"
    ) -> PulledBytes:
        """Return the stored bytes of messages from `offset` on, undecoded: for bulk readers that need few fields of each.

        With `tags` the broker filters by the hash of the tag, so messages whose tag has the same hash may be included."""
        core = self.start()
        return await pull_bytes(
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

    async def pull_each(self, offsets: Mapping[MessageQueue, int]) -> dict[MessageQueue, PulledBytes]:
        """`pull_bytes` of one message from each of many queues, concurrently."""
        limit = asyncio.Semaphore(PULLS_AT_ONCE)

        async def one(queue: MessageQueue, offset: int) -> PulledBytes:
            async with limit:
                return await self.pull_bytes(queue, offset, count=1)

        answers = await asyncio.gather(*(one(queue, offset) for queue, offset in offsets.items()))
        return dict(zip(offsets, answers, strict=True))

    async def read_bytes(
        self,
        queue: MessageQueue,
        start: int,
        stop: int,
        *,
        lanes: int = LANES,
        stripe: int = STRIPE,
        tags: str = "*",
        pace: Pace | None = None,
    ) -> AsyncIterator[PulledBytes]:
        """Yield the stored bytes of the messages [start, stop) in order, with several pulls in flight.

        An answer whose status is not FOUND means that messages are missing there; see `read_in_lanes`. With `tags` the broker
        filters by tag hash, there is one pull in flight at a time, and messages beyond `stop` may be included. `pace` limits
        the rate, and may be shared by several reads."""
        parts = self.read_bytes_parts(queue, start, stop, lanes=lanes, stripe=stripe, tags=tags, pace=pace)
        async with aclosing(parts):
            async for answers in parts:
                for answer in answers:
                    yield answer

    def read_bytes_parts(
        self,
        queue: MessageQueue,
        start: int,
        stop: int,
        *,
        lanes: int = LANES,
        stripe: int = STRIPE,
        tags: str = "*",
        pace: Pace | None = None,
    ) -> AsyncGenerator[list[PulledBytes]]:
        """Like `read_bytes`, in lists of the answers that have arrived meanwhile, so that another thread waits less often."""
        if not Subscription.parse(tags).everything:
            return read_in_turn(functools.partial(self.pull_bytes, queue, tags=tags), start, stop, pace=pace)
        pull = functools.partial(self.pull_bytes, queue)
        return read_in_lanes(pull, start, stop, lanes=lanes, stripe=stripe, pace=pace)

    async def read(
        self, queue: MessageQueue, start: int, stop: int | None = None, *, tags: Wanted = "*"
    ) -> AsyncIterator[ReceivedMessage]:
        """Yield the messages from offset `start` up to, not including, `stop`; by default up to the current end."""
        async for part in self.read_parts(queue, start, stop, tags=tags):
            for message in part:
                yield message

    async def read_parts(
        self, queue: MessageQueue, start: int, stop: int | None = None, *, tags: Wanted = "*"
    ) -> AsyncIterator[list[ReceivedMessage]]:
        """Like `read`, in lists, one per pull."""
        arguments.number("start", start)
        if stop is not None:
            arguments.number("stop", stop)
        end = await self.max_offset(queue) if stop is None else stop
        offset = start
        while offset < end:
            result = await ask_again(functools.partial(self.pull, queue, offset, tags=tags), offset)
            part = [message for message in result.messages if start <= message.queue_offset < end]
            if part:
                yield part
            # The end: nothing is stored there yet, or the log was truncated and the queue is shorter than `stop`.
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
        arguments.queue(queue)
        arguments.number("offset", offset)
        self._positions[queue] = offset

    async def commit(self, queue: MessageQueue, offset: int | None = None) -> None:
        """Commit the group's offset of a queue, by default the position, and wait until the broker has stored it."""
        arguments.queue(queue)
        if offset is not None:
            arguments.number("offset", offset)
        chosen = await self.position(queue) if offset is None else offset
        await Offsets(self.start(), self.group).commit({queue: chosen}, strict=True)

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the group's committed offset of a queue, None if there is none."""
        return await Offsets(self.start(), self.group).fetch(queue)

    async def search(self, queue: MessageQueue, moment: int | datetime.datetime, *, upper: bool = False) -> int:
        """Return the offset of the first message stored at or after `moment` (milliseconds since 1970 or a datetime).

        `upper`: return that of the last message stored at or before it instead.
        """
        boundary = BoundaryType.UPPER if upper else None
        return await Offsets(self.start(), self.group).search(queue, time_ms(moment), boundary)

    async def min_offset(self, queue: MessageQueue) -> int:
        """Return the offset of the oldest message the broker still has."""
        return await Offsets(self.start(), self.group).min_offset(queue)

    async def max_offset(self, queue: MessageQueue) -> int:
        """Return the offset that the next message will get."""
        return await Offsets(self.start(), self.group).max_offset(queue)
