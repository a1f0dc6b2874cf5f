"""The offsets of a group. The brokers store them; this module fetches and commits them."""

from __future__ import annotations

import asyncio
import datetime
import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from kappamq.client.core import arguments
from kappamq.client.core.core import ClientCore
from kappamq.errors import ConfigError, KappaError, QueryNotFound
from kappamq.message import MessageQueue
from kappamq.protocol.headers.client import (
    BoundaryType,
    GetMaxOffset,
    GetMinOffset,
    OffsetResponse,
    QueryConsumerOffset,
    SearchOffset,
    UpdateConsumerOffset,
)
from kappamq.protocol.names import is_retry_topic

log = logging.getLogger(__name__)

ConsumeFrom = Literal["last", "first"] | int | datetime.datetime
"""The initial position of a group without offsets: end, start, or a time (milliseconds since 1970, or a datetime)."""

_COMMITS_AT_ONCE: Final = 64


def time_ms(moment: int | datetime.datetime) -> int:
    arguments.moment("a time", moment)
    return moment if isinstance(moment, int) else int(moment.timestamp() * 1000)


def check_consume_from(start: ConsumeFrom) -> ConsumeFrom:
    if start in ("last", "first") or (isinstance(start, (int, datetime.datetime)) and not isinstance(start, bool)):
        return start
    raise ConfigError(f'consume_from must be "last", "first", milliseconds since 1970 or a datetime; got {start!r}')


@dataclass(frozen=True, slots=True)
class _Stored:
    """The offset a broker has confirmed, and over which connection (None: unknown)."""

    offset: int
    connection: int | None


class Offsets:
    """Offsets of one group. `start`: the initial position in a queue for which the broker has no offset."""

    def __init__(self, core: ClientCore, group: str, start: ConsumeFrom = "last") -> None:
        self._core = core
        self._group = group
        self._start = start
        self._stored: dict[MessageQueue, _Stored] = {}
        self._beginnings: Counter[MessageQueue] = Counter()
        self._forward: set[MessageQueue] = set()  # started at the broker's offset, no seek since

    async def fetch(self, queue: MessageQueue, *, zero_if_new: bool | None = False) -> int | None:
        """Return the group's committed offset, None if there is none.

        `zero_if_new`: None lets the broker answer 0 for a queue so young that all of it is still in memory.
        """
        arguments.queue(queue)
        header = QueryConsumerOffset(
            consumer_group=self._group, topic=queue.topic, queue_id=queue.queue_id, zero_if_not_found=zero_if_new
        )
        try:
            answer = await self._core.ask_queue(queue, header)
        except QueryNotFound:
            return None
        offset = OffsetResponse.decode(answer.ext).offset
        return offset if offset >= 0 else None

    async def start_of(self, queue: MessageQueue) -> int:
        """Return the start offset: the committed one, or what `start` says if there is none."""
        self._forward.add(queue)
        connection = self._core.connection_to(queue)
        # As in Java's clients: a consumer that starts a little later than the first producer misses nothing.
        stored = await self.fetch(queue, zero_if_new=None if self._start == "last" else False)
        if stored is not None:
            self._stored[queue] = _Stored(stored, connection)
            return stored
        return await self.first_start_of(queue)

    async def first_start_of(self, queue: MessageQueue) -> int:
        """Return the start offset of a queue without a committed offset."""
        start = self._start
        if start == "first" or (start == "last" and is_retry_topic(queue.topic)):
            return await self.min_offset(queue)
        if start == "last" or is_retry_topic(queue.topic):
            return await self.max_offset(queue)
        assert not isinstance(start, str)
        return await self.search(queue, time_ms(start))

    async def min_offset(self, queue: MessageQueue) -> int:
        arguments.queue(queue)
        header = GetMinOffset(topic=queue.topic, queue_id=queue.queue_id)
        return OffsetResponse.decode((await self._core.ask_queue(queue, header)).ext).offset

    async def max_offset(self, queue: MessageQueue) -> int:
        arguments.queue(queue)
        header = GetMaxOffset(topic=queue.topic, queue_id=queue.queue_id)
        return OffsetResponse.decode((await self._core.ask_queue(queue, header)).ext).offset

    async def search(self, queue: MessageQueue, moment_ms: int, boundary: BoundaryType | None = None) -> int:
        """Return the offset of the first message stored at or after a time; UPPER: the last one at or before it."""
        arguments.queue(queue)
        header = SearchOffset(topic=queue.topic, queue_id=queue.queue_id, timestamp=moment_ms, boundary=boundary)
        return OffsetResponse.decode((await self._core.ask_queue(queue, header)).ext).offset

    async def commit(self, offsets: Mapping[MessageQueue, int], *, strict: bool = False) -> None:
        """Commit offsets that have grown and wait until the brokers have stored them. Only a forgotten offset may move back.

        A broker that is killed may lose the commits of its last second or so, and an offset that no longer grows would never
        be committed again: so after a reconnect an offset is compared with the broker's, and repeated if the broker is behind.
        Brokers ignore commits for a queue with a pending reset, so a reset wins over a repetition.

        Other commits may be late, since the queue may have moved to a member that is further ahead; our brokers are told which
        ones may only move forward. What fails is retried with the next call, or raised if `strict`. Java's clients commit
        one-way, and cannot tell on close which commits arrived.
        """
        changed = {queue: offset for queue, offset in offsets.items() if self._is_due(queue, offset, strict)}
        forward = changed.keys() & self._forward  # a snapshot: what is forgotten while we wait was not sought
        limit = asyncio.Semaphore(_COMMITS_AT_ONCE)

        async def store(queue: MessageQueue, offset: int) -> None:
            async with limit:
                beginning = self._beginnings[queue]
                connection = self._core.connection_to(queue)
                if not await self._is_kept(queue, offset):
                    header = UpdateConsumerOffset(
                        consumer_group=self._group,
                        topic=queue.topic,
                        queue_id=queue.queue_id,
                        commit_offset=offset,
                        forward=queue in forward or None,
                    )
                    await self._core.ask_queue(queue, header)
                if beginning == self._beginnings[queue]:
                    self._stored[queue] = _Stored(offset, connection)
                    self._forward.add(queue)

        results = await asyncio.gather(*(store(*item) for item in changed.items()), return_exceptions=True)
        for queue, result in zip(changed, results, strict=True):
            if isinstance(result, BaseException):
                if strict or not isinstance(result, KappaError):
                    raise result
                log.warning(
                    "could not commit offset %d of group %s in %s, retrying: %s",
                    changed[queue],
                    self._group,
                    queue,
                    result,
                )

    async def commit_again(self, *, strict: bool = False) -> None:
        """Repeat commits that the broker may have lost since; commits nothing new."""
        await self.commit({queue: stored.offset for queue, stored in self._stored.items()}, strict=strict)

    def _is_due(self, queue: MessageQueue, offset: int, strict: bool) -> bool:
        stored = self._stored.get(queue)
        if stored is None or stored.offset < offset:
            return True
        connection = self._core.connection_to(queue)
        if connection is None:
            return strict  # pulls and heartbeats reconnect, and log if they cannot; the offset can wait until then
        # On close, verify once more: Apache's broker processes a pull that carries an older offset concurrently with this
        # commit, and the one that finishes last wins.
        return stored.offset == offset and (strict or stored.connection != connection)

    async def _is_kept(self, queue: MessageQueue, offset: int) -> bool:
        """Return whether the broker still has this committed offset. Apache's would take an older offset for a newer one."""
        stored = self._stored.get(queue)
        if stored is None or stored.offset != offset:
            return False
        kept = await self.fetch(queue)
        return kept is not None and kept >= offset

    def forget(self, queue: MessageQueue) -> None:
        """Forget the offset of a queue that was reset, or assigned to another member."""
        self._stored.pop(queue, None)
        self._forward.discard(queue)
        self._beginnings[queue] += 1
