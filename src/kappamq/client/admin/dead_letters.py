"""Dead letters: messages that a group could not consume. List them, look at their history, resend them.

A group's dead-letter queue is an ordinary topic (%DLQ% and the group's name) with one queue on each broker. Nothing is ever
removed from it. A resent message keeps the id its producer assigned and names the dead letter it was made from, so that
resending twice is detected here, and idempotent consumers process it once.
"""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Self, Unpack

from kappamq.client.admin.admin import AsyncAdmin
from kappamq.client.blocking.loop_thread import Blocking, blocking
from kappamq.client.consumer.pull_consumer import AsyncPullConsumer
from kappamq.client.core.settings import client_config
from kappamq.client.group.offsets import time_ms
from kappamq.client.producer.outgoing import single
from kappamq.client.producer.producer import AsyncProducer
from kappamq.config.client import ClientConfig, ClientOptions
from kappamq.errors import InvalidParameter, QueryNotFound, TopicNotFound, UnknownTopic
from kappamq.message import Message, MessageQueue, ReceivedMessage, SendResult, SendStatus
from kappamq.protocol.names import TOOLS_GROUP, check_group, dlq_topic, retry_topic
from kappamq.protocol.records import properties

RESENT_FROM: Final = "RESENT_FROM"
"""Property of a resent message: the offset id of the dead letter."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that exhausted its redeliveries, and what is known about its origin."""

    message: ReceivedMessage  # as stored in the dead-letter queue
    group: str  # the group that could not consume it
    origin_topic: str  # the topic it was sent to; empty if unknown
    origin_message_id: str  # assigned by its producer, the same on every copy
    origin_offset_id: str  # where it was stored first; empty if unknown

    @classmethod
    def of(cls, message: ReceivedMessage, group: str) -> DeadLetter:
        pairs = message.properties
        return cls(
            message,
            group,
            pairs.get(properties.DLQ_ORIGIN_TOPIC) or pairs.get(properties.RETRY_TOPIC, ""),
            pairs.get(properties.DLQ_ORIGIN_MESSAGE_ID) or message.message_id,
            pairs.get(properties.ORIGIN_MESSAGE_ID, ""),
        )

    @property
    def id(self) -> str:
        """Identifies this dead letter: one message may become a dead letter, be resent, and become one again."""
        return self.message.offset_id

    @property
    def tries(self) -> int:
        """How often it was redelivered before."""
        return max(0, self.message.reconsume_times - 1)

    @property
    def own_properties(self) -> dict[str, str]:
        """The application's properties, without those of brokers and clients."""
        return {
            name: value
            for name, value in self.message.properties.items()
            if name not in properties.RESERVED and name != RESENT_FROM
        }


@dataclass(frozen=True, slots=True)
class Page:
    """Some dead letters, oldest first, and where the next page begins; None if these were the last."""

    letters: tuple[DeadLetter, ...]
    next: Mapping[MessageQueue, int] | None = None


class AsyncDeadLetters:
    """The dead letters of one group.

    >>> async with AsyncDeadLetters("127.0.0.1:9876", group="billing") as letters:  # doctest: +SKIP
    ...     async for letter in letters:
    ...         await letters.resend(letter)
    """

    def __init__(
        self,
        nameserver: str | Sequence[str] | None = None,
        *,
        group: str,
        config: ClientConfig | None = None,
        **options: Unpack[ClientOptions],
    ) -> None:
        self.group = check_group(group)
        self.config = client_config(nameserver, config, options, type(self))
        self._admin = AsyncAdmin(config=self.config)
        self._reader = AsyncPullConsumer(group=TOOLS_GROUP, config=self.config)
        self._producer = AsyncProducer(group=f"{TOOLS_GROUP}-resend", config=self.config)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        for part in (self._producer, self._reader, self._admin):
            await part.close()

    @property
    def topic(self) -> str:
        return dlq_topic(self.group)

    # --- reading ---

    async def count(self) -> int:
        """Return the number of dead letters."""
        ends = await asyncio.gather(*(self._bounds(queue) for queue in await self._queues()))
        return sum(end - low for low, end in ends)

    async def page(
        self,
        count: int = 32,
        *,
        after: Page | None = None,
        begin: int | datetime.datetime | None = None,
    ) -> Page:
        """Return up to `count` dead letters, oldest first, from the end of another page or from a time on.

        The page is empty if there are none, or if the group never had any."""
        if count < 1:
            raise InvalidParameter(f"a page must have at least 1 dead letter, got {count}")
        queues = await self._queues()
        starts = after.next if after is not None else await self._starts(queues, begin)
        if starts is None:
            return Page(())
        parts = await asyncio.gather(*(self._from(queue, starts.get(queue, 0), count) for queue in queues))
        found = sorted((message for part in parts for message in part), key=_age)
        following = {queue: starts.get(queue, 0) for queue in queues}
        for message in found[:count]:
            following[message.queue] = message.queue_offset + 1
        more = len(found) > count or any(len(part) == count for part in parts)
        letters = tuple(DeadLetter.of(message, self.group) for message in found[:count])
        return Page(letters, following if more else None)

    async def __aiter__(self) -> AsyncIterator[DeadLetter]:
        page = await self.page()
        while page.letters:
            for letter in page.letters:
                yield letter
            page = await self.page(after=page)

    async def get(self, message_id: str) -> DeadLetter:
        """Return the dead letter with this id, its own or the one its producer assigned; the newest if there are several.

        Raises QueryNotFound."""
        try:
            found = await self._with_id(self.topic, message_id)
            message = found[-1] if found else await self._admin.query_by_id(message_id)
        except QueryNotFound as error:
            raise QueryNotFound(f"group {self.group} has no dead letter {message_id}: {error}") from error
        if message.topic != self.topic:
            raise QueryNotFound(
                f"message {message_id} is not a dead letter of group {self.group}: it is in {message.topic}"
            )
        return DeadLetter.of(message, self.group)

    async def history(self, letter: DeadLetter | str) -> list[ReceivedMessage]:
        """Return all stored copies of the message, oldest first: as it was sent, each redelivery, and the dead letter.
        Copies that retention has deleted are missing."""
        letter = await self._letter(letter)
        found: dict[str, ReceivedMessage] = {letter.id: letter.message}
        if letter.origin_offset_id:
            try:
                first = await self._admin.query_by_id(letter.origin_offset_id)
                found[first.offset_id] = first
            except QueryNotFound:
                pass  # already deleted
        for copy in await self._with_id(retry_topic(self.group), letter.message.message_id):
            found[copy.offset_id] = copy
        # Several copies may be stored within a millisecond.
        return sorted(found.values(), key=lambda message: (message.stored_ms, message.reconsume_times))

    # --- resending ---

    async def resend(
        self, letter: DeadLetter | str, *, topic: str | None = None, only_group: bool = False, again: bool = False
    ) -> SendResult:
        """Resend a dead letter as it was sent first: body, keys, tags, properties and message id.

        It goes to its original topic, or to `topic`, for all groups that consume it; `only_group`: to the retry topic of this
        group, so that no other group gets it. If it was resent before, nothing is sent and the earlier result is returned,
        unless `again`. Returns when it is stored."""
        letter = await self._letter(letter)
        origin = topic or letter.origin_topic
        if not origin:
            raise InvalidParameter(f"dead letter {letter.id} does not name its original topic: pass `topic`")
        target = retry_topic(self.group) if only_group else origin
        if not again and (earlier := await self.resent(letter, topic=target)) is not None:
            return SendResult(
                status=SendStatus.OK,
                message_id=earlier.message_id,
                queue=earlier.queue,
                queue_offset=earlier.queue_offset,
                offset_id=earlier.offset_id,
            )
        message = letter.message
        extra = {**letter.own_properties, RESENT_FROM: letter.id}
        if message.tags:
            extra[properties.TAGS] = message.tags  # unchanged, even if our own validation would refuse it
        if only_group:
            extra[properties.RETRY_TOPIC] = origin
        plain = Message(
            target,
            message.body,
            keys=message.keys,
            flag=message.flag,
            sharding_key=message.properties.get(properties.SHARDING_KEY, ""),
        )
        core = self._producer.running()
        outgoing = single(plain, letter.origin_message_id, core.clock.message_ms(), self.config, extra=extra)
        key = plain.sharding_key or None
        return (await self._producer.sending.deliver(core, outgoing, None if only_group else key))[0]

    async def resent(self, letter: DeadLetter | str, *, topic: str | None = None) -> ReceivedMessage | None:
        """Return the resent message, None if it was not resent; searches the original topic, or `topic`."""
        letter = await self._letter(letter)
        for message in await self._with_id(topic or letter.origin_topic, letter.origin_message_id):
            if message.properties.get(RESENT_FROM) == letter.id:
                return message
        return None

    # --- queries ---

    async def _letter(self, letter: DeadLetter | str) -> DeadLetter:
        return letter if isinstance(letter, DeadLetter) else await self.get(letter)

    async def _queues(self) -> list[MessageQueue]:
        try:
            return await self._reader.queues(self.topic)
        except (UnknownTopic, TopicNotFound):
            return []  # the group has no dead letters yet

    async def _bounds(self, queue: MessageQueue) -> tuple[int, int]:
        return await self._reader.min_offset(queue), await self._reader.max_offset(queue)

    async def _starts(
        self, queues: Sequence[MessageQueue], begin: int | datetime.datetime | None
    ) -> dict[MessageQueue, int]:
        if begin is None:
            return {queue: await self._reader.min_offset(queue) for queue in queues}
        return {queue: await self._reader.search(queue, time_ms(begin)) for queue in queues}

    async def _from(self, queue: MessageQueue, start: int, count: int) -> list[ReceivedMessage]:
        found: list[ReceivedMessage] = []
        async for part in self._reader.read_parts(queue, start):
            found += part
            if len(found) >= count:
                break
        return found[:count]

    async def _with_id(self, topic: str, message_id: str) -> list[ReceivedMessage]:
        """Return the messages of a topic with this unique id, oldest first; none if the topic does not exist."""
        if not topic:
            return []
        try:
            return await self._admin.query_copies(message_id, topic)
        except (UnknownTopic, TopicNotFound):
            return []


class DeadLetters(Blocking[AsyncDeadLetters]):
    """The dead letters of one group, for programs without an event loop.

    >>> with DeadLetters("127.0.0.1:9876", group="billing") as letters:  # doctest: +SKIP
    ...     for letter in letters:
    ...         letters.resend(letter)
    """

    def __init__(
        self,
        nameserver: str | Sequence[str] | None = None,
        *,
        group: str,
        config: ClientConfig | None = None,
        **options: Unpack[ClientOptions],
    ) -> None:
        super().__init__(AsyncDeadLetters(nameserver, group=group, config=config, **options))

    def __enter__(self) -> Self:
        return self

    @property
    def topic(self) -> str:
        return self.inner.topic

    count = blocking(AsyncDeadLetters.count)
    page = blocking(AsyncDeadLetters.page)
    get = blocking(AsyncDeadLetters.get)
    history = blocking(AsyncDeadLetters.history)
    resend = blocking(AsyncDeadLetters.resend)
    resent = blocking(AsyncDeadLetters.resent)

    def __iter__(self) -> Iterator[DeadLetter]:
        return self._each(aiter(self.inner))


def _age(message: ReceivedMessage) -> tuple[int, MessageQueue, int]:
    return message.stored_ms, message.queue, message.queue_offset
