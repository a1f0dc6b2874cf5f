"""Request and reply over messages.

A request is an ordinary message to an ordinary consumer group. Its properties carry the requester's client id and a
correlation id. The reply goes to the broker's reply topic, and the broker pushes it to the requester over the
requester's own connection; it also stores the reply if configured to.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from kappamq.client.core import arguments
from kappamq.client.core.core import ClientCore
from kappamq.client.core.routes import MASTER_ID
from kappamq.client.producer.outgoing import Outgoing, single
from kappamq.client.producer.sending import Key
from kappamq.config.client import ClientConfig
from kappamq.errors import IllegalMessage, KappaError, NoRoute, NotConnected, RequestTimeout
from kappamq.message import Message, MessageQueue, ReceivedMessage, SendResult
from kappamq.net.channel import Channel
from kappamq.protocol.codes import RequestCode
from kappamq.protocol.names import reply_topic
from kappamq.protocol.records import properties

if TYPE_CHECKING:
    from kappamq.client.blocking.clients import Producer
    from kappamq.client.producer.producer import AsyncProducer

log = logging.getLogger(__name__)

REPLY: Final = "reply"
"""Value of the property MSG_TYPE of a reply."""
MEET_S: Final = 0.25
"""How long a request waits until all brokers that may push its reply know this client."""


class Requesting(ABC):
    """The request and reply methods of a producer."""

    config: ClientConfig

    @abstractmethod
    def running(self) -> ClientCore: ...

    @abstractmethod
    def _next_id(self, now_ms: int) -> str: ...

    @abstractmethod
    async def _deliver(
        self,
        core: ClientCore,
        messages: Sequence[Message],
        outgoing: Outgoing,
        key: Key | None,
        queue: MessageQueue | None,
        timeout: float | None,
    ) -> list[SendResult]: ...

    async def request(
        self,
        message: Message,
        *,
        timeout: float | None = None,
        key: Key | None = None,
        queue: MessageQueue | None = None,
    ) -> ReceivedMessage:
        """Send a message and return the reply to it; a reply that arrives after `timeout` seconds is dropped.

        Raises RequestTimeout if no reply came in time, and what `send` raises.
        """
        arguments.message(message)
        arguments.seconds("timeout", timeout)
        core = self.running()
        limit = self.config.request_timeout_ms / 1000 if timeout is None else timeout
        correlation_id = str(uuid.uuid4())
        extra = {
            properties.CORRELATION_ID: correlation_id,
            properties.REPLY_TO_CLIENT: core.client_id,
            properties.TTL: str(round(limit * 1000)),
        }
        now_ms = core.clock.message_ms()
        outgoing = single(message, self._next_id(now_ms), now_ms, self.config, extra=extra)
        chosen = key if key is not None else message.sharding_key or None
        waiting = core.requests.open(correlation_id)
        stored: SendResult | None = None
        try:
            async with asyncio.timeout(limit):
                await _be_known_to_repliers(core, message.topic)
                (stored,) = await self._deliver(core, [message], outgoing, chosen, queue, limit)
                return await waiting
        except KappaError:
            raise
        except TimeoutError:
            where = (
                f"it was stored in {stored.queue} at offset {stored.queue_offset}; "
                if stored is not None
                else "not stored yet; "
            )
            raise RequestTimeout(
                f"no reply to request {outgoing.message_ids[0]} for {message.topic!r} within {limit:g} s ({where}is a "
                "consumer running that replies to it?)"
            ) from None
        finally:
            core.requests.close(correlation_id)

    async def reply(
        self,
        request: ReceivedMessage,
        body: bytes,
        *,
        tags: str = "",
        properties: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> SendResult:
        """Reply to a request. Raises IllegalMessage if it is not a request, BrokerError if the requester is gone."""
        arguments.expect("request", request, ReceivedMessage, "the ReceivedMessage that is answered")
        core = self.running()
        now_ms = core.clock.message_ms()
        message = Message(reply_topic_of(request), body, tags=tags, properties=properties or {})
        outgoing = single(
            message,
            self._next_id(now_ms),
            now_ms,
            self.config,
            code=RequestCode.SEND_REPLY_MESSAGE_V2,
            extra=_addressed(request),
        )
        # The broker that stored the request is certain to know the requester.
        first = MessageQueue(message.topic, request.queue.broker, 0)
        try:
            return (await self._deliver(core, [message], outgoing, None, first, timeout))[0]
        except (NotConnected, NoRoute):
            return (await self._deliver(core, [message], outgoing, None, None, timeout))[0]


async def _be_known_to_repliers(core: ClientCore, topic: str) -> None:
    """Connect to every broker that has the reply topic: any of them may have to push the reply to us."""
    addresses: set[str] = set()
    for cluster in (await core.routes.find_for_sending(topic)).clusters:
        try:
            replies = await core.routes.find(reply_topic(cluster))
        except NoRoute:
            continue  # no broker of the cluster accepts replies; the consumer's reply will fail with that error
        addresses |= {masters[MASTER_ID] for masters in replies.addresses.values() if MASTER_ID in masters}
    strangers = core.requests.strangers(addresses - {channel.address for channel in core.brokers.open})
    if strangers:
        # A new connection starts with a heartbeat. Do not wait long for one: other brokers may push the reply.
        meetings = [asyncio.ensure_future(core.brokers.get(address)) for address in strangers]
        for meeting in meetings:
            meeting.add_done_callback(_met)
        await asyncio.wait(meetings, timeout=MEET_S)


def _met(meeting: asyncio.Future[Channel]) -> None:
    if not meeting.cancelled() and (error := meeting.exception()) is not None:
        log.warning("could not connect to every broker that may push a reply: %s", error)


def is_request(message: ReceivedMessage) -> bool:
    """Return whether the sender of this message waits for a reply."""
    return all(message.properties.get(name) for name in (properties.CORRELATION_ID, properties.REPLY_TO_CLIENT))


def reply_topic_of(request: ReceivedMessage) -> str:
    cluster = request.properties.get(properties.CLUSTER)
    if not is_request(request) or not cluster:
        raise IllegalMessage(f"message {request.message_id} is not a request: requests are sent with Producer.request")
    return reply_topic(cluster)


def _addressed(request: ReceivedMessage) -> dict[str, str]:
    addressed = {properties.MESSAGE_TYPE: REPLY}
    for name in (properties.CORRELATION_ID, properties.REPLY_TO_CLIENT, properties.TTL):
        if value := request.properties.get(name):
            addressed[name] = value
    return addressed


def replying(producer: Producer | AsyncProducer, answer: Callable[[ReceivedMessage], Any]) -> Callable[..., Any]:
    """Return a listener that sends what `answer` returns (bytes or text) back to the requester.

    `answer` may be a coroutine function if `producer` is an AsyncProducer. If it raises, the message is redelivered; if the
    reply cannot be delivered it is not, because the requester would have timed out by then. `answer` is also called for
    messages that are not requests.
    """
    reply: Callable[[ReceivedMessage, bytes], Any] = producer.reply
    if inspect.iscoroutinefunction(reply):

        async def listen_async(given: ReceivedMessage | list[ReceivedMessage]) -> None:
            for message in [given] if isinstance(given, ReceivedMessage) else given:
                result = answer(message)
                body = _body(await result if inspect.isawaitable(result) else result)
                if body is not None and is_request(message):
                    try:
                        await reply(message, body)
                    except KappaError as error:
                        log.warning("could not deliver the reply to request %s: %s", message.message_id, error)

        return listen_async

    def listen(given: ReceivedMessage | list[ReceivedMessage]) -> None:
        for message in [given] if isinstance(given, ReceivedMessage) else given:
            body = _body(answer(message))
            if body is not None and is_request(message):
                try:
                    reply(message, body)
                except KappaError as error:
                    log.warning("could not deliver the reply to request %s: %s", message.message_id, error)

    return listen


def _body(result: object) -> bytes | None:
    if result is None or isinstance(result, bytes):
        return result
    if isinstance(result, str):
        return result.encode()
    raise TypeError(f"a reply must be bytes or str, or None for no reply; got {type(result).__name__}")
