"""Replies of request-reply calls: handed to the client that asked, over the connection it has opened, then stored.

The requester is found by its client id, which its heartbeats as a producer have told. If it has gone, or does not take the
reply, the replier hears code 1 and why; nobody else waits for either of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kappamq.broker.clients.registry import Clients
from kappamq.broker.requests.request import Handler, Request
from kappamq.broker.sending.appending import Appender, Draft
from kappamq.broker.sending.send import Sends
from kappamq.broker.sending.send_requests import sent_by
from kappamq.clock import Clock
from kappamq.config.broker import BrokerConfig
from kappamq.errors import IllegalMessage, NotConnected, RequestTimeout
from kappamq.native.layout import SYS_TRANSACTION
from kappamq.net.serving.connection import Connection
from kappamq.protocol import address
from kappamq.protocol.codes import RequestCode, ResponseCode
from kappamq.protocol.frame import Frame
from kappamq.protocol.frame import request as request_frame
from kappamq.protocol.headers.client import PushReply, SendMessage, SendMessageResponse
from kappamq.protocol.records import properties
from kappamq.state.topics import Topics

PUSH_S: Final = 10.0
"""How long a requester has to take a reply."""
_LATER: Final = (properties.DELAY, *sorted(properties.TIMER_NAMES))


class Replies:
    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        topics: Topics,
        clients: Clients,
        sends: Sends,
        appender: Appender,
        address_of: Callable[[], str],
    ) -> None:
        self._config = config
        self._clock = clock
        self._topics = topics
        self._clients = clients
        self._sends = sends
        self._appender = appender
        self._address_of = address_of
        self.push_s = PUSH_S

    def handlers(self) -> dict[int, Handler]:
        return {RequestCode.SEND_REPLY_MESSAGE: self.handle, RequestCode.SEND_REPLY_MESSAGE_V2: self.handle}

    async def handle(self, request: Request[SendMessage]) -> Frame:
        header = request.header
        self._sends.check_gate()
        topic = self._topics.for_send(header)
        queue_id = self._sends.queue_of(header, topic)
        self._check(header)
        self._sends.check_supported(header, topic)
        draft = self._sends.draft(sent_by(request), topic, queue_id)
        failure = await self._push(request.connection, header, draft)
        answer = SendMessageResponse(message_id="0", queue_id=0, queue_offset=0)
        if self._config.store_replies:
            answer = await self._store(draft)
        if failure:
            return request.reply(ResponseCode.SYSTEM_ERROR, failure, header=answer)
        return request.reply(header=answer)

    def _check(self, header: SendMessage) -> None:
        pairs = properties.decode(header.properties or "")
        half = header.sys_flag & SYS_TRANSACTION or properties.TRANSACTION_PREPARED in pairs
        if header.batch or half or any(pairs.get(name, "0") != "0" for name in _LATER):
            raise IllegalMessage("a reply is one message, sent at once: no batch, no delay, no transaction")
        if not pairs.get(properties.REPLY_TO_CLIENT):
            raise IllegalMessage(f"the reply does not say who asked: property {properties.REPLY_TO_CLIENT} is missing")

    async def _push(self, connection: Connection, header: SendMessage, draft: Draft) -> str:
        """Hand the reply to the requester; returns what went wrong, empty if nothing."""
        client_id = draft.properties[properties.REPLY_TO_CLIENT]
        requester = self._clients.producer(client_id)
        if requester is None or not requester.is_open:
            return f"push reply message fail, channel of <{client_id}> not found: the requester has gone"
        if requester.is_stalled:
            return f"push reply message to <{client_id}> fail: it does not read what was sent to it before"
        now = self._clock.message_ms()
        pushed = PushReply(
            producer_group=header.producer_group,
            topic=draft.topic,
            default_topic=header.default_topic,
            default_topic_queues=header.default_topic_queues,
            queue_id=draft.queue_id,
            sys_flag=draft.sys_flag,
            born_ms=draft.born_ms,
            flag=draft.flag,
            properties=properties.encode({**draft.properties, properties.PUSH_REPLY_TIME: str(now)}),
            reconsume_times=draft.reconsume_times,
            unit_mode=header.unit_mode,
            born_host=address.join(*connection.peer),
            store_host=self._address_of(),
            store_ms=now,
        )
        try:
            answer = await requester.request(request_frame(pushed, draft.body), self.push_s)
        except (NotConnected, RequestTimeout) as error:
            return f"push reply message to <{client_id}> fail: {error}"
        if answer.code != ResponseCode.SUCCESS:
            return f"push reply message to <{client_id}> fail: it answered {answer.code} {answer.remark or ''}".rstrip()
        return ""

    async def _store(self, draft: Draft) -> SendMessageResponse:
        waits = draft.waits_for_disk
        placed = self._appender.append(draft)
        await self._appender.answerable(placed.end, flushed=waits)
        return SendMessageResponse(
            message_id=self._sends.offset_id(placed.log_offset),
            queue_id=draft.queue_id,
            queue_offset=placed.queue_offset,
            transaction_id=draft.properties[properties.UNIQUE_KEY],
            region=self._config.region,
            trace_on="true" if self._config.trace_on else "false",
        )
