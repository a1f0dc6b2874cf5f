"""Requests of this client that wait for a reply, found by their correlation id when a broker brings one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Final

from kappamq.clock import Clock
from kappamq.errors import ProtocolError
from kappamq.message import MessageQueue, ReceivedMessage
from kappamq.protocol.codes import ResponseCode
from kappamq.protocol.frame import Frame, reply
from kappamq.protocol.headers.client import PushReply
from kappamq.protocol.records import compression, properties
from kappamq.protocol.records.record import SYS_COMPRESSED

log = logging.getLogger(__name__)

AGAIN_S: Final = 5.0
"""A broker that was out of reach is tried again after this."""


class Requests:
    """Belongs to the loop of its client core."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: dict[str, asyncio.Future[ReceivedMessage]] = {}
        self._met: dict[str, float] = {}  # address -> when somebody last tried to connect to it

    def __len__(self) -> int:
        return len(self._waiting)

    def open(self, correlation_id: str) -> asyncio.Future[ReceivedMessage]:
        """Return what will hold the reply. Who opens must `close`."""
        waiting: asyncio.Future[ReceivedMessage] = asyncio.get_running_loop().create_future()
        self._waiting[correlation_id] = waiting
        return waiting

    def close(self, correlation_id: str) -> None:
        self._waiting.pop(correlation_id, None)

    def strangers(self, addresses: Iterable[str]) -> list[str]:
        """Return those of `addresses` to connect to; each is tried only so often, however many requests there are."""
        now = self._clock.liveness()
        self._met = {address: at for address, at in self._met.items() if now - at < AGAIN_S}
        strangers = [address for address in addresses if address not in self._met]
        self._met.update(dict.fromkeys(strangers, now))
        return strangers

    def serve(self, frame: Frame) -> Frame:
        """A broker brings a reply. One that nobody waits for any more is taken all the same, and dropped."""
        pushed = PushReply.decode(frame.ext)
        pairs = properties.decode(pushed.properties or "")
        correlation_id = pairs.get(properties.CORRELATION_ID, "")
        waiting = self._waiting.get(correlation_id)
        if waiting is None or waiting.done():
            log.info("a reply to request %r came too late, or twice: dropped", correlation_id)
            return reply(frame)
        try:
            waiting.set_result(_message(pushed, pairs, frame.body, self._clock.message_ms()))
        except ProtocolError as error:
            # The requester hears it at once instead of waiting for a reply that has come already.
            waiting.set_exception(ProtocolError(f"the reply to request {correlation_id} cannot be read: {error}"))
            return reply(frame, ResponseCode.SYSTEM_ERROR, str(error))
        return reply(frame)


def _message(pushed: PushReply, pairs: dict[str, str], body: bytes, now_ms: int) -> ReceivedMessage:
    sys_flag = pushed.sys_flag
    if sys_flag & SYS_COMPRESSED:
        body = compression.decompress(body, sys_flag)
        sys_flag &= ~SYS_COMPRESSED
    pairs[properties.ARRIVE_TIME] = str(now_ms)
    return ReceivedMessage(
        topic=pushed.topic,
        body=body,
        queue=MessageQueue(pushed.topic, pushed.logical_broker or "", pushed.queue_id),
        queue_offset=0,
        log_offset=0,
        message_id=pairs.get(properties.UNIQUE_KEY, ""),
        offset_id="",
        tags=pairs.get(properties.TAGS, ""),
        keys=tuple(pairs.get(properties.KEYS, "").split()),
        properties=pairs,
        born_ms=pushed.born_ms,
        stored_ms=pushed.store_ms,
        born_host=pushed.born_host.removeprefix("/"),
        store_host=pushed.store_host.removeprefix("/"),
        reconsume_times=pushed.reconsume_times or 0,
        sys_flag=sys_flag,
        flag=pushed.flag,
    )
