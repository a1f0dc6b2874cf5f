"""One stored message: the bytes in the log are the bytes a consumer pulls and the bytes that are replicated.

0  size      int32   whole record              56 stored time  int64   (12 further on if the born host is IPv6)
4  magic     int32   version of the layout     64 stored host  8 | 20  of the broker
8  body CRC  int32   31 bits                   72 reconsumed   int32
12 queue id  int32                             76 prepared     int64   log offset of the half message
16 flag      int32   the application's         84 body         int32 + bytes
20 queue offset  int64                            topic        int8 + bytes (V1), int16 + bytes (V2)
28 log offset    int64                            properties   int16 + bytes, see properties.py
36 system flag   int32
40 born time     int64
48 born host     8 | 20 bytes: ip, int32 port
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final

from kappamq.errors import ProtocolError
from kappamq.message import MessageQueue, ReceivedMessage
from kappamq.protocol import address
from kappamq.protocol.records import compression, ids, properties
from kappamq.protocol.records.tags import keys_of

MAGIC_V1: Final = 0xDAA320A7 - (1 << 32)
MAGIC_V2: Final = 0xDAA320AB - (1 << 32)
MAGIC_BLANK: Final = 0xCBD43194 - (1 << 32)
"""Not a record: the log file ends here, and its remaining bytes are unused."""

SIZE_AT: Final = 0
MAGIC_AT: Final = 4
BODY_CRC_AT: Final = 8
QUEUE_ID_AT: Final = 12
FLAG_AT: Final = 16
QUEUE_OFFSET_AT: Final = 20
LOG_OFFSET_AT: Final = 28
SYS_FLAG_AT: Final = 36
BORN_MS_AT: Final = 40
BORN_HOST_AT: Final = 48
STORED_MS_AT: Final = 56  # this and what follows: with an IPv4 born host
STORE_HOST_AT: Final = 64
RECONSUME_TIMES_AT: Final = 72
PREPARED_OFFSET_AT: Final = 76
BODY_AT: Final = 84
FIXED_BYTES: Final = 91
"""Size of an empty V1 record with IPv4 hosts."""
IPV6_EXTRA_BYTES: Final = 12
TOPIC_BYTES_MAX_V1: Final = 127

SYS_COMPRESSED: Final = compression.COMPRESSED
SYS_MULTI_TAGS: Final = 0x2
SYS_TRANSACTION: Final = 0xC
SYS_PREPARED: Final = 0x4
SYS_COMMITTED: Final = 0x8
SYS_ROLLED_BACK: Final = 0xC
SYS_BORN_IPV6: Final = 0x10
SYS_STORE_IPV6: Final = 0x20
SYS_NEED_UNWRAP: Final = 0x40
SYS_INNER_BATCH: Final = 0x80

CRC_MASK: Final = 0x7FFFFFFF

PREFIX: Final = struct.Struct(">ii")
"""Size and magic: the content of a blank record, and all that is needed to skip an intact one."""
_FRONT = struct.Struct(">iiiiiqqiq")
_AFTER_HOST = struct.Struct(">q")
_BEHIND = struct.Struct(">iqi")  # reconsume times, prepared offset, body length
_PORT = struct.Struct(">i")
_SHORT = struct.Struct(">h")
_CRC = struct.Struct(">i")
assert _FRONT.size == BORN_HOST_AT
assert FIXED_BYTES == BODY_AT + 4 + 1 + 2


class Fault(Enum):
    """Why bytes are not a valid record."""

    SHORT = "the bytes end within the record"
    BLANK = "the log file ends here"
    MAGIC = "no record starts here"
    FIELDS = "the lengths inside the record contradict each other"
    BODY_CRC = "the body is not what was written"
    TAIL_CRC = "the record is not what was written"


class RecordError(ProtocolError):
    """Bytes that are not a valid record; `fault` and `position` say what is wrong and where the record would start."""

    def __init__(self, fault: Fault, position: int, detail: str = "") -> None:
        super().__init__(f"record at {position}: {fault.value}{': ' if detail else ''}{detail}")
        self.fault = fault
        self.position = position
        self.detail = detail


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
        names = self.property_map()
        if not properties.PRIVATE.isdisjoint(names):
            names = {name: value for name, value in names.items() if name not in properties.PRIVATE}
        body, sys_flag = self.body, self.sys_flag
        if sys_flag & SYS_COMPRESSED:
            body = compression.decompress(body, sys_flag, bytes_max)
            sys_flag &= ~SYS_COMPRESSED
        offset_id = self.offset_id
        return ReceivedMessage(
            topic=self.topic,
            body=body,
            queue=MessageQueue(self.topic, broker, self.queue_id),
            queue_offset=self.queue_offset,
            log_offset=self.log_offset,
            message_id=names.get(properties.UNIQUE_KEY, offset_id),
            offset_id=offset_id,
            tags=names.get(properties.TAGS, ""),
            keys=tuple(keys_of(names.get(properties.KEYS))),
            properties=names,
            born_ms=self.born_ms,
            stored_ms=self.stored_ms,
            born_host=address.join(address.unpack_ip(self.born_host), self.born_port),
            store_host=address.join(address.unpack_ip(self.store_host), self.store_port),
            reconsume_times=self.reconsume_times,
            sys_flag=sys_flag,
            flag=self.flag,
            body_crc=self.body_crc,
            prepared_offset=self.prepared_offset,
            stored_bytes=self.size if stored_bytes is None else stored_bytes,
        )


def size_at(buffer: bytes | memoryview, position: int = 0) -> int:
    """Return the size of the record at `position`, whose end is within `buffer`. Raises RecordError."""
    held = len(buffer) - position
    if held < PREFIX.size:
        raise RecordError(Fault.SHORT, position, f"{held} bytes are left")
    size, magic = PREFIX.unpack_from(buffer, position)
    if magic == MAGIC_BLANK:
        raise RecordError(Fault.BLANK, position, f"{size} bytes are left over in it")
    if magic not in (MAGIC_V1, MAGIC_V2):
        raise RecordError(Fault.MAGIC, position, f"magic {magic & 0xFFFFFFFF:08x}")
    if size < FIXED_BYTES:
        raise RecordError(Fault.FIELDS, position, f"size {size} is below the {FIXED_BYTES} bytes every record has")
    if size > held:
        raise RecordError(Fault.SHORT, position, f"{size} bytes announced, {held} there")
    return int(size)


def decode(buffer: bytes | bytearray | memoryview, position: int = 0, check_crc: bool = True) -> Record:
    """Decode the record at `position`; ignores what follows it.

    Raises RecordError. With `check_crc` both checksums are verified, the one after the properties only if present.
    """
    with memoryview(buffer) as view:
        size = size_at(view, position)
        with view[position : position + size] as one:
            try:
                return _decode(one, position, check_crc)
            except (struct.error, IndexError):
                raise RecordError(Fault.FIELDS, position, f"they reach beyond its {size} bytes") from None


def _decode(one: memoryview, position: int, check_crc: bool) -> Record:
    _, magic, body_crc, queue_id, flag, queue_offset, log_offset, sys_flag, born_ms = _FRONT.unpack_from(one)
    at = BORN_HOST_AT
    host_bytes = 16 if sys_flag & SYS_BORN_IPV6 else 4
    born_host = bytes(one[at : at + host_bytes])
    (born_port,) = _PORT.unpack_from(one, at + host_bytes)
    at += host_bytes + 4
    (stored_ms,) = _AFTER_HOST.unpack_from(one, at)
    at += 8
    host_bytes = 16 if sys_flag & SYS_STORE_IPV6 else 4
    store_host = bytes(one[at : at + host_bytes])
    (store_port,) = _PORT.unpack_from(one, at + host_bytes)
    at += host_bytes + 4
    reconsume_times, prepared_offset, body_bytes = _BEHIND.unpack_from(one, at)
    at += _BEHIND.size
    body, at = _take(one, at, body_bytes, position)
    if magic == MAGIC_V2:
        (topic_bytes,) = _SHORT.unpack_from(one, at)
        at += 2
    else:
        topic_bytes = one[at]
        topic_bytes -= 256 if topic_bytes > TOPIC_BYTES_MAX_V1 else 0
        at += 1
    topic, at = _take(one, at, topic_bytes, position)
    (properties_bytes,) = _SHORT.unpack_from(one, at)
    texts, at = _take(one, at + 2, properties_bytes, position)
    if at != len(one):
        raise RecordError(Fault.FIELDS, position, f"they end {len(one) - at} bytes before the record")
    tail_crc = properties.has_tail_crc(texts)
    if check_crc:
        if (
            tail_crc
            and properties.tail_crc(zlib.crc32(one[: -properties.TAIL_CRC_BYTES]))
            != texts[-properties.TAIL_CRC_BYTES :]
        ):
            raise RecordError(Fault.TAIL_CRC, position)
        if not tail_crc and properties.lost_tail_crc(texts, lambda behind: zlib.crc32(one[:-behind])):
            raise RecordError(Fault.TAIL_CRC, position, "the separator before the checksum is gone")
        if zlib.crc32(body) & CRC_MASK != body_crc:
            raise RecordError(Fault.BODY_CRC, position)
    return Record(
        # As in Java, bytes that are not UTF-8 become replacement characters: they must not make a record unreadable.
        topic=topic.decode("utf-8", "replace"),
        body=body,
        properties=(texts[: -properties.TAIL_CRC_BYTES] if tail_crc else texts).decode("utf-8", "replace"),
        queue_id=queue_id,
        flag=flag,
        queue_offset=queue_offset,
        log_offset=log_offset,
        sys_flag=sys_flag,
        born_ms=born_ms,
        born_host=born_host,
        born_port=born_port,
        stored_ms=stored_ms,
        store_host=store_host,
        store_port=store_port,
        reconsume_times=reconsume_times,
        prepared_offset=prepared_offset,
        tail_crc=tail_crc,
    )


def _take(one: memoryview, at: int, count: int, position: int) -> tuple[bytes, int]:
    if not 0 <= count <= len(one) - at:
        raise RecordError(Fault.FIELDS, position, f"{count} bytes announced where {len(one) - at} are left")
    return bytes(one[at : at + count]), at + count


def iter_records(buffer: bytes | bytearray | memoryview, check_crc: bool = True) -> Iterator[Record]:
    """Yield the records that are stored back to back in `buffer`, such as the body of a pull answer.

    Raises RecordError at the first invalid one, after yielding those before it.
    """
    view = memoryview(buffer)
    position = 0
    while position < len(view):
        record = decode(view, position, check_crc)
        position += size_at(view, position)
        yield record


def blank(size: int) -> bytes:
    """Return the end mark of a log file with `size` bytes left."""
    return PREFIX.pack(size, MAGIC_BLANK)


def batch_bytes(record: Record) -> int | None:
    """Return how many bytes of the log the batch takes that starts with `record`, None if none does."""
    return properties.opens_batch(record.properties)
