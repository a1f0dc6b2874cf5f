"""Consuming as a member of a group: the queues are divided among the members, each message goes to one of them.

Delivery is at least once: messages not acknowledged when a consumer dies, or loses a queue to another, are redelivered.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from typing import Unpack

from kappamq.client.consumer.broker_requests import Consume
from kappamq.client.consumer.direct import consume_directly
from kappamq.client.consumer.inbox import Delivery
from kappamq.client.consumer.listening import Listener, Listening
from kappamq.client.consumer.outcomes import Broadcast, Concurrent, InOrder, Outcome
from kappamq.client.consumer.redelivery import NO_LIMIT, RECONSUME_MAX, Redelivery
from kappamq.client.core import arguments
from kappamq.client.core.core import ClientCore
from kappamq.client.core.settings import client_config
from kappamq.client.group.balance import Strategy, strategy
from kappamq.client.group.group_member import GroupMember
from kappamq.client.group.offsets import ConsumeFrom, check_consume_from
from kappamq.client.group.subscription import Topics, wanted_topics
from kappamq.client.producer.producer import tracer
from kappamq.client.pulling.pulling import PullStyle
from kappamq.client.trace.tracing import Reading, Tracer, traced
from kappamq.config.client import ClientConfig, ClientOptions
from kappamq.errors import ConfigError
from kappamq.message import RETRY, ReceivedMessage, Redeliver
from kappamq.protocol import trace
from kappamq.protocol.bodies.admin import ConsumeDirectlyResult


class AsyncConsumer(GroupMember):
    """A member of a consumer group. Pushes messages to `listener` if there is one; otherwise the application iterates.

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
        ordered: bool = False,
        broadcasting: bool = False,
        consume_from: ConsumeFrom = "last",
        balance: str | Strategy = "averagely",
        idle_timeout: float | None = None,
        config: ClientConfig | None = None,
        **options: Unpack[ClientOptions],
    ) -> None:
        """`listener`: a function (called in threads) or coroutine function (called in tasks), up to `consume_threads`
        calls at once; with `consume_batch` above 1 it gets lists of messages of one queue. If it raises or returns
        `Redeliver`, its messages are redelivered. `ordered`: one message of each queue at a time, at one member at a
        time. `broadcasting`: every member gets every message. `consume_from`: the initial position of a group without
        committed offsets. `idle_timeout`: iteration ends after this many seconds without a message. `options`: fields
        of ClientConfig.
        """
        super().__init__(
            client_config(nameserver, config, options, type(self)),
            group,
            wanted_topics(topics),
            start=check_consume_from(consume_from),
            strategy=strategy(balance),
            style=PullStyle(commits=not broadcasting),
            ordered=ordered,
            broadcasting=broadcasting,
        )
        if listener is not None and not callable(listener):
            raise ConfigError(f"listener must be a function that takes a message; got {listener!r}")
        arguments.seconds("idle_timeout", idle_timeout)
        self._listener = listener
        self._idle_timeout = idle_timeout
        self._listening: Listening | None = None
        self._outcome: Outcome | None = None
        self._in_hand: Delivery | None = None
        self._tracer: Tracer | None = None
        self._reading: Reading | None = None

    # --- lifecycle ---

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # The block ended without an error, so the last message was processed.
        if kind is None:
            self._acknowledge_in_hand()
        await self.close()

    def unfinished(self, besides: object = None) -> int:
        if self._listener is None:
            return super().unfinished(besides)
        return sum(queue.count - queue.resting for queue in self.held if not queue.suspended and not queue.paused)

    def _begin(self, core: ClientCore) -> None:
        self._outcome = self._make_outcome(core)
        listener = self._listener
        if self.config.trace:
            self._tracer = tracer(self.config, self.group, core)
            self._reading = Reading(self._tracer)
            listener = traced(listener, self._tracer) if listener is not None else None
        if listener is not None:
            self._listening = Listening(
                self.inbox,
                listener,
                self._outcome,
                workers=self.config.consume_threads,
                name=f"kappamq-{self.group}",
                batch=self.config.consume_batch,
                timeout_s=self.config.consume_timeout_ms / 1000,
                measure=self._measure,
            )
            self._listening.start()

    async def _drain(self, timeout: float) -> bool:
        try:
            return self._listening is None or await self._listening.wait(timeout)
        finally:
            if self._tracer is not None:
                await self._tracer.close()

    def _make_outcome(self, core: ClientCore) -> Outcome:
        config = self.config
        limit = config.reconsume_max if config.reconsume_max >= 0 else None
        if self.ordered:
            redelivery = Redelivery(core, self.group, NO_LIMIT if limit is None else limit)
            suspend = config.suspend_ms / 1000
            return InOrder(self.inbox, None if self.broadcasting else redelivery, suspend, limit, core.later)
        if self.broadcasting:
            return Broadcast()
        redelivery = Redelivery(core, self.group, RECONSUME_MAX if limit is None else limit)
        return Concurrent(self.inbox, redelivery, config.again_ms / 1000, core.later)

    def _measure(self, delivery: Delivery, seconds: float, ok: bool) -> None:
        queue = delivery.queue
        count = len(delivery.messages)
        calls = 1 if self.config.consume_batch > 1 else count
        self.stats.consumed(queue.queue.topic, count, seconds, ok, self._now(), calls)
        queue.consumed_ms = time.time_ns() // 1_000_000

    def _consume_now(self) -> Consume | None:
        return self._consume_directly if self._listener is not None else None

    async def _consume_directly(self, message: ReceivedMessage) -> ConsumeDirectlyResult:
        assert self._listener is not None
        given = [message] if self.config.consume_batch > 1 else message
        return await consume_directly(self._listener, given, ordered=self.ordered)

    # --- reading ---

    async def receive(self, timeout: float | None = None) -> ReceivedMessage | None:
        """Return the next message, or None after `timeout` seconds. It stays in flight until you `ack` or `retry` it."""
        await self.start()
        self._check_no_listener()
        delivery = await self.inbox.take_async(timeout)
        return self.took(delivery).message if delivery is not None else None

    def ack(self, message: ReceivedMessage) -> None:
        """Acknowledge a message. May be called from any thread, late, and more than once."""
        arguments.received(message)
        queue = self._assignment.get(message.queue) if self._assignment is not None else None
        if queue is not None:
            queue.acknowledge(message.queue_offset)
        self.inbox.done_with(message.queue, message.queue_offset)
        self._ended(message)

    async def retry(self, message: ReceivedMessage, verdict: Redeliver = RETRY) -> None:
        """Negatively acknowledge a message: it is redelivered later, as if a listener had failed on it."""
        arguments.received(message)
        arguments.expect("verdict", verdict, Redeliver, "RETRY, or a Redeliver")
        queue = self._assignment.get(message.queue) if self._assignment is not None else None
        if queue is not None and self._outcome is not None:
            delivery = self.inbox.out(message.queue, message.queue_offset) or Delivery(queue, [message])
            self._ended(message, trace.Outcome.FAILED)
            await self._outcome.failed(delivery, verdict)

    async def poll(self, timeout: float | None = None) -> ReceivedMessage | None:
        """Acknowledge the message that the last `poll` returned and return the next one. Supports one reader only."""
        await self.start()
        self._check_no_listener()
        self._acknowledge_in_hand()
        self._in_hand = await self.inbox.take_async(timeout)
        return self.took(self._in_hand).message if self._in_hand is not None else None

    async def __aiter__(self) -> AsyncIterator[ReceivedMessage]:
        while (message := await self.poll(self._idle_timeout)) is not None:
            with self.reading():
                yield message

    def acknowledge(self, delivery: Delivery) -> None:
        """Acknowledge what was taken from the inbox. Thread-safe."""
        delivery.acknowledge()
        self.inbox.done(delivery)
        self._ended(delivery.message)

    def took(self, delivery: Delivery) -> Delivery:
        """Note that a reader took this delivery from the inbox. Thread-safe."""
        if self._reading is not None:
            self._reading.took(delivery.message)
        return delivery

    def _ended(self, message: ReceivedMessage, outcome: trace.Outcome = trace.Outcome.SUCCESS) -> None:
        if self._reading is not None:
            self._reading.ended(message, outcome)

    def _acknowledge_in_hand(self) -> None:
        delivery, self._in_hand = self._in_hand, None
        if delivery is not None:
            self.acknowledge(delivery)

    def _check_no_listener(self) -> None:
        if self._listener is not None:
            raise ConfigError(
                "this consumer passes its messages to a listener: create it without one to read them yourself"
            )
