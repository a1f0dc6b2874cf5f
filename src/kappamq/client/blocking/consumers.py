"""The same consumers for programs without an event loop. All methods are thread-safe unless they say otherwise."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Self, TypeVar, Unpack

from kappamq.client.blocking.loop_thread import Blocking, blocking
from kappamq.client.consumer.consumer import AsyncConsumer
from kappamq.client.consumer.inbox import Delivery
from kappamq.client.consumer.listening import Listener
from kappamq.client.consumer.lite_pull import POLL_S, AsyncLitePullConsumer
from kappamq.client.consumer.pull_consumer import AsyncPullConsumer
from kappamq.client.group.balance import Strategy
from kappamq.client.group.group_member import DRAIN_S, GroupMember
from kappamq.client.group.offsets import ConsumeFrom
from kappamq.client.group.subscription import Topics
from kappamq.client.pulling.pulling import Wanted
from kappamq.client.pulling.raw_reads import LANES, STRIPE, Pace
from kappamq.config.client import ClientConfig, ClientOptions
from kappamq.errors import ConfigError
from kappamq.message import MessageQueue, PulledBytes, ReceivedMessage

M = TypeVar("M", bound=GroupMember)
R = TypeVar("R")


class _InHand(threading.local):
    delivery: Delivery | None = None


class _Member(Blocking[M]):
    """The methods that all group consumers share."""

    commit = blocking(GroupMember.commit)
    subscribe = blocking(GroupMember.subscribe)
    unsubscribe = blocking(GroupMember.unsubscribe)

    def close(self, drain: float = DRAIN_S) -> None:
        """Stop pulling, let listeners finish for up to `drain` seconds, commit the offsets, leave the group."""
        self._close(self.inner.close(drain))

    def pause(self, queues: Collection[MessageQueue] | None = None) -> None:
        """Stop pulling and handing out these queues, by default all, until `resume`. Messages in flight are not affected."""
        self._run(_called(lambda: self.inner.pause(queues)))

    def resume(self, queues: Collection[MessageQueue] | None = None) -> None:
        """Resume these queues, by default all."""
        self._run(_called(lambda: self.inner.resume(queues)))

    @property
    def assigned(self) -> list[MessageQueue]:
        """The queues currently assigned to this consumer."""
        return self.inner.assigned

    @property
    def damaged(self) -> int:
        """How many damaged messages have been skipped; the log names them."""
        return self.inner.damaged

    @property
    def positions(self) -> dict[MessageQueue, int]:
        """The offset of each assigned queue below which everything is acknowledged."""
        return self.inner.positions


async def _called(call: Callable[[], R]) -> R:
    """Runs `call` on the loop's thread."""
    return call()


class Consumer(_Member[AsyncConsumer]):
    """A member of a consumer group. Pushes messages to `listener` if there is one; otherwise the application iterates.

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
        ordered: bool = False,
        broadcasting: bool = False,
        consume_from: ConsumeFrom = "last",
        balance: str | Strategy = "averagely",
        idle_timeout: float | None = None,
        config: ClientConfig | None = None,
        **options: Unpack[ClientOptions],
    ) -> None:
        """See AsyncConsumer for the arguments."""
        super().__init__(
            AsyncConsumer(
                nameserver,
                group=group,
                topics=topics,
                listener=listener,
                ordered=ordered,
                broadcasting=broadcasting,
                consume_from=consume_from,
                balance=balance,
                idle_timeout=idle_timeout,
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
        # The block ended without an error, so the last message was processed.
        if kind is None:
            self._acknowledge_in_hand()
        self.close()

    def start(self) -> None:
        """Join the group and start pulling. Raises NotConnected if no name server can be reached."""
        self._run(self.inner.start())
        self._started = True

    retry = blocking(AsyncConsumer.retry)

    def receive(self, timeout: float | None = None) -> ReceivedMessage | None:
        """Return the next message, or None after `timeout` seconds. It stays in flight until you `ack` or `retry` it."""
        delivery = self._take(timeout)
        return delivery.message if delivery is not None else None

    def ack(self, message: ReceivedMessage) -> None:
        """Acknowledge a message. May be called late, and more than once."""
        self.inner.ack(message)

    def poll(self, timeout: float | None = None) -> ReceivedMessage | None:
        """Acknowledge the message that the last `poll` of this thread returned, and return the next one."""
        self._acknowledge_in_hand()
        delivery = self._in_hand.delivery = self._take(timeout)
        return delivery.message if delivery is not None else None

    def __iter__(self) -> Iterator[ReceivedMessage]:
        while (message := self.poll(self._idle_timeout)) is not None:
            with self.inner.reading():
                yield message

    def _take(self, timeout: float | None) -> Delivery | None:
        if self._has_listener:
            raise ConfigError(
                "this consumer passes its messages to a listener: create it without one to read them yourself"
            )
        if not self._started:
            self.start()
        delivery = self.inner.inbox.take_blocking(timeout)
        return self.inner.took(delivery) if delivery is not None else None

    def _acknowledge_in_hand(self) -> None:
        delivery, self._in_hand.delivery = self._in_hand.delivery, None
        if delivery is not None:
            self.inner.acknowledge(delivery)


class LitePullConsumer(_Member[AsyncLitePullConsumer]):
    """Polls messages that are fetched in the background. Supports one reader only.

    >>> with LitePullConsumer("127.0.0.1:9876", group="audit", topics="orders") as consumer:
    ...     messages = consumer.poll(timeout=1.0)  # doctest: +SKIP
    ...     # the next poll, or commit, acknowledges these
    """

    def __init__(
        self,
        nameserver: str | Sequence[str] | None = None,
        *,
        group: str,
        topics: Topics | None = None,
        consume_from: ConsumeFrom = "last",
        balance: str | Strategy = "averagely",
        auto_commit: bool = True,
        idle_timeout: float | None = None,
        config: ClientConfig | None = None,
        **options: Unpack[ClientOptions],
    ) -> None:
        """See AsyncLitePullConsumer for the arguments."""
        super().__init__(
            AsyncLitePullConsumer(
                nameserver,
                group=group,
                topics=topics,
                consume_from=consume_from,
                balance=balance,
                auto_commit=auto_commit,
                idle_timeout=idle_timeout,
                config=config,
                **options,
            )
        )
        self._idle_timeout = idle_timeout
        self._started = False

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # The block ended without an error, so the last poll was processed.
        if kind is None:
            self.inner.acknowledge()
        self.close()

    def start(self) -> None:
        """Join the group and start fetching. Raises NotConnected if no name server can be reached."""
        self._run(self.inner.start())
        self._started = True

    def poll(self, timeout: float = POLL_S, count_max: int | None = None) -> list[ReceivedMessage]:
        """Return the next messages, at most `count_max` (`pull_batch`); an empty list if none arrive within `timeout` seconds.

        Acknowledges what the previous poll returned.
        """
        if not self._started:
            self.start()
        limit = self.inner.next_poll(count_max)
        return self.inner.keep(self.inner.inbox.take_blocking(timeout, limit), limit)

    def __iter__(self) -> Iterator[ReceivedMessage]:
        while not self.inner.inbox.closed:
            messages = self.poll(POLL_S if self._idle_timeout is None else self._idle_timeout, 1)
            if not messages and self._idle_timeout is not None:
                return
            with self.inner.reading():
                yield from messages

    subscribe = blocking(AsyncLitePullConsumer.subscribe)
    assign = blocking(AsyncLitePullConsumer.assign)
    queues = blocking(AsyncLitePullConsumer.queues)
    seek = blocking(AsyncLitePullConsumer.seek)
    seek_to_begin = blocking(AsyncLitePullConsumer.seek_to_begin)
    seek_to_end = blocking(AsyncLitePullConsumer.seek_to_end)
    seek_to_time = blocking(AsyncLitePullConsumer.seek_to_time)
    search = blocking(AsyncLitePullConsumer.search)
    committed = blocking(AsyncLitePullConsumer.committed)

    def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Commit these offsets, by default everything polled so far, and wait until the brokers have stored them."""
        self._run(self.inner.commit(offsets))


class PullConsumer(Blocking[AsyncPullConsumer]):
    """Pulls from any queue at any offset.

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
        **options: Unpack[ClientOptions],
    ) -> None:
        super().__init__(AsyncPullConsumer(nameserver, group=group, config=config, **options))

    def __enter__(self) -> Self:
        return self

    queues = blocking(AsyncPullConsumer.queues)
    pull = blocking(AsyncPullConsumer.pull)
    pull_bytes = blocking(AsyncPullConsumer.pull_bytes)
    pull_each = blocking(AsyncPullConsumer.pull_each)
    position = blocking(AsyncPullConsumer.position)
    commit = blocking(AsyncPullConsumer.commit)
    committed = blocking(AsyncPullConsumer.committed)
    search = blocking(AsyncPullConsumer.search)
    min_offset = blocking(AsyncPullConsumer.min_offset)
    max_offset = blocking(AsyncPullConsumer.max_offset)

    @property
    def damaged(self) -> int:
        """How many damaged messages have been skipped; the log names them."""
        return self.inner.damaged

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Let the next `pull` without an offset begin here."""
        self.inner.seek(queue, offset)

    def read_bytes(
        self,
        queue: MessageQueue,
        start: int,
        stop: int,
        *,
        lanes: int = LANES,
        stripe: int = STRIPE,
        tags: str = "*",
        pace: Pace | None = None,
    ) -> Iterator[PulledBytes]:
        """Yield the stored bytes of the messages [start, stop) in order, with several pulls in flight.

        With `tags` the broker filters by tag hash, and messages beyond `stop` may be included. `pace` limits the rate, and may be
        shared by several reads."""
        parts = self.inner.read_bytes_parts(queue, start, stop, lanes=lanes, stripe=stripe, tags=tags, pace=pace)
        for answers in self._each(parts):
            yield from answers

    def read(
        self, queue: MessageQueue, start: int, stop: int | None = None, *, tags: Wanted = "*"
    ) -> Iterator[ReceivedMessage]:
        """Yield the messages from offset `start` up to, not including, `stop`; by default up to the current end."""
        for part in self._each(self.inner.read_parts(queue, start, stop, tags=tags)):
            yield from part
