"""Sending. One overall time limit, within it a few tries, each on another broker if there is one.

Tried again is what may work elsewhere or later (`KappaError.retry`): lost connections, and answers such as "busy" or
"no permission here". A message that may have been stored already keeps its id in every try, so a consumer can tell.
Not tried again is a send to a queue the caller chose, by `queue` or by `key`: another queue would break the order.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, Self

from kappamq.client import core as sharing
from kappamq.client.core import ClientCore
from kappamq.client.outgoing import Outgoing, single, size_in_batch, together
from kappamq.client.routes import Route
from kappamq.client.selection import Failing, Selection, by_key
from kappamq.client.selection import selection as named_selection
from kappamq.client.settings import client_config
from kappamq.config.client import ClientConfig
from kappamq.errors import (
    ClientClosed,
    IllegalMessage,
    KappaError,
    NoRoute,
    NotAvailable,
    NotConnected,
    RequestTimeout,
    Retry,
    SendTimeout,
    for_code,
)
from kappamq.message import Message, MessageQueue, SendResult, SendStatus
from kappamq.protocol.address import pack_ip
from kappamq.protocol.codes import ResponseCode
from kappamq.protocol.frame import Frame
from kappamq.protocol.headers_client import SendMessageResponse
from kappamq.protocol.ids import UniqueIds
from kappamq.protocol.names import check_group

DEFAULT_GROUP: Final = "kappamq-producer"
PAUSE_S: Final = 0.05
"""Before the same broker is tried again; doubled each time."""
REFRESH_S: Final = 0.5
"""How long a retry waits for a fresh route before it goes on with the old one."""

_STATUS: Final = {
    ResponseCode.SUCCESS: SendStatus.OK,
    ResponseCode.FLUSH_DISK_TIMEOUT: SendStatus.FLUSH_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT: SendStatus.SLAVE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE: SendStatus.SLAVE_NOT_AVAILABLE,
}


class AsyncProducer:
    """Sends messages, from any number of tasks at once.

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
        **options: Any,
    ) -> None:
        """`selection`: "round-robin", "sticky", or an object with `choose`. `options`: fields of ClientConfig."""
        self.config = client_config(nameserver, config, options)
        self.group = check_group(group)
        self._selection = named_selection(selection)
        self._failing = Failing()
        self._core: ClientCore | None = None
        self._closed = False
        self._ids: UniqueIds | None = None
        self._gate = asyncio.Semaphore(self.config.inflight_max)

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def start(self) -> ClientCore:
        """Connects to nothing yet; also done by the first send."""
        if self._closed:
            raise ClientClosed("this producer is closed")
        if self._core is None:
            self._core = sharing.acquire(self.config)
            self._core.add_producer(self.group)
            self._ids = unique_ids(self._core.client_id)
        return self._core

    async def close(self) -> None:
        """Leave the brokers' tables. Sends that still wait for their answer fail when this was the last user."""
        self._closed = True
        core, self._core = self._core, None
        if core is not None:
            await core.remove_producer(self.group)
            await sharing.release(core)

    async def send(
        self,
        message: Message,
        *,
        key: str | int | bytes | None = None,
        queue: MessageQueue | None = None,
        timeout: float | None = None,
    ) -> SendResult:
        """Send one message and return when a broker has stored it.

        `key`: messages of one key go to the same queue, in order; without it the message's `sharding_key` counts.
        `queue`: exactly there. `timeout`: seconds over all tries, default `send_timeout_ms`.
        Raises SendTimeout, NoRoute, NotConnected, IllegalMessage, or the error a broker answered with.
        """
        core = self.start()
        now_ms = core.clock.message_ms()
        outgoing = single(message, self._next_id(now_ms), now_ms, self.config)
        chosen = key if key is not None else message.sharding_key or None
        return (await self._deliver(core, outgoing, chosen, queue, timeout))[0]

    async def send_batch(
        self,
        messages: Iterable[Message],
        *,
        key: str | int | bytes | None = None,
        queue: MessageQueue | None = None,
        timeout: float | None = None,
    ) -> list[SendResult]:
        """Send messages of one topic in one request: all are stored, next to each other in one queue, or none.

        Returns a result for each. More than one request can hold is refused; `in_batches` cuts a long list.
        """
        listed = list(messages)
        if not listed:
            raise IllegalMessage("the batch has no messages")
        core = self.start()
        now_ms = core.clock.message_ms()
        ids = [self._next_id(now_ms) for _ in listed]
        outgoing = together(listed, ids, now_ms, self.config)
        return await self._deliver(core, outgoing, key, queue, timeout)

    async def send_oneway(
        self,
        message: Message,
        *,
        key: str | int | bytes | None = None,
        queue: MessageQueue | None = None,
        timeout: float | None = None,
    ) -> None:
        """Send once and ask for no answer: fast, and nobody says if the message was lost on the way."""
        core = self.start()
        now_ms = core.clock.message_ms()
        outgoing = single(message, self._next_id(now_ms), now_ms, self.config)
        limit = self.config.send_timeout_ms / 1000 if timeout is None else timeout
        deadline = core.clock.liveness() + limit
        try:
            async with asyncio.timeout(limit):
                route = await core.routes.find_for_sending(message.topic)
                chosen = self._choose(route, key if key is not None else message.sharding_key or None, queue, None)
                channel = await core.brokers.get(route.master(chosen.broker))
                header = outgoing.header(self.group, chosen.queue_id, chosen.broker, self.config)
                await channel.oneway(header, outgoing.body, deadline - core.clock.liveness())
        except (TimeoutError, RequestTimeout) as error:
            raise SendTimeout(
                f"the message for {message.topic!r} was not on its way within {limit:g} s: {error}"
            ) from None

    def in_batches(self, messages: Iterable[Message], count_max: int = 1000) -> Iterator[list[Message]]:
        """Cut messages of one topic into lists that `send_batch` takes."""
        part: list[Message] = []
        length = 0
        for message in messages:
            size = size_in_batch(message)
            if part and (length + size > self.config.message_bytes_max or len(part) >= count_max):
                yield part
                part, length = [], 0
            part.append(message)
            length += size
        if part:
            yield part

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues of `topic` that take messages."""
        return list((await self.start().routes.find_for_sending(topic)).publish)

    # --- the tries ---

    async def _deliver(
        self,
        core: ClientCore,
        outgoing: Outgoing,
        key: str | int | bytes | None,
        queue: MessageQueue | None,
        timeout: float | None,
    ) -> list[SendResult]:
        limit = self.config.send_timeout_ms / 1000 if timeout is None else timeout
        deadline = core.clock.liveness() + limit
        tries = 1 if key is not None or queue is not None else 1 + self.config.send_retries
        failures: list[KappaError] = []
        if self._gate.locked():
            await self._wait_at_gate(limit)
        else:
            await self._gate.acquire()
        try:
            failed_broker: str | None = None
            for number in range(tries):
                route = core.routes.ready(outgoing.topic) or await self._route(core, outgoing.topic, deadline)
                chosen = self._choose(route, key, queue, failed_broker)
                if chosen.broker == failed_broker:
                    await asyncio.sleep(PAUSE_S * 2**number)
                left = deadline - core.clock.liveness()
                if left <= 0:
                    break
                try:
                    return await self._try(core, outgoing, route, chosen, left, last=number == tries - 1)
                except RequestTimeout as error:
                    failures.append(error)
                    break  # it had all the time there was
                except KappaError as error:
                    failures.append(error)
                    if error.retry is Retry.NEVER or number == tries - 1:
                        raise
                    failed_broker = chosen.broker
                    if error.retry is Retry.AFTER_ROUTE_REFRESH or isinstance(error, NotConnected):
                        await self._refresh(core, outgoing.topic)
        except KappaError as error:
            for number, earlier in enumerate(failures):
                if earlier is not error:
                    error.add_note(f"try {number + 1} had failed with: {earlier}")
            raise
        except TimeoutError:
            failures.append(NoRoute(f"the name server did not tell the route of {outgoing.topic!r} in time"))
        finally:
            self._gate.release()
        tried = "; ".join(str(failure) for failure in failures)
        raise SendTimeout(
            f"no broker confirmed message {outgoing.message_ids[0]} for {outgoing.topic!r} within {limit:g} s "
            f"({tried}): it may have been stored, sending it again may store it twice"
        )

    async def _wait_at_gate(self, limit: float) -> None:
        try:
            async with asyncio.timeout(limit):
                await self._gate.acquire()
        except TimeoutError:
            raise SendTimeout(
                f"{self.config.inflight_max} sends wait for their answers already, and none came within {limit:g} s"
            ) from None

    async def _route(self, core: ClientCore, topic: str, deadline: float) -> Route:
        async with asyncio.timeout(deadline - core.clock.liveness()):
            return await core.routes.find_for_sending(topic)

    def _choose(
        self, route: Route, key: str | int | bytes | None, queue: MessageQueue | None, failed_broker: str | None
    ) -> MessageQueue:
        if queue is not None:
            if queue.topic != route.topic:
                raise IllegalMessage(f"the message is for {route.topic!r}, but the queue given is {queue}")
            return queue
        if key is not None:
            return by_key(route.publish, key)
        core = self.start()
        return self._selection.choose(self._failing.without(route.publish, core.clock.liveness()), failed_broker)

    async def _try(
        self, core: ClientCore, outgoing: Outgoing, route: Route, queue: MessageQueue, left: float, *, last: bool
    ) -> list[SendResult]:
        address = route.master(queue.broker)
        try:
            # As long as nothing was sent it is safe to give up early and leave time for another broker.
            channel = await core.brokers.get(address, left if last else left / 2)
            header = outgoing.header(self.group, queue.queue_id, queue.broker, self.config)
            answer = await channel.request(header, outgoing.body, left, code=outgoing.code)
        except NotConnected:
            self._failing.add(queue.broker, core.clock.liveness())
            raise
        if answer.code == ResponseCode.GO_AWAY:
            core.brokers.drop(address)
        status = _STATUS.get(answer.code)  # type: ignore[call-overload]
        if status is None:
            raise for_code(answer.code, answer.remark)
        if status is not SendStatus.OK and self.config.retry_not_stored_ok and not last:
            raise NotAvailable(f"{queue.broker} has stored the message, but: {status}")
        return _results(answer, outgoing, queue, status)

    async def _refresh(self, core: ClientCore, topic: str) -> None:
        try:
            async with asyncio.timeout(REFRESH_S):
                await core.routes.refresh(topic)
        except (TimeoutError, KappaError):
            pass  # the old route must do

    def _next_id(self, now_ms: int) -> str:
        assert self._ids is not None
        return self._ids.next(now_ms)


def _results(answer: Frame, outgoing: Outgoing, queue: MessageQueue, status: SendStatus) -> list[SendResult]:
    header = SendMessageResponse.decode(answer.ext)
    offset_ids = header.message_id.split(",")
    stored = MessageQueue(queue.topic, queue.broker, header.queue_id)
    return [
        SendResult(
            status=status,
            message_id=message_id,
            queue=stored,
            queue_offset=header.queue_offset + number,
            offset_id=offset_ids[number] if number < len(offset_ids) else "",
            transaction_id=header.transaction_id or "",
            region=header.region or "",
        )
        for number, message_id in enumerate(outgoing.message_ids)
    ]


def unique_ids(client_id: str) -> UniqueIds:
    """Return a source of message ids for this process."""
    try:
        host = pack_ip(client_id.partition("@")[0])
    except KappaError:
        host = secrets.token_bytes(4)
    return UniqueIds(host, os.getpid(), secrets.randbits(32))
