"""One request at a time over a blocking socket: to ask a broker how it is, and for tests that keep their own books."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from kappamq.protocol import frame
from kappamq.protocol.bodies.topics import KVTable
from kappamq.protocol.codes import RequestCode
from kappamq.protocol.frame import Frame
from kappamq.protocol.headers.admin import GetBrokerRuntimeInfo
from kappamq.protocol.headers.client import (
    GetMaxOffset,
    GetMinOffset,
    OffsetResponse,
    PullMessage,
    PullMessageResponse,
    QueryConsumerOffset,
    SendMessageV2,
    UpdateConsumerOffset,
)
from kappamq.protocol.headers.header import Header
from kappamq.protocol.records import properties
from kappamq.protocol.records.record import Record, iter_records

_SUBSCRIPTION_IN_HEADER = 4
_QUERY_NOT_FOUND = 22


class Refused(Exception):
    """The broker answered, and the answer is no."""

    def __init__(self, what: str, answer: Frame) -> None:
        super().__init__(f"{what}: code {answer.code} {answer.remark or ''}")
        self.code = answer.code


@dataclass(frozen=True, slots=True)
class Pulled:
    code: int
    next_offset: int
    records: list[Record]


class Wire:
    """A connection. Raises OSError when the peer is gone, like any socket."""

    def __init__(self, address: str, timeout: float = 10.0) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._opaque = 0

    def ask(self, header: Header, body: bytes = b"", code: int | None = None) -> Frame:
        """Send a request and wait for its answer; what the broker sends of its own accord in between is passed over."""
        self._opaque += 1
        self._socket.sendall(frame.request(header, body, opaque=self._opaque, code=code).encode())
        while True:
            answer = self.receive()
            if answer.is_response and answer.opaque == self._opaque:
                return answer

    def send_frames(self, frames: bytes) -> None:
        """Send encoded requests; `receive` brings their answers."""
        self._socket.sendall(frames)

    def receive(self) -> Frame:
        head = self._exactly(4)
        return frame.decode(head + self._exactly(int.from_bytes(head, "big")))

    def _exactly(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            got = self._socket.recv(count - len(data))
            if not got:
                raise ConnectionError("the broker closed the connection")
            data += got
        return bytes(data)

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- requests ----------------------------------------------------------------------------------------------------------

    def send(
        self,
        topic: str,
        queue_id: int,
        body: bytes,
        given: Mapping[str, str] | None = None,
        *,
        queues: int = 8,
        batch: bool = False,
    ) -> Frame:
        """A send as a Java client makes it; `given` are the message's properties. The answer, whatever its code."""
        header = SendMessageV2(
            producer_group="bench-producer", topic=topic, default_topic="TBW102", default_topic_queues=queues, queue_id=queue_id,
            sys_flag=0, born_ms=time.time_ns() // 1_000_000, flag=0, properties=properties.encode(given or {}), reconsume_times=0,
            unit_mode=False, batch=batch,
        )  # fmt: skip
        return self.ask(header, body, RequestCode.SEND_BATCH_MESSAGE if batch else None)

    def pull(self, topic: str, queue_id: int, offset: int, count: int = 32, group: str = "bench-group") -> Pulled:
        header = PullMessage(
            consumer_group=group, topic=topic, queue_id=queue_id, queue_offset=offset, count_max=count,
            sys_flag=_SUBSCRIPTION_IN_HEADER, commit_offset=0, hold_ms=0, subscription="*", subscription_version=0,
            expression_type="TAG",
        )  # fmt: skip
        answer = self.ask(header)
        if "nextBeginOffset" not in answer.ext:
            raise Refused(f"pull of {topic}/{queue_id} at {offset}", answer)
        next_offset = PullMessageResponse.decode(answer.ext).next_offset
        return Pulled(answer.code, next_offset, list(iter_records(answer.body)) if answer.code == 0 else [])

    def max_offset(self, topic: str, queue_id: int) -> int:
        return self._offset(GetMaxOffset(topic=topic, queue_id=queue_id))

    def min_offset(self, topic: str, queue_id: int) -> int:
        return self._offset(GetMinOffset(topic=topic, queue_id=queue_id))

    def committed(self, group: str, topic: str, queue_id: int) -> int | None:
        """A consumer group's offset; None if it has none."""
        answer = self.ask(QueryConsumerOffset(consumer_group=group, topic=topic, queue_id=queue_id))
        if answer.code == _QUERY_NOT_FOUND:
            return None
        if answer.code:
            raise Refused(f"offset of {group} in {topic}/{queue_id}", answer)
        return OffsetResponse.decode(answer.ext).offset

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        header = UpdateConsumerOffset(consumer_group=group, topic=topic, queue_id=queue_id, commit_offset=offset)
        answer = self.ask(header)
        if answer.code:
            raise Refused(f"commit of {group} in {topic}/{queue_id}", answer)

    def _offset(self, header: GetMaxOffset | GetMinOffset) -> int:
        answer = self.ask(header)
        if answer.code:
            raise Refused(f"{type(header).__name__} of {header.topic}/{header.queue_id}", answer)
        return OffsetResponse.decode(answer.ext).offset


def stored_messages(address: str, topic: str, queues: int) -> int:
    """How many messages a topic holds, by the broker's own word: the work that was measured must really be there."""
    with Wire(address) as wire:
        return sum(wire.max_offset(topic, queue_id) for queue_id in range(queues))


def frames(address: str) -> tuple[int, int]:
    """How many frames the kernel has dealt with alone, and how many it left to Python."""
    with Wire(address) as wire:
        table = KVTable.decode(wire.ask(GetBrokerRuntimeInfo()).body).table
    return int(table["kappamqFastFrames"]), int(table["kappamqSlowFrames"])
