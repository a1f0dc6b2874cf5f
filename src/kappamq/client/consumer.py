"""Consuming as a member of a group: the queues are shared out, each message goes to one member.

Delivered at least once: what was not acknowledged when a consumer died, or lost a queue to another, comes again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Self

from kappamq.client import core as sharing
from kappamq.client.assignment import Assignment
from kappamq.client.balance import Strategy, strategy
from kappamq.client.core import ClientCore, every
from kappamq.client.inbox import Delivery, Inbox
from kappamq.client.listening import Listener, Listening
from kappamq.client.offsets import ConsumeFrom, Offsets, check_consume_from
from kappamq.client.pulling import Interest
from kappamq.client.running_info import running_info
from kappamq.client.settings import client_config
from kappamq.config.client import ClientConfig
from kappamq.errors import ClientClosed, ConfigError, KappaError, NoRoute
from kappamq.message import MessageQueue, ReceivedMessage
from kappamq.protocol.bodies_clients import ConsumeFromWhere, ConsumerData, ConsumeType, MessageModel, ResetOffset
from kappamq.protocol.codes import RequestCode
from kappamq.protocol.frame import Frame, reply
from kappamq.protocol.headers_client import SendBack
from kappamq.protocol.names import check_group, check_topic, retry_topic

log = logging.getLogger(__name__)

Topics = str | Iterable[str] | Mapping[str, str]
"""One topic, several, or each with the tags wanted of it: {"orders": "new || paid", "returns": "*"}."""

DRAIN_S: Final = 10.0
"""How long closing waits for listeners to finish the messages they have."""
AGAIN_S: Final = 5.0
"""A message whose listener failed, and which the broker does not take back, comes again after this."""

_FROM_WHERE: Final = {
    "last": ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
    "first": ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
}


class AsyncConsumer:
    """A member of a consumer group. With a `listener` messages are pushed to it; without, they are asked for.

    >>> async with AsyncConsumer("127.0.0.1:9876", group="billing", topics={"orders": "new || paid"}) as consumer:
    ...     async for message in consumer:  # doctest: +SKIP
    ...         ...  # asking for the next message acknowledges this one
    """

    def __init__(
        self,
        nameserver: str | Sequence[str] | None = None,
        *,
        group: str,
        topics: Topics,
        listener: Listener | None = None,
        consume_from: ConsumeFrom = "last",
        balance: str | Strategy = "averagely",
        idle_timeout: float | None = None,
        config: ClientConfig | None = None,
        **options: Any,
    ) -> None:
        """`consume_from`: where a group begins that has no offsets yet. `idle_timeout`: iteration ends after so many
        seconds without a message. `listener`: a function (called in threads) or coroutine function (called in tasks),
        `consume_threads` of them at once. `options`: fields of ClientConfig.
        """
        self.config = client_config(nameserver, config, options)
        self.group = check_group(group)
        self.inbox = Inbox()
        self._topics = _topics(topics)
        self._listener = listener
        self._consume_from = check_consume_from(consume_from)
        self._strategy = strategy(balance)
        self._idle_timeout = idle_timeout
        self._interests: list[Interest] = []
        self._core: ClientCore | None = None
        self._offsets: Offsets | None = None
        self._assignment: Assignment | None = None
        self._listening: Listening | None = None
        self._committing: asyncio.Task[None] | None = None
        self._in_hand: Delivery | None = None
        self._started_ms = 0
        self._closed = False

    # --- life ---

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # Left without an error: the message in hand was dealt with.
        if kind is None:
            self._acknowledge_in_hand()
        await self.close()

    async def start(self) -> None:
        """Join the group and begin to pull. Raises NotConnected if no name server can be reached."""
        if self._closed:
            raise ClientClosed("this consumer is closed")
        if self._core is not None:
            return
        core = self._core = sharing.acquire(self.config, consumer_group=self.group)
        self._started_ms = core.clock.message_ms()
        self._set_interests()
        core.add_member(self)
        self._offsets = Offsets(core, self.group)
        self._assignment = Assignment(
            core,
            self.group,
            lambda: self._interests,
            self.inbox,
            self._offsets,
            strategy=self._strategy,
            start=self._consume_from,
        )
        try:
            for interest in self._interests:
                try:
                    await core.routes.find(interest.topic)
                except NoRoute:
                    pass  # it may come; balancing says so and looks again
            await core.heartbeat()
            balanced = await self._assignment.balance()
        except BaseException:
            await self.close()
            raise
        if self._listener is not None:
            self._listening = Listening(
                self.inbox,
                self._listener,
                self._failed,
                workers=self.config.consume_threads,
                name=f"kappamq-{self.group}",
            )
            self._listening.start()
        self._assignment.start(balanced=balanced)
        self._committing = asyncio.create_task(every(self.config.commit_ms / 1000, self.commit, "storing offsets"))

    async def close(self, drain: float = DRAIN_S) -> None:
        """Stop pulling, let listeners finish for up to `drain` seconds, store the offsets, leave the group."""
        if self._closed:
            return
        self._closed = True
        core, assignment = self._core, self._assignment
        if core is None or assignment is None:
            self.inbox.close()
            return
        try:
            if self._committing is not None:
                self._committing.cancel()
                await asyncio.gather(self._committing, return_exceptions=True)
            await assignment.stop_pulling()
            self.inbox.close()
            if self._listening is not None and not await self._listening.wait(drain):
                log.warning(
                    "group %s: a listener is still busy after %g s; its message will come again", self.group, drain
                )
            await self._commit(strict=True)
        except KappaError as error:
            log.warning("group %s: offsets were not stored when closing: %s", self.group, error)
        finally:
            for queue in assignment.queues:
                queue.dropped = True
            await core.remove_member(self)
            await sharing.release(core)

    # --- reading ---

    async def receive(self, timeout: float | None = None) -> ReceivedMessage | None:
        """Return the next message, or None after `timeout` seconds. It stays yours until you `ack` it."""
        await self.start()
        self._check_no_listener()
        delivery = await self.inbox.take_async(timeout)
        return delivery[1] if delivery is not None else None

    def ack(self, message: ReceivedMessage) -> None:
        """This message is done. From any thread; late is fine, and twice does no harm."""
        queue = self._assignment.get(message.queue) if self._assignment is not None else None
        if queue is not None:
            queue.acknowledge(message.queue_offset)

    async def poll(self, timeout: float | None = None) -> ReceivedMessage | None:
        """Acknowledge the message that the last `poll` returned, and return the next; for one reader."""
        await self.start()
        self._check_no_listener()
        self._acknowledge_in_hand()
        self._in_hand = await self.inbox.take_async(timeout)
        return self._in_hand[1] if self._in_hand is not None else None

    async def __aiter__(self) -> AsyncIterator[ReceivedMessage]:
        while (message := await self.poll(self._idle_timeout)) is not None:
            yield message

    def _acknowledge_in_hand(self) -> None:
        delivery, self._in_hand = self._in_hand, None
        if delivery is not None:
            delivery[0].acknowledge(delivery[1].queue_offset)
            self.inbox.done(delivery[0])

    def _check_no_listener(self) -> None:
        if self._listener is not None:
            raise ConfigError(
                "this consumer has a listener that gets the messages: leave it out to ask for them yourself"
            )

    # --- offsets and topics ---

    async def commit(self) -> None:
        """Store how far the group has come, now. Happens by itself every `commit_ms` and at the end."""
        await self._commit(strict=False)

    async def _commit(self, *, strict: bool) -> None:
        if self._offsets is not None and self._assignment is not None:
            offsets = {queue.queue: queue.committable for queue in self._assignment.queues if not queue.dropped}
            await self._offsets.commit(offsets, strict=strict)

    @property
    def assigned(self) -> list[MessageQueue]:
        """The queues that are ours at the moment."""
        return sorted(queue.queue for queue in self._assignment.queues) if self._assignment is not None else []

    @property
    def positions(self) -> dict[MessageQueue, int]:
        """For each of our queues the offset below which everything is done."""
        return {queue.queue: queue.committable for queue in self._assignment.queues} if self._assignment else {}

    async def subscribe(self, topics: Topics) -> None:
        """Add topics, or change the tags wanted of them. All members of a group must subscribe to the same."""
        self._topics.update(_topics(topics))
        await self._resubscribe()

    async def unsubscribe(self, topic: str) -> None:
        self._topics.pop(topic, None)
        await self._resubscribe()

    async def _resubscribe(self) -> None:
        if self._core is not None and self._assignment is not None:
            self._set_interests()
            await self._core.heartbeat()
            self._assignment.soon()

    def _set_interests(self) -> None:
        assert self._core is not None
        version = self._core.clock.message_ms()
        wanted = {**self._topics, retry_topic(self.group): "*"}
        self._interests = [Interest(topic, expression, version) for topic, expression in wanted.items()]

    # --- failed messages ---

    async def _failed(self, delivery: Delivery) -> None:
        """Give a message back, so that it comes again later, here or at another member."""
        queue, message = delivery
        core = self._core
        assert core is not None
        header = SendBack(
            log_offset=message.log_offset,
            group=self.group,
            delay_level=0,
            origin_message_id=message.message_id,
            origin_topic=message.topic,
            unit_mode=False,
            max_reconsume_times=16,
            logical_broker=message.queue.broker,
        )
        try:
            route = await core.routes.find(message.queue.topic)
            await core.ask(route.master(message.queue.broker), header)
            queue.acknowledge(message.queue_offset)
            return
        except KappaError as error:
            log.warning(
                "the broker does not take message %s back (%s): it comes again in %g s",
                message.message_id,
                error,
                AGAIN_S,
            )
        # Not acknowledged, so it holds the offset back: a crash now delivers it again as well.
        again = replace(message, reconsume_times=message.reconsume_times + 1)
        asyncio.get_running_loop().call_later(AGAIN_S, self._deliver_again, (queue, again))

    def _deliver_again(self, delivery: Delivery) -> None:
        if not self.inbox.closed:
            self.inbox.put(delivery[0], [delivery[1]])

    # --- what the core asks ---

    def heartbeat(self) -> ConsumerData:
        start = self._consume_from
        return ConsumerData(
            group=self.group,
            consume_type=ConsumeType.CONSUME_PASSIVELY,
            message_model=MessageModel.CLUSTERING,
            from_where=_FROM_WHERE[start] if isinstance(start, str) else ConsumeFromWhere.CONSUME_FROM_TIMESTAMP,
            subscriptions=[interest.to_body() for interest in self._interests],
        )

    def group_changed(self) -> None:
        if self._assignment is not None:
            self._assignment.soon()

    def serve(self, frame: Frame) -> Frame | None:
        if frame.code == RequestCode.GET_CONSUMER_RUNNING_INFO and self._assignment is not None:
            info = running_info(self.config, self._started_ms, self._interests, self._assignment.queues)
            return reply(frame, body=info.encode())
        if frame.code == RequestCode.RESET_CONSUMER_CLIENT_OFFSET and self._assignment is not None:
            for queue, offset in ResetOffset.decode(frame.body).offsets.items():
                self._assignment.restart(queue, offset)
            return reply(frame)
        return None


def _topics(topics: Topics) -> dict[str, str]:
    if isinstance(topics, str):
        topics = {topics: "*"}
    elif not isinstance(topics, Mapping):
        topics = dict.fromkeys(topics, "*")
    if not topics:
        raise ConfigError('a consumer needs a topic: topics="orders", or topics={"orders": "new || paid"}')
    for topic, expression in topics.items():
        check_topic(topic)
        if not isinstance(expression, str):
            raise ConfigError(
                f'the tags of {topic!r} are a text such as "new || paid", or "*" for all; got {expression!r}'
            )
    return {topic: expression.strip() or "*" for topic, expression in topics.items()}
