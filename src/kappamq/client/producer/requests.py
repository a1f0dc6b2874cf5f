"""Requests of this client that wait for a reply, by correlation id."""

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
"""When to retry a broker that could not be reached."""


class Requests:
    """Belongs to the loop of its client core."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: dict[str, asyncio.Future[ReceivedMessage]] = {}
        self._met: dict[str, float] = {}  # address -> time of the last attempt to connect to it

    def __len__(self) -> int:
        return len(self._waiting)

    def open(self, correlation_id: str) -> asyncio.Future[ReceivedMessage]:
        """Return the future that will hold the reply. The caller must `close` it."""
        waiting: asyncio.Future[ReceivedMessage] = asyncio.get_running_loop().create_future()
        self._waiting[correlation_id] = waiting
        return waiting

    def close(self, correlation_id: str) -> None:
        self._waiting.pop(correlation_id, None)

    def strangers(self, addresses: Iterable[str]) -> list[str]:
        """Return the `addresses` to connect to; each is tried at most once per interval, however many requests there are."""
        now = self._clock.liveness()
        self._met = {address: at for address, at in self._met.items() if now - at < AGAIN_S}
        strangers = [address for address in addresses if address not in self._met]
        self._met.update(dict.fromkeys(strangers, now))
        return strangers

    def serve(self, frame: Frame) -> Frame:
        """Take a reply that a broker pushes. A reply that no request waits for is accepted and dropped."""
        pushed = PushReply.decode(frame.ext)
        pairs = properties.decode(pushed.properties or "")
        correlation_id = pairs.get(properties.CORRELATION_ID, "")
        waiting = self._waiting.get(correlation_id)
        if waiting is None or waiting.done():
            log.info("dropped a reply to request %r: it came too late, or twice", correlation_id)
            return reply(frame)
        try:
            waiting.set_result(_message(pushed, pairs, frame.body, self._clock.message_ms()))
        except ProtocolError as error:
            # Fail the request at once instead of letting it time out.
            waiting.set_exception(ProtocolError(f"the reply to request {correlation_id} cannot be decoded: {error}"))
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
