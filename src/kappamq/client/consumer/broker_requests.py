"""Requests that a broker sends to a consumer over the consumer's own connection, mostly on behalf of an administrator."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from kappamq.client.group.assignment import Assignment
from kappamq.client.pulling.pulling import original
from kappamq.errors import BrokerError, KappaError
from kappamq.message import ReceivedMessage
from kappamq.protocol.bodies.admin import ConsumeDirectlyResult, ConsumerRunningInfo, ConsumerStatus
from kappamq.protocol.bodies.clients import ResetOffset
from kappamq.protocol.codes import RequestCode, ResponseCode
from kappamq.protocol.frame import Frame, reply
from kappamq.protocol.headers.client import ConsumeDirectly, GetClientStatus, GetRunningInfo, ResetClientOffset
from kappamq.protocol.records.record import decode as decode_record

log = logging.getLogger(__name__)

Consume = Callable[[ReceivedMessage], Awaitable[ConsumeDirectlyResult]]


@dataclass(frozen=True, slots=True)
class BrokerRequests:
    """`running_info` is called with whether thread stacks are wanted. `consume` passes one message to the listener at once."""

    group: str
    assignment: Assignment
    running_info: Callable[[bool], ConsumerRunningInfo]
    consume: Consume | None

    def serve(self, frame: Frame) -> Frame | Awaitable[Frame] | None:
        """Answer a request for this group. Returns None for any other request."""
        if frame.code == RequestCode.RESET_CONSUMER_CLIENT_OFFSET:
            return self._reset(frame)
        if frame.code == RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT:
            topic = GetClientStatus.decode(frame.ext).topic
            offsets = {queue.queue: queue.committable for queue in self.assignment.queues if queue.queue.topic == topic}
            return reply(frame, body=ConsumerStatus(offsets=offsets).encode())
        if frame.code == RequestCode.GET_CONSUMER_RUNNING_INFO:
            with_stack = GetRunningInfo.decode(frame.ext).stack
            return reply(frame, body=self.running_info(bool(with_stack)).encode())
        if frame.code == RequestCode.CONSUME_MESSAGE_DIRECTLY:
            return self._consume(frame)
        return None

    def _reset(self, frame: Frame) -> Frame:
        topic = ResetClientOffset.decode(frame.ext).topic
        for queue, offset in ResetOffset.decode(frame.body).offsets.items():
            if queue.topic == topic:
                log.warning("group %s: the broker reset the offset of %s to %d", self.group, queue, offset)
                self.assignment.restart(queue, offset)
        return reply(frame)

    async def _consume(self, frame: Frame) -> Frame:
        if self.consume is None:
            raise BrokerError(f"this consumer of group {self.group} has no listener to pass a message to")
        header = ConsumeDirectly.decode(frame.ext)
        try:
            message = decode_record(frame.body).to_message(header.broker_name or "")
        except KappaError as error:
            return reply(frame, ResponseCode.SYSTEM_ERROR, f"the message cannot be decoded: {error}")
        return reply(frame, body=(await self.consume(original(message))).encode())
