"""The same clients for programs without an event loop. Everything may be called from any number of threads at once."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, Self

from kappamq.client.admin import AsyncAdmin
from kappamq.client.balance import Strategy
from kappamq.client.consumer import AsyncConsumer, Topics
from kappamq.client.inbox import Delivery
from kappamq.client.listening import Listener
from kappamq.client.loop_thread import Blocking, blocking
from kappamq.client.offsets import ConsumeFrom
from kappamq.client.pressure import Allowance
from kappamq.client.producer import DEFAULT_GROUP, AsyncProducer
from kappamq.client.pull_consumer import AsyncPullConsumer
from kappamq.client.selection import Selection
from kappamq.config.client import ClientConfig
from kappamq.errors import ConfigError
from kappamq.message import Message, MessageQueue, ReceivedMessage, SendResult


class Producer(Blocking[AsyncProducer]):
    """Sends messages.

    >>> with Producer("127.0.0.1:9876", group="shop") as producer:  # doctest: +SKIP
    ...     result = producer.send(Message("orders", b"...", tags="new", keys="42"))
    """

    def __init__(
        self,
        nameserver: str | Sequence[str] | None = None,
        *,
        group: str = DEFAULT_GROUP,
        selection: str | Selection = "round-robin",
        config: ClientConfig | None = None,
        **options: Any,
    ) -> None:
        super().__init__(AsyncProducer(nameserver, group=group, selection=selection, config=config, **options))
        limits = self.inner.config
        self._allowance = Allowance(limits.inflight_max, limits.inflight_bytes_max, wait=limits.inflight_full == "wait")

    def __enter__(self) -> Self:
        return self

    send = blocking(AsyncProducer.send)
    send_batch = blocking(AsyncProducer.send_batch)
    send_oneway = blocking(AsyncProducer.send_oneway)
    request = blocking(AsyncProducer.request)
    reply = blocking(AsyncProducer.reply)
    queues = blocking(AsyncProducer.queues)

    def send_async(
        self,
        message: Message,
        *,
        key: str | int | bytes | None = None,
        queue: MessageQueue | None = None,
        timeout: float | None = None,
    ) -> Future[SendResult]:
        """Send without waiting: the future gets the result, or the error `send` would raise.

        Waits only if `inflight_max` messages or `inflight_bytes_max` bytes are on their way already, for as long as a
        send may take; with `inflight_full="raise"` not at all. Raises TooManyRequests. Callbacks of the future run on
        the client's own thread and must not block.
        """
        limit = self.inner.config.send_timeout_ms / 1000 if timeout is None else timeout
        taken = self._allowance.take(len(message.body), limit)
        try:
            future = self._at_home().submit(self.inner.send(message, key=key, queue=queue, timeout=timeout))
        except BaseException:
            self._allowance.give_back(taken)
            raise
        future.add_done_callback(lambda _: self._allowance.give_back(taken))
        return future

    def in_batches(self, messages: Iterable[Message], count_max: int = 1000) -> Iterator[list[Message]]:
        """Cut messages of one topic into lists that `send_batch` takes."""
        return self.inner.in_batches(messages, count_max)


class _InHand(threading.local):
    delivery: Delivery | None = None


class Consumer(Blocking[AsyncConsumer]):
    """A member of a consumer group. With a `listener` messages are pushed to it; without, they are asked for.

    >>> with Consumer("127.0.0.1:9876", group="billing", topics={"orders": "new || paid"}) as consumer:
    ...     for message in consumer:  # doctest: +SKIP
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
        super().__init__(
            AsyncConsumer(
                nameserver,
                group=group,
                topics=topics,
                listener=listener,
                consume_from=consume_from,
                balance=balance,
                config=config,
                **options,
            )
        )
        self._idle_timeout = idle_timeout
        self._has_listener = listener is not None
        self._in_hand = _InHand()
        self._started = False

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # Left without an error: the message in hand was dealt with.
        if kind is None:
            self._acknowledge_in_hand()
        self.close()

    def start(self) -> None:
        """Join the group and begin to pull. Raises NotConnected if no name server can be reached."""
        self._run(self.inner.start())
        self._started = True

    commit = blocking(AsyncConsumer.commit)
    subscribe = blocking(AsyncConsumer.subscribe)
    unsubscribe = blocking(AsyncConsumer.unsubscribe)

    def receive(self, timeout: float | None = None) -> ReceivedMessage | None:
        """Return the next message, or None after `timeout` seconds. It stays yours until you `ack` it."""
        delivery = self._take(timeout)
        return delivery[1] if delivery is not None else None

    def ack(self, message: ReceivedMessage) -> None:
        """This message is done. Late is fine, and twice does no harm."""
        self.inner.ack(message)

    def poll(self, timeout: float | None = None) -> ReceivedMessage | None:
        """Acknowledge the message that the last `poll` of this thread returned, and return the next."""
        self._acknowledge_in_hand()
        delivery = self._in_hand.delivery = self._take(timeout)
        return delivery[1] if delivery is not None else None

    def __iter__(self) -> Iterator[ReceivedMessage]:
        while (message := self.poll(self._idle_timeout)) is not None:
            yield message

    @property
    def assigned(self) -> list[MessageQueue]:
        """The queues that are ours at the moment."""
        return self.inner.assigned

    @property
    def positions(self) -> dict[MessageQueue, int]:
        """For each of our queues the offset below which everything is done."""
        return self.inner.positions

    def _take(self, timeout: float | None) -> Delivery | None:
        if self._has_listener:
            raise ConfigError(
                "this consumer has a listener that gets the messages: leave it out to ask for them yourself"
            )
        if not self._started:
            self.start()
        return self.inner.inbox.take_blocking(timeout)

    def _acknowledge_in_hand(self) -> None:
        delivery, self._in_hand.delivery = self._in_hand.delivery, None
        if delivery is not None:
            delivery[0].acknowledge(delivery[1].queue_offset)
            self.inner.inbox.done(delivery[0])


class PullConsumer(Blocking[AsyncPullConsumer]):
    """Reads queues by hand: any queue, any offset.

    >>> with PullConsumer("127.0.0.1:9876", group="audit") as consumer:  # doctest: +SKIP
    ...     for queue in consumer.queues("orders"):
    ...         result = consumer.pull(queue, consumer.min_offset(queue))
    """

    def __init__(
        self,
        nameserver: str | Sequence[str] | None = None,
        *,
        group: str,
        config: ClientConfig | None = None,
        **options: Any,
    ) -> None:
        super().__init__(AsyncPullConsumer(nameserver, group=group, config=config, **options))

    def __enter__(self) -> Self:
        return self

    queues = blocking(AsyncPullConsumer.queues)
    pull = blocking(AsyncPullConsumer.pull)
    position = blocking(AsyncPullConsumer.position)
    commit = blocking(AsyncPullConsumer.commit)
    committed = blocking(AsyncPullConsumer.committed)
    search = blocking(AsyncPullConsumer.search)
    min_offset = blocking(AsyncPullConsumer.min_offset)
    max_offset = blocking(AsyncPullConsumer.max_offset)

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Let the next `pull` without an offset begin here."""
        self.inner.seek(queue, offset)

    def read(
        self, queue: MessageQueue, start: int, stop: int | None = None, *, tags: str = "*"
    ) -> Iterator[ReceivedMessage]:
        """Yield the messages from offset `start` up to before `stop`, by default up to what is the end now."""
        parts = self.inner.read_parts(queue, start, stop, tags=tags)

        async def following() -> list[ReceivedMessage] | None:
            return await anext(parts, None)

        while (part := self._run(following())) is not None:
            yield from part


class Admin(Blocking[AsyncAdmin]):
    """Asks name server and brokers about topics, groups and messages, and changes them.

    >>> with Admin("127.0.0.1:9876") as admin:  # doctest: +SKIP
    ...     admin.create_topic("orders", queues=8)
    """

    def __init__(
        self, nameserver: str | Sequence[str] | None = None, *, config: ClientConfig | None = None, **options: Any
    ) -> None:
        super().__init__(AsyncAdmin(nameserver, config=config, **options))

    def __enter__(self) -> Self:
        return self

    cluster = blocking(AsyncAdmin.cluster)
    masters = blocking(AsyncAdmin.masters)
    runtime_info = blocking(AsyncAdmin.runtime_info)
    broker_config = blocking(AsyncAdmin.broker_config)
    update_broker_config = blocking(AsyncAdmin.update_broker_config)
    topics = blocking(AsyncAdmin.topics)
    route = blocking(AsyncAdmin.route)
    topic_config = blocking(AsyncAdmin.topic_config)
    create_topic = blocking(AsyncAdmin.create_topic)
    update_topic = blocking(AsyncAdmin.update_topic)
    delete_topic = blocking(AsyncAdmin.delete_topic)
    topic_stats = blocking(AsyncAdmin.topic_stats)
    groups = blocking(AsyncAdmin.groups)
    groups_of_topic = blocking(AsyncAdmin.groups_of_topic)
    create_group = blocking(AsyncAdmin.create_group)
    delete_group = blocking(AsyncAdmin.delete_group)
    consumers = blocking(AsyncAdmin.consumers)
    consumer_progress = blocking(AsyncAdmin.consumer_progress)
    reset_offset = blocking(AsyncAdmin.reset_offset)
    query_by_key = blocking(AsyncAdmin.query_by_key)
    query_by_id = blocking(AsyncAdmin.query_by_id)
    query_by_time = blocking(AsyncAdmin.query_by_time)
    offsets_at = blocking(AsyncAdmin.offsets_at)
    trace_of = blocking(AsyncAdmin.trace_of)
