"""Sending messages: one, several in one request, or without an answer. Retries are in sending.py."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final, Self, Unpack

from kappamq.client.batches.batch_transaction import AsyncBatchTransaction
from kappamq.client.batches.patience import PATIENCE_S
from kappamq.client.batches.scope import Scope, Ticket, check_masters, open_scope
from kappamq.client.batches.staging import Stager
from kappamq.client.bursts.sends import Sends
from kappamq.client.bursts.waiting import Sink, Waiting
from kappamq.client.core import arguments
from kappamq.client.core import core as sharing
from kappamq.client.core.core import ClientCore
from kappamq.client.core.routes import MASTER_ID, Route
from kappamq.client.core.settings import client_config
from kappamq.client.producer import batching, recalling
from kappamq.client.producer.outgoing import Outgoing, encoded, single, together
from kappamq.client.producer.requesting import Requesting
from kappamq.client.producer.selection import Selection
from kappamq.client.producer.selection import selection as named_selection
from kappamq.client.producer.sending import MAYBE, Attempt, Failed, Key, Sending, check
from kappamq.client.trace.tracing import Tracer, trace_group
from kappamq.config.client import ClientConfig, ClientOptions
from kappamq.errors import ClientClosed, ClientError, IllegalMessage, KappaError
from kappamq.message import Message, MessageQueue, SendResult
from kappamq.protocol.address import pack_ip
from kappamq.protocol.frame import Frame
from kappamq.protocol.names import check_group
from kappamq.protocol.records.ids import UniqueIds
from kappamq.protocol.trace import MessageKind

_running_loop: Final = asyncio._get_running_loop  # None where there is none

DEFAULT_GROUP: Final = "kappamq-producer"


class AsyncProducer(Requesting):
    """Sends messages. Any number of tasks may use it at once.

    >>> async with AsyncProducer("127.0.0.1:9876", group="shop") as producer:  # doctest: +SKIP
    ...     result = await producer.send(Message("orders", b"...", tags="new", keys="42"))
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
        """`selection`: "round-robin", "sticky", or an object with `choose`. `options`: fields of ClientConfig."""
        self.config = client_config(nameserver, config, options, type(self))
        self.group = check_group(group)
        self.sending = Sending(self.config, self.group, named_selection(selection))
        self._limit_s = self.config.send_timeout_ms / 1000
        self._core: ClientCore | None = None
        self._closed = False
        self._ids: UniqueIds | None = None
        self._tracer: Tracer | None = None
        self._sends: Sends | None = None

    async def __aenter__(self) -> Self:
        self.running()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Start without connecting yet; the first send does this as well. End with `close`, or use `async with` instead of both."""
        self.running()

    def running(self) -> ClientCore:
        """Return the client core and what depends on it, created at the first call. Raises ClientClosed."""
        if self._closed:
            raise ClientClosed("this producer is closed: create a new one, it cannot be restarted")
        if self._core is None:
            self._core = sharing.acquire(self.config)
            self._core.add_producer(self.group)
            self._ids = unique_ids(self._core.client_id)
            if self.config.trace:
                self._tracer = tracer(self.config, self.group, self._core)
            on_settled = None if self._tracer is None else self._settled
            self._sends = Sends(self._core, self.sending, self._ids, on_settled)
        return self._core

    async def close(self) -> None:
        """Wait for the sends under way, each as long as it may take, and unregister from the brokers."""
        self._closed = True
        core, self._core = self._core, None
        if core is not None:
            assert self._sends is not None
            try:
                await self._sends.flush()
            finally:
                await self._sends.close()
            if self._tracer is not None:
                await self._tracer.close()
            await core.remove_producer(self.group)
            await sharing.release(core)

    async def send(
        self,
        message: Message,
        *,
        key: Key | None = None,
        queue: MessageQueue | None = None,
        timeout: float | None = None,
    ) -> SendResult:
        """Send one message and return when a broker has stored it.

        `key`: messages with the same key go to the same queue, in order; defaults to the message's `sharding_key`.
        `queue`: send to exactly this queue. `timeout`: seconds over all attempts, default `send_timeout_ms`.
        Raises SendTimeout, TooManyRequests, NoRoute, NotConnected, IllegalMessage, or the error a broker answered with.
        """
        if type(message) is not Message:
            arguments.message(message)
        if key is not None or queue is not None or timeout is not None:
            check(key, queue, timeout)
        core = self._core or self.running()
        if _running_loop() is not core.loop:
            raise self._elsewhere()
        sends, limit = self._sends, self._limit_s if timeout is None else timeout
        assert sends is not None
        accepted, born_ms = sends.moment()
        pressure, size = self.sending.pressure, len(message.body)
        if key is None:
            key = message.sharding_key or None
        sent: asyncio.Future[SendResult] = core.loop.create_future()
        entry = Waiting(message, sent, pressure, key, queue, accepted, accepted + limit, born_ms)
        if not pressure.try_take(size):
            await pressure.take(size, limit)
            if self._closed:
                pressure.give_back(size)
                self.running()  # says so
        sends.accept(entry)
        try:
            return await sent
        except asyncio.CancelledError as error:
            error.add_note(f"the message for {message.topic!r} was " + (f"sent: {MAYBE}" if entry.sent else "not sent"))
            raise

    def send_nowait(
        self,
        message: Message,
        *,
        key: Key | None = None,
        queue: MessageQueue | None = None,
        timeout: float | None = None,
    ) -> asyncio.Future[SendResult]:
        """Send without waiting: the future gets the result, or the error that `send` would raise. The fastest way to send much.

        Raises TooManyRequests if `inflight_max` messages or `inflight_bytes_max` bytes are in flight; `drain` waits for room. A future
        that is cancelled before its message was sent keeps it from being sent.
        """
        if type(message) is not Message:
            arguments.message(message)
        if key is not None or queue is not None or timeout is not None:
            check(key, queue, timeout)
        core = self._core or self.running()
        if _running_loop() is not core.loop:
            raise self._elsewhere()
        pressure = self.sending.pressure
        sent: asyncio.Future[SendResult] = core.loop.create_future()
        sends = self._sends
        assert sends is not None
        accepted, born_ms = sends.moment()
        limit = self._limit_s if timeout is None else timeout
        if key is None:
            key = message.sharding_key or None
        entry = Waiting(message, sent, pressure, key, queue, accepted, accepted + limit, born_ms)
        if not pressure.try_take(entry.size):
            raise pressure.full()
        sends.accept(entry)
        return sent

    async def drain(self) -> None:
        """Return when there is room for a `send_nowait`: at once, if the limits of sends in flight are not reached."""
        if self.sending.pressure.is_full:
            await self.sending.pressure.take(0, None, patient=True)
            self.sending.pressure.give_back(0)

    async def flush(self) -> None:
        """Return when every message that was handed over before is stored or has failed; do not linger for it."""
        if self._sends is not None:
            await self._sends.flush()

    def accept(self, handed: deque[Waiting], count: int) -> None:
        """Send this many messages, already counted against the limits, and report to their sinks; on the loop of this producer.

        Their timeouts begin now: until now their time of acceptance was 0."""
        self.running()
        sends = self._sends
        assert sends is not None
        for _ in range(count):
            entry = handed[0]
            entry.accepted, entry.born_ms = sends.moment()
            entry.deadline += entry.accepted
            sends.accept(entry)
            handed.popleft()  # only now, so that it is always counted in one of the two places

    @property
    def core(self) -> ClientCore | None:
        """The client core while this producer is open, else None."""
        return None if self._closed else self._core

    async def go_on(
        self,
        outgoing: Outgoing,
        route: Route,
        attempt: Attempt,
        outcome: Frame | KappaError,
        key: Key | None,
        queue: MessageQueue | None,
        limit: float,
        deadline: float,
    ) -> SendResult:
        """Go on with one message after a first attempt made elsewhere. `outcome`: the answer, or why there is none."""
        core = self.running()
        if isinstance(outcome, Frame):
            try:
                return self.sending.answered(core, outgoing, attempt, outcome)[0]
            except KappaError as error:
                first = Failed(attempt, route, error)
        else:
            first = Failed(attempt, route, self.sending.unanswered(core, attempt, outcome))
        return (await self.sending.tries(core, outgoing, key, queue, limit, deadline, first))[0]

    def _elsewhere(self) -> ClientError:
        if _running_loop() is None:
            return ClientError("send_nowait needs the event loop of this producer: in threads, use Producer.send_async")
        return ClientError("this producer belongs to another event loop: create one in each")

    @property
    def sinks(self) -> list[Sink]:
        """The sinks of the messages in flight."""
        return self._sends.sinks if self._sends is not None else []

    @property
    def under_way(self) -> int:
        """The number of messages that were accepted and are neither stored nor failed."""
        return len(self._sends) if self._sends is not None else 0

    async def send_batch(
        self,
        messages: Iterable[Message],
        *,
        key: Key | None = None,
        queue: MessageQueue | None = None,
        timeout: float | None = None,
    ) -> list[SendResult]:
        """Send messages of one topic in one request: all are stored, contiguously in one queue, or none.

        Returns a result for each. Refuses more than fits into one request; `in_batches` splits a long list.
        """
        listed = batching.listed(messages)
        if not listed:
            raise IllegalMessage("the batch has no messages")
        core = self.running()
        now_ms = core.clock.message_ms()
        ids = [self._next_id(now_ms) for _ in listed]
        outgoing = together(listed, ids, now_ms, self.config)
        return await self._deliver(core, listed, outgoing, key, queue, timeout)

    async def send_encoded(
        self, topic: str, body: bytes, *, queue: MessageQueue | None = None, timeout: float | None = None
    ) -> SendResult:
        """Send a batch whose body is already encoded (`kappamq.native` encodes many at a time); see `send_batch`.

        Returns the position of its first message. The members must have ids of their own."""
        core = self.running()
        outgoing = encoded(topic, body, core.clock.message_ms(), self.config)
        return (await self.sending.deliver(core, outgoing, None, queue, timeout))[0]

    async def send_oneway(
        self,
        message: Message,
        *,
        key: Key | None = None,
        queue: MessageQueue | None = None,
        timeout: float | None = None,
    ) -> None:
        """Send once without waiting for an answer: fast, but a lost message goes unnoticed."""
        core = self.running()
        now_ms = core.clock.message_ms()
        outgoing = single(message, self._next_id(now_ms), now_ms, self.config)
        chosen = key if key is not None else message.sharding_key or None
        await self.sending.once(core, outgoing, chosen, queue, timeout)

    async def recall(self, sent: SendResult | str, *, timeout: float | None = None) -> str:
        """Cancel a message that waits for its delivery time (`delay`, `deliver_at`): the broker will not deliver it.

        `sent`: what `send` returned, or its `recall_handle`. Returns the message id. Raises IllegalOperation if the message is
        already due or the handle is invalid, NoPermission if the broker does not allow it (RocketMQ's default), and as `send` does.
        """
        core = self.running()
        limit = self.config.send_timeout_ms / 1000 if timeout is None else timeout
        return await recalling.recall(core, self.group, sent, limit, self._tracer)

    def batch_transaction(self, scope: str, number: int, *, owner: str | None = None) -> AsyncBatchTransaction:
        """Send messages to any queues so that all of them are published or none, each once: enter it with `async with`.

        `scope` names a sequence of batches, `number` the batch in it, counted up. A batch that is repeated, with the same messages,
        changes nothing. `owner`: who may write to the scope, default this producer's group. Needs KappaMQ brokers.
        """
        arguments.text("scope", scope)
        arguments.number("number", number)
        return AsyncBatchTransaction(self.running, self.config, self._next_id, scope, number, owner or self.group)

    async def open_scope(self, name: str, owner: str, *, patience_s: float = PATIENCE_S) -> Scope:
        """Open a scope whose batches several processes write: one begins a batch, each stages its part, one decides."""
        return await open_scope(self.running(), name, owner, patience_s=patience_s)

    async def check_masters(self, scope: str) -> None:
        """Raises NotConnected or NotSupported, which name the broker, where batch transactions are not possible now."""
        await check_masters(self.running(), scope)

    def stager(self, ticket: Ticket, *, partition: int = 0, attempt: int = 0, patience_s: float = PATIENCE_S) -> Stager:
        """Return a stager for a part of a batch; only chunks that the decision lists are published."""
        core = self.running()
        return Stager(
            core, self.config, ticket, self._next_id, partition=partition, attempt=attempt, patience_s=patience_s
        )

    def in_batches(self, messages: Iterable[Message], count_max: int = 1000) -> Iterator[list[Message]]:
        """Split any number of messages of one topic into lists that fit into a `send_batch` each."""
        return batching.cut(messages, self.config.message_bytes_max, count_max)

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return the writable queues of `topic`."""
        arguments.text("topic", topic)
        return list((await self.running().routes.find_for_sending(topic)).publish)

    async def _deliver(
        self,
        core: ClientCore,
        messages: Sequence[Message],
        outgoing: Outgoing,
        key: Key | None,
        queue: MessageQueue | None,
        timeout: float | None,
    ) -> list[SendResult]:
        traces = self._tracer
        if traces is None:
            return await self.sending.deliver(core, outgoing, key, queue, timeout)
        try:
            results = await self.sending.deliver(core, outgoing, key, queue, timeout)
        except KappaError:
            traces.published(messages, outgoing.message_ids, None, began_ms=outgoing.born_ms, kind=outgoing.kind)
            raise
        host = _host(core, results[0])
        traces.published(
            messages, outgoing.message_ids, results, began_ms=outgoing.born_ms, kind=outgoing.kind, store_host=host
        )
        return results

    def _settled(self, entry: Waiting, message_id: str, result: SendResult | None) -> None:
        """Trace a message that `send` accepted."""
        traces, core, message = self._tracer, self._core, entry.message
        if traces is None:
            return
        is_late = message.delay_level or message.delay is not None or message.deliver_at is not None
        kind = MessageKind.ORDER if message.sharding_key else MessageKind.NORMAL
        traces.published(
            [message],
            [message_id],
            None if result is None else [result],
            began_ms=entry.born_ms,
            kind=MessageKind.DELAY if is_late else kind,
            store_host="" if result is None or core is None else _host(core, result),
        )

    def _next_id(self, now_ms: int) -> str:
        assert self._ids is not None
        return self._ids.next(now_ms)


def _host(core: ClientCore, result: SendResult) -> str:
    """Return the address of the broker that stored a message."""
    route = core.routes.cached(result.queue.topic)
    return route.addresses.get(result.queue.broker, {}).get(MASTER_ID, "") if route is not None else ""


def tracer(config: ClientConfig, group: str, core: ClientCore) -> Tracer:
    """Return a started tracer that sends with a producer of its own; for producers and consumers."""
    inner = AsyncProducer(config=replace(config, trace=False), group=trace_group(group))
    return Tracer(config, group, core.clock, inner.send, inner.close)


def unique_ids(client_id: str) -> UniqueIds:
    """Return a source of message ids for this process."""
    try:
        host = pack_ip(client_id.partition("@")[0])
    except KappaError:
        host = secrets.token_bytes(4)
    return UniqueIds(host, os.getpid(), secrets.randbits(32))
