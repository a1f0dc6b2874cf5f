"""One stored message as a value: the bytes in the log are the bytes a consumer pulls and the bytes that are replicated.

fields.py draws them; view.py reads them without decoding all.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

from kappamq.errors import ProtocolError
from kappamq.message import ReceivedMessage
from kappamq.protocol.records import compression, ids, properties
from kappamq.protocol.records.fields import (
    BODY_AT,
    BODY_CRC_AT,
    BORN_HOST_AT,
    CRC_MASK,
    FIXED_BYTES,
    IPV6_EXTRA_BYTES,
    LOG_OFFSET_AT,
    MAGIC_AT,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    PREFIX,
    QUEUE_ID_AT,
    QUEUE_OFFSET_AT,
    STORED_MS_AT,
    SYS_BORN_IPV6,
    SYS_COMMITTED,
    SYS_COMPRESSED,
    SYS_FLAG_AT,
    SYS_INNER_BATCH,
    SYS_NEED_UNWRAP,
    SYS_PREPARED,
    SYS_ROLLED_BACK,
    SYS_STORE_IPV6,
    SYS_TRANSACTION,
    TOPIC_BYTES_MAX_V1,
    Fault,
    RecordError,
)
from kappamq.protocol.records.view import Buffer, RecordView, iter_views, received, size_at, view_at

# What is known by the name of this module, wherever it is defined.
__all__ = [
    "BODY_AT",
    "BODY_CRC_AT",
    "BORN_HOST_AT",
    "FIXED_BYTES",
    "IPV6_EXTRA_BYTES",
    "LOG_OFFSET_AT",
    "MAGIC_AT",
    "MAGIC_BLANK",
    "MAGIC_V1",
    "MAGIC_V2",
    "PREFIX",
    "QUEUE_ID_AT",
    "QUEUE_OFFSET_AT",
    "STORED_MS_AT",
    "SYS_BORN_IPV6",
    "SYS_COMMITTED",
    "SYS_COMPRESSED",
    "SYS_FLAG_AT",
    "SYS_INNER_BATCH",
    "SYS_NEED_UNWRAP",
    "SYS_PREPARED",
    "SYS_ROLLED_BACK",
    "SYS_STORE_IPV6",
    "SYS_TRANSACTION",
    "Fault",
    "Record",
    "RecordError",
    "batch_bytes",
    "blank",
    "decode",
    "iter_records",
    "size_at",
]

_FRONT = struct.Struct(">iiiiiqqiq")
_AFTER_HOST = struct.Struct(">q")
_BEHIND = struct.Struct(">iqi")  # reconsume times, prepared offset, body length
_PORT = struct.Struct(">i")
_SHORT = struct.Struct(">h")
assert _FRONT.size == BORN_HOST_AT


@dataclass(slots=True, kw_only=True)
class Record:
    """The fields of one stored message. The body's CRC and the sizes are computed when it is encoded."""

    topic: str
    body: bytes
    properties: str = ""  # as text, without the tail checksum
    queue_id: int = 0
    flag: int = 0
    queue_offset: int = 0
    log_offset: int = 0
    sys_flag: int = 0
    born_ms: int = 0
    born_host: bytes = b"\x00\x00\x00\x00"  # 4 or 16 bytes
    born_port: int = 0
    stored_ms: int = 0
    store_host: bytes = b"\x00\x00\x00\x00"
    store_port: int = 0
    reconsume_times: int = 0
    prepared_offset: int = 0
    tail_crc: bool = False  # whether a checksum over the whole record ends it

    @classmethod
    def of(cls, view: RecordView) -> Self:
        """All fields of a stored record, which do not need its buffer any more."""
        (
            _size, _magic, _crc, queue_id, flag, queue_offset, log_offset, sys_flag, born_ms, born, stored_ms, store, reconsume_times,
            prepared_offset, _body_bytes,
        ) = view.head  # fmt: skip
        return cls(
            topic=view.topic,
            body=view.body,
            properties=view.properties,
            queue_id=queue_id,
            flag=flag,
            queue_offset=queue_offset,
            log_offset=log_offset,
            sys_flag=sys_flag,
            born_ms=born_ms,
            born_host=born[:-4],
            born_port=int.from_bytes(born[-4:], "big", signed=True),
            stored_ms=stored_ms,
            store_host=store[:-4],
            store_port=int.from_bytes(store[-4:], "big", signed=True),
            reconsume_times=reconsume_times,
            prepared_offset=prepared_offset,
            tail_crc=view.tail_crc,
        )

    @property
    def size(self) -> int:
        """How many bytes `encode` returns."""
        topic_bytes = len(self.topic.encode())
        length = FIXED_BYTES + len(self.body) + topic_bytes + (topic_bytes > TOPIC_BYTES_MAX_V1)
        length += sum(IPV6_EXTRA_BYTES for host in (self.born_host, self.store_host) if len(host) == 16)
        return length + len(self._property_bytes()) + (properties.TAIL_CRC_BYTES if self.tail_crc else 0)

    @property
    def offset_id(self) -> str:
        return ids.offset_id(self.store_host, self.store_port, self.log_offset)

    @property
    def body_crc(self) -> int:
        return zlib.crc32(self.body) & CRC_MASK

    def property_map(self) -> dict[str, str]:
        return properties.decode(self.properties)

    def encode(self) -> bytes:
        """Return the record as it is stored. Raises ProtocolError if a field does not fit."""
        topic, texts = self.topic.encode(), self._property_bytes()
        v2 = len(topic) > TOPIC_BYTES_MAX_V1
        properties_bytes = len(texts) + (properties.TAIL_CRC_BYTES if self.tail_crc else 0)
        if properties_bytes > properties.TEXT_BYTES_MAX:
            raise ProtocolError(f"properties of {properties_bytes} bytes: the limit is {properties.TEXT_BYTES_MAX}")
        born, store = self.born_host, self.store_host
        if len(born) not in (4, 16) or len(store) not in (4, 16):
            raise ProtocolError(f"a host must have 4 or 16 bytes, got {len(born)} and {len(store)}")
        # These two bits decide the position of every later field: derive them from what is really written.
        sys_flag = self.sys_flag & ~(SYS_BORN_IPV6 | SYS_STORE_IPV6)
        sys_flag |= (len(born) == 16 and SYS_BORN_IPV6) | (len(store) == 16 and SYS_STORE_IPV6)
        size = FIXED_BYTES - 8 + v2 + len(born) + len(store) + len(self.body) + len(topic) + properties_bytes
        try:
            record = b"".join(
                (
                    _FRONT.pack(
                        size,
                        MAGIC_V2 if v2 else MAGIC_V1,
                        self.body_crc,
                        self.queue_id,
                        self.flag,
                        self.queue_offset,
                        self.log_offset,
                        sys_flag,
                        self.born_ms,
                    ),
                    born,
                    _PORT.pack(self.born_port),
                    _AFTER_HOST.pack(self.stored_ms),
                    store,
                    _PORT.pack(self.store_port),
                    _BEHIND.pack(self.reconsume_times, self.prepared_offset, len(self.body)),
                    self.body,
                    _SHORT.pack(len(topic)) if v2 else bytes((len(topic),)),
                    topic,
                    _SHORT.pack(properties_bytes),
                    texts,
                )
            )
        except struct.error as error:
            raise ProtocolError(f"a field of the record does not fit: {error}") from None
        return record + properties.tail_crc(zlib.crc32(record)) if self.tail_crc else record

    def _property_bytes(self) -> bytes:
        text = self.properties.encode()
        # The text must be terminated before anything is appended to it.
        return text + b"\x02" if self.tail_crc and text and text[-1] != 2 else text

    def to_message(
        self, broker: str = "", *, stored_bytes: int | None = None, bytes_max: int = compression.BODY_BYTES_MAX
    ) -> ReceivedMessage:
        """Return the message for an application, decompressed. Raises ProtocolError if that fails."""
        born, store = self.born_host + _PORT.pack(self.born_port), self.store_host + _PORT.pack(self.store_port)
        head = (
            0, 0, self.body_crc, self.queue_id, self.flag, self.queue_offset, self.log_offset, self.sys_flag, self.born_ms, born,
            self.stored_ms, store, self.reconsume_times, self.prepared_offset, 0,
        )  # fmt: skip
        stored_bytes = self.size if stored_bytes is None else stored_bytes
        return received(head, self.topic, self.body, self.property_map(), broker, stored_bytes, bytes_max)


def decode(buffer: Buffer, position: int = 0, check_crc: bool = True) -> Record:
    """Decode all fields of the record at `position`; ignores what follows it.

    Raises RecordError. With `check_crc` both checksums are verified, the one after the properties only if present.
    """
    return Record.of(view_at(buffer, position, check_crc))


def iter_records(buffer: Buffer, check_crc: bool = True) -> Iterator[Record]:
    """Yield the records that are stored back to back in `buffer`, such as the body of a pull answer.

    Raises RecordError at the first invalid one, after yielding those before it.
    """
    return map(Record.of, iter_views(buffer, check_crc))


def blank(size: int) -> bytes:
    """Return the end mark of a log file with `size` bytes left."""
    return PREFIX.pack(size, MAGIC_BLANK)


def batch_bytes(record: Record) -> int | None:
    """Return how many bytes of the log the batch takes that starts with `record`, None if none does."""
    return properties.opens_batch(record.properties)
