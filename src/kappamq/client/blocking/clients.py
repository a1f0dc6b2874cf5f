"""Producers and admins for programs without an event loop; consumers are in consumers.py.

All methods are thread-safe.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, Self, Unpack

from kappamq.client.admin.admin import AsyncAdmin
from kappamq.client.batches.patience import PATIENCE_S
from kappamq.client.batches.scope import Ticket
from kappamq.client.batches.staging import Stager
from kappamq.client.blocking.batch_scope import BatchScope, BatchStager
from kappamq.client.blocking.batch_transaction import BatchTransaction
from kappamq.client.blocking.handover import Handover, WholeAllowance
from kappamq.client.blocking.loop_thread import Blocking, LoopThread, blocking
from kappamq.client.blocking.send_future import SendFuture
from kappamq.client.blocking.short_way import ShortWay
from kappamq.client.bursts.waiting import Callback, CallbackSink, Limits, Sink, complain
from kappamq.client.core import arguments
from kappamq.client.producer.pressure import Allowance
from kappamq.client.producer.producer import DEFAULT_GROUP, AsyncProducer
from kappamq.client.producer.selection import Selection
from kappamq.client.producer.sending import Key, check
from kappamq.config.client import ClientConfig, ClientOptions
from kappamq.errors import ClientClosed
from kappamq.message import Message, MessageQueue, SendResult


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
        **options: Unpack[ClientOptions],
    ) -> None:
        self._make(AsyncProducer(nameserver, group=group, selection=selection, config=config, **options))

    def _make(self, inner: AsyncProducer) -> None:
        super().__init__(inner)
        limits = inner.config
        self._allowance = Allowance(limits.inflight_max, limits.inflight_bytes_max, wait=limits.inflight_full == "wait")
        self._handover: Handover | None = None
        self._making = threading.Lock()
        self._short_way = ShortWay(inner, self._run)

    def __enter__(self) -> Self:
        return self

    def send(
        self,
        message: Message,
        *,
        key: Key | None = None,
        queue: MessageQueue | None = None,
        timeout: float | None = None,
    ) -> SendResult:
        """Send one message and return when a broker has stored it. See AsyncProducer.send."""
        arguments.message(message)
        check(key, queue, timeout)
        home = self._at_home()
        if key is None:
            key = message.sharding_key or None
        anywhere = key is None and queue is None
        if not home.is_here and (anywhere or not self.under_way):  # no message with the same key may be overtaken
            result = self._short_way.send(message, key, queue, timeout)
            if result is not None:
                return result
        return self._run(self.inner.send(message, key=key, queue=queue, timeout=timeout))

    send_batch = blocking(AsyncProducer.send_batch)
    send_encoded = blocking(AsyncProducer.send_encoded)
    send_oneway = blocking(AsyncProducer.send_oneway)
    request = blocking(AsyncProducer.request)
    reply = blocking(AsyncProducer.reply)
    recall = blocking(AsyncProducer.recall)
    queues = blocking(AsyncProducer.queues)

    def batch_transaction(self, scope: str, number: int, *, owner: str | None = None) -> BatchTransaction:
        """Send messages to any queues so that all of them are published or none, each once: enter it with `with`.

        See AsyncProducer.batch_transaction."""
        return BatchTransaction(self._run, self.inner.batch_transaction(scope, number, owner=owner))

    def open_scope(self, name: str, owner: str, *, patience_s: float = PATIENCE_S) -> BatchScope:
        """Open a scope whose batches several processes write. See AsyncProducer.open_scope."""
        return BatchScope(self._run, self._run(self.inner.open_scope(name, owner, patience_s=patience_s)))

    check_masters = blocking(AsyncProducer.check_masters)

    def stager(
        self, ticket: Ticket, *, partition: int = 0, attempt: int = 0, patience_s: float = PATIENCE_S
    ) -> BatchStager:
        """Stages a part of a batch. See AsyncProducer.stager."""

        async def make() -> Stager:  # on the loop that it is used on
            return self.inner.stager(ticket, partition=partition, attempt=attempt, patience_s=patience_s)

        return BatchStager(self._run, self._run(make()))

    def send_async(
        self,
        message: Message,
        *,
        key: Key | None = None,
        queue: MessageQueue | None = None,
        timeout: float | None = None,
    ) -> Future[SendResult]:
        """Send without waiting: the future gets the result, or the error that `send` would raise.

        Blocks only if `inflight_max` messages or `inflight_bytes_max` bytes are in flight, for as long as a send may take;
        with `inflight_full="raise"`, or in a callback, not at all. Raises TooManyRequests. Callbacks of the future run on the client's own
        thread and must not block.
        """
        future = SendFuture()
        self._hand_over(message, future, key, queue, timeout)
        return future

    def send_callback(
        self,
        message: Message,
        callback: Callback,
        *,
        key: Key | None = None,
        queue: MessageQueue | None = None,
        timeout: float | None = None,
    ) -> None:
        """`send_async` without a future: calls `callback(result, None)`, or `callback(None, error)`.

        It is called once, on the client's own thread, and must not block. It may send."""
        self._hand_over(message, CallbackSink(callback, complain), key, queue, timeout)

    def flush(self) -> None:
        """Return when every message that was handed over before is stored or has failed; do not linger for it."""
        if self._handover is not None:
            self._run(self.inner.flush())

    def forked(self) -> None:
        waiting = self.inner.sinks + (self._handover.put_so_far if self._handover is not None else [])
        for sink in waiting:
            if isinstance(sink, SendFuture):
                sink.abandon(
                    ClientClosed("the process was forked: only the parent will know whether this message is stored")
                )

    def hurry(self) -> None:
        if self._handover is not None:
            self._handover.hurry()

    def _at_home(self) -> LoopThread:
        home = super()._at_home()
        self.hurry()  # calls there run after the messages handed over before
        return home

    def _close(self, closing: Coroutine[Any, Any, None]) -> None:
        here = self._home is not None and self._home.is_here
        if (
            self._process == os.getpid() and not here
        ):  # a thread that holds a line may wait for the loop, so this is refused there
            self.hurry()
            self._short_way.close()
        super()._close(closing)

    @property
    def under_way(self) -> int:
        """The number of messages that were handed over and are neither stored nor failed."""
        handed = len(self._handover) if self._handover is not None else 0  # first: a message goes from here to there
        return handed + self.inner.under_way

    def send_encoded_async(
        self, topic: str, body: bytes, *, queue: MessageQueue | None = None, timeout: float | None = None
    ) -> Future[SendResult]:
        """`send_encoded` without waiting; see `send_async`."""
        limit = self.inner.config.send_timeout_ms / 1000 if timeout is None else timeout
        taken = self._allowance.take(len(body), limit)
        try:
            future = self._at_home().submit(self.inner.send_encoded(topic, body, queue=queue, timeout=timeout))
        except BaseException:
            self._allowance.give_back(taken)
            raise
        future.add_done_callback(lambda _: self._allowance.give_back(taken))
        return future

    def _hand_over(
        self, message: Message, sink: Sink, key: Key | None, queue: MessageQueue | None, timeout: float | None
    ) -> None:
        if type(message) is not Message:
            arguments.message(message)
        if key is not None or queue is not None or timeout is not None:
            check(key, queue, timeout)
        home = self._home
        if home is None or self._handover is None or self._process != os.getpid():
            home = self._at_home()
        if (handover := self._handover) is None:
            with self._making:
                handover = self._handover = self._handover or Handover(home, self.inner)
        size = len(message.body)
        limits: Limits = self._allowance
        if not self._allowance.try_take(size):
            limit = self.inner.config.send_timeout_ms / 1000 if timeout is None else timeout
            taken = self._allowance.take(size, 0.0 if home.is_here else limit)  # the loop gives room: it must not wait
            if taken != size:
                limits = WholeAllowance(self._allowance, taken)
        handover.put(message, sink, limits, key, queue, timeout)

    def in_batches(self, messages: Iterable[Message], count_max: int = 1000) -> Iterator[list[Message]]:
        """Split messages of one topic into lists that fit into a `send_batch` each."""
        return self.inner.in_batches(messages, count_max)


class Admin(Blocking[AsyncAdmin]):
    """Queries and changes topics, groups and brokers.

    >>> with Admin("127.0.0.1:9876") as admin:  # doctest: +SKIP
    ...     admin.create_topic("orders", queues=8)
    """

    def __init__(
        self,
        nameserver: str | Sequence[str] | None = None,
        *,
        config: ClientConfig | None = None,
        **options: Unpack[ClientOptions],
    ) -> None:
        super().__init__(AsyncAdmin(nameserver, config=config, **options))

    def __enter__(self) -> Self:
        return self

    cluster = blocking(AsyncAdmin.cluster)
    masters = blocking(AsyncAdmin.masters)
    members = blocking(AsyncAdmin.members)
    transfer_leader = blocking(AsyncAdmin.transfer_leader)
    runtime_info = blocking(AsyncAdmin.runtime_info)
    broker_config = blocking(AsyncAdmin.broker_config)
    update_broker_config = blocking(AsyncAdmin.update_broker_config)
    topics = blocking(AsyncAdmin.topics)
    route = blocking(AsyncAdmin.route)
    topic_config = blocking(AsyncAdmin.topic_config)
    create_topic = blocking(AsyncAdmin.create_topic)
    update_topic = blocking(AsyncAdmin.update_topic)
    resize_topic = blocking(AsyncAdmin.resize_topic)
    delete_topic = blocking(AsyncAdmin.delete_topic)
    scopes = blocking(AsyncAdmin.scopes)
    reset_scope = blocking(AsyncAdmin.reset_scope)
    topic_stats = blocking(AsyncAdmin.topic_stats)
    master_stats = blocking(AsyncAdmin.master_stats)
    groups = blocking(AsyncAdmin.groups)
    groups_of_topic = blocking(AsyncAdmin.groups_of_topic)
    create_group = blocking(AsyncAdmin.create_group)
    delete_group = blocking(AsyncAdmin.delete_group)
    consumers = blocking(AsyncAdmin.consumers)
    consumer_progress = blocking(AsyncAdmin.consumer_progress)
    reset_offset = blocking(AsyncAdmin.reset_offset)
    clone_offsets = blocking(AsyncAdmin.clone_offsets)
    query_by_key = blocking(AsyncAdmin.query_by_key)
    find_in_index = blocking(AsyncAdmin.find_in_index)
    query_by_id = blocking(AsyncAdmin.query_by_id)
    query_copies = blocking(AsyncAdmin.query_copies)
    query_by_time = blocking(AsyncAdmin.query_by_time)
    offsets_at = blocking(AsyncAdmin.offsets_at)
    trace_of = blocking(AsyncAdmin.trace_of)
