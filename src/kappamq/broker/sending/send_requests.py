"""Sends that come over the remoting protocol (10, 310, 320): handed to `Sends`, and answered when what it stored is safe."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from kappamq.broker.requests.answers import answer_when_stored
from kappamq.broker.requests.request import Handler, Request
from kappamq.broker.sending.log_writer import LogWriter
from kappamq.broker.sending.send import Sends, Sent, Stored, Target
from kappamq.config.broker import BrokerConfig
from kappamq.net.requests.beside import Beside
from kappamq.net.requests.reader import InOrder
from kappamq.net.requests.sizes import BESIDE_BYTES
from kappamq.protocol.codes import RequestCode
from kappamq.protocol.headers.client import SendMessage, SendMessageResponse

Run = Callable[[Coroutine[Any, Any, None]], None]


def sent_by(request: Request[SendMessage]) -> Sent:
    """What a request brings, without the protocol that brought it."""
    return Sent(request.header, request.body, request.connection.born, request.version)


class SendRequests:
    def __init__(self, sends: Sends, config: BrokerConfig, writer: LogWriter, beside: Beside, run: Run) -> None:
        self._sends = sends
        self._config = config
        self._writer = writer
        self._beside = beside
        self._run = run

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.SEND_MESSAGE: self.handle,
            RequestCode.SEND_MESSAGE_V2: self.handle,
            RequestCode.SEND_BATCH_MESSAGE: self.handle,
        }

    def handle(self, request: Request[SendMessage]) -> InOrder | None:
        sent = sent_by(request)
        if sent.header.batch or request.code == RequestCode.SEND_BATCH_MESSAGE:
            target = self._sends.batch_target(sent)
            if len(sent.body) > BESIDE_BYTES:
                return InOrder(self._batch_beside(request, sent, target))
            stored = self._sends.append_batch(self._sends.read_batch(sent, target))
        else:
            stored = self._sends.send(sent)
        if stored.is_fresh:
            self._writer.set_turn()
            self._run(self._answer_when_announced(request, stored))
        else:
            self._answer(request, stored)
        return None

    async def _answer_when_announced(self, request: Request[SendMessage], stored: Stored) -> None:
        """A client that made a topic by sending to it asks for its route next: the name servers should know it by then."""
        await self._sends.announced()
        self._answer(request, stored)

    async def _batch_beside(self, request: Request[SendMessage], sent: Sent, target: Target) -> None:
        """A large batch is read beside the loop. What was appended is answered at once: its sender waits for nobody else's work."""
        read = await self._beside.run(request.connection, self._sends.read_batch, sent, target, size=len(sent.body))
        self._sends.check_again(sent.header)
        stored = self._sends.append_batch(read)
        if stored.is_fresh:
            await self._sends.announced()
        self._answer(request, stored)

    def _answer(self, request: Request[SendMessage], stored: Stored) -> None:
        header = SendMessageResponse(
            message_id=stored.ids,
            queue_id=stored.queue_id,
            queue_offset=stored.queue_offset,
            transaction_id=stored.unique,
            recall_handle=stored.recall_handle,
            region=self._config.region,
            trace_on="true" if self._config.trace_on else "false",
        )
        answer_when_stored(self._writer, request, request.reply(header=header), stored.end, flushed=stored.waits)
