"""Reads stored records. `RecordView` is one record within the bytes it lies in; a field is decoded when it is asked for.

All who read records use the same pass over the bytes, `locate`: columns.c, and pure_columns.py where there is no compiled kernel. It
compares every length in a record with the bytes that are there, verifies both checksums, and notes where the parts lie. The columns of
the data pipeline are made from the same notes. Only where it refuses a record, `_examine` reads it again in Python. It says what is wrong,
and accepts what no broker stores but a reader can show: a topic that is not UTF-8, for example.

A view refers to the buffer and does not copy it: the buffer must not change while the view is in use.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from functools import lru_cache
from typing import Final, cast

from kappamq.message import MessageQueue, ReceivedMessage
from kappamq.native.layout import HEAD, PLACE
from kappamq.protocol import address
from kappamq.protocol.records import compression, properties
from kappamq.protocol.records.fields import (
    BODY_AT,
    CRC_MASK,
    FIXED_BYTES,
    IPV6_EXTRA_BYTES,
    LOG_OFFSET_AT,
    MAGIC_AT,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    PREFIX,
    QUEUE_OFFSET_AT,
    STORED_MS_AT,
    SYS_BORN_IPV6,
    SYS_COMPRESSED,
    SYS_FLAG_AT,
    SYS_STORE_IPV6,
    TOPIC_BYTES_MAX_V1,
    Fault,
    RecordError,
)
from kappamq.protocol.records.tags import keys_of

try:
    from kappamq.native._kernel import locate as _locate
except ImportError:
    from kappamq.native.pure_columns import locate as _locate

Buffer = bytes | bytearray | memoryview
Head = tuple[int, int, int, int, int, int, int, int, int, bytes, int, bytes, int, int, int]
"""The numbers and addresses in front of the body: see layout.HEAD."""

FRONT_BYTES: Final = STORED_MS_AT + IPV6_EXTRA_BYTES + 8
"""So many bytes hold the fields of a `Front`. Every record has more."""
_LOCATED_AT_ONCE: Final = 256
_HEADS: Final = HEAD[8, 8], HEAD[20, 8], HEAD[8, 20], HEAD[20, 20]
"""By the two bits of the system flag that say which addresses are IPv6."""
assert (SYS_BORN_IPV6, SYS_STORE_IPV6) == (1 << 4, 2 << 4)
_unpack_place: Final = PLACE.unpack
_FRONT = struct.Struct(">iiiiiqqiq")
_LONG = struct.Struct(">q")
_INT = struct.Struct(">i")
_SHORT = struct.Struct(">h")
_MAGICS = tuple(magic.to_bytes(4, "big", signed=True) for magic in (MAGIC_V1, MAGIC_V2))


class RecordView:
    """The fields of one stored record. `place` (see layout.PLACE) says where they lie in `data`; its positions can be trusted."""

    __slots__ = ("_data", "_place")

    def __init__(self, data: Buffer, place: tuple[int, ...]) -> None:
        self._data = data
        self._place = place

    def __repr__(self) -> str:
        return f"<record of {self.topic!r}, queue {self.queue_id}, offset {self.queue_offset}, at {self.log_offset} in the log>"

    @property
    def position(self) -> int:
        """Where the record begins in the buffer."""
        return self._place[0]

    @property
    def size(self) -> int:
        return self._place[1]

    @property
    def end(self) -> int:
        return self._place[0] + self._place[1]

    @property
    def data(self) -> bytes:
        """The record as it is stored."""
        return bytes(self._data[self._place[0] : self._place[0] + self._place[1]])

    @property
    def queue_id(self) -> int:
        return self._place[2]

    @property
    def queue_offset(self) -> int:
        return self._place[3]

    @property
    def log_offset(self) -> int:
        return self._place[4]

    @property
    def sys_flag(self) -> int:
        return self._place[5]

    @property
    def born_ms(self) -> int:
        return self._place[6]

    @property
    def stored_ms(self) -> int:
        return self._place[7]

    @property
    def body(self) -> bytes:
        at = self._place[8]
        return bytes(self._data[at : at + self._place[9]])

    @property
    def topic_bytes(self) -> bytes:
        at = self._place[10]
        return bytes(self._data[at : at + self._place[11]])

    @property
    def topic(self) -> str:
        # As in Java, bytes that are not UTF-8 become replacement characters: they must not make a record unreadable.
        return self.topic_bytes.decode("utf-8", "replace")

    @property
    def head(self) -> Head:
        """Everything in front of the body, for those who want more than one or two of these fields."""
        place = self._place
        return cast(Head, _HEADS[place[5] >> 4 & 3].unpack_from(self._data, place[0]))

    @property
    def body_crc(self) -> int:
        """The checksum of the body that is stored in the record."""
        return self.head[2]

    @property
    def flag(self) -> int:
        return self.head[4]

    @property
    def born(self) -> bytes:
        """Address and port of the producer, as they are stored."""
        return self.head[9]

    @property
    def born_host(self) -> bytes:
        return self.head[9][:-4]

    @property
    def store(self) -> bytes:
        """Address and port of the broker, as they are stored."""
        return self.head[11]

    @property
    def store_host(self) -> bytes:
        return self.head[11][:-4]

    @property
    def reconsume_times(self) -> int:
        return self.head[12]

    @property
    def prepared_offset(self) -> int:
        return self.head[13]

    @property
    def all_property_bytes(self) -> bytes:
        """The properties as they are stored, with the tail checksum."""
        at = self._place[12]
        return bytes(self._data[at : at + self._place[13]])

    @property
    def tail_crc(self) -> bool:
        """Whether a checksum over the whole record ends it."""
        return properties.has_tail_crc(self.all_property_bytes)

    @property
    def property_bytes(self) -> bytes:
        """The properties as they are stored, without the tail checksum."""
        text = self.all_property_bytes
        return text[: -properties.TAIL_CRC_BYTES] if properties.has_tail_crc(text) else text

    @property
    def properties(self) -> str:
        return self.property_bytes.decode("utf-8", "replace")

    @property
    def offset_id(self) -> str:
        return (self.store + _LONG.pack(self.log_offset)).hex().upper()

    def property_map(self) -> dict[str, str]:
        return properties.decode(self.properties)

    def to_message(self, broker: str = "", *, bytes_max: int = compression.BODY_BYTES_MAX) -> ReceivedMessage:
        """Return the message for an application, decompressed. Raises ProtocolError if that fails."""
        return received(self.head, self.topic, self.body, self.property_map(), broker, self._place[1], bytes_max)


class Front:
    """The first bytes of what lies at a place of the log, for those who do not want to read all of a record.

    Nothing says that a good record follows. A number whose bytes are not there is -1, a size is 0."""

    __slots__ = ("_data",)

    def __init__(self, data: Buffer, position: int = 0) -> None:
        self._data = bytes(data[position : position + FRONT_BYTES])

    @property
    def size(self) -> int:
        """What the record, or an end mark, says that it takes."""
        return max(0, PREFIX.unpack_from(self._data)[0]) if len(self._data) >= PREFIX.size else 0

    @property
    def is_whole(self) -> bool:
        """Whether the bytes of all fields are there."""
        return len(self._data) == FRONT_BYTES

    @property
    def is_record(self) -> bool:
        return self._data[MAGIC_AT : MAGIC_AT + 4] in _MAGICS and self.size >= FIXED_BYTES

    @property
    def is_end_mark(self) -> bool:
        """Whether a log file ends here, and the log goes on in the next one."""
        return len(self._data) >= PREFIX.size and PREFIX.unpack_from(self._data)[1] == MAGIC_BLANK

    @property
    def queue_offset(self) -> int:
        return self._long(QUEUE_OFFSET_AT)

    @property
    def log_offset(self) -> int:
        return self._long(LOG_OFFSET_AT)

    @property
    def stored_ms(self) -> int:
        if len(self._data) < FRONT_BYTES:
            return -1
        is_long = _INT.unpack_from(self._data, SYS_FLAG_AT)[0] & SYS_BORN_IPV6
        return self._long(STORED_MS_AT + (IPV6_EXTRA_BYTES if is_long else 0))

    def _long(self, at: int) -> int:
        return int(_LONG.unpack_from(self._data, at)[0]) if len(self._data) >= at + 8 else -1


def fronts_in(data: bytes, log_offset: int) -> Iterator[int]:
    """Yield, in order, the positions in `data`, which lies at `log_offset`, where a record seems to begin: there is the magic, and the
    record names the offset that it would lie at."""
    following = [data.find(magic, MAGIC_AT) for magic in _MAGICS]
    while found := [place for place in following if place >= 0]:
        place = min(found)
        at = place - MAGIC_AT
        if data[at + LOG_OFFSET_AT : at + LOG_OFFSET_AT + 8] == (log_offset + at).to_bytes(8, "big"):
            yield at
        following = [
            data.find(magic, place + 1) if there == place else there
            for magic, there in zip(_MAGICS, following, strict=True)
        ]


def size_at(buffer: Buffer, position: int = 0) -> int:
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


def view_at(buffer: Buffer, position: int = 0, check_crc: bool = True) -> RecordView:
    """Return the record at `position`; what follows it is ignored.

    Raises RecordError. With `check_crc` both checksums are verified, the one after the properties only if present."""
    rest: Buffer = memoryview(buffer)[position:] if position else buffer
    places = _locate(rest, -1, check_crc, 1)[0]
    if places:
        place = _unpack_place(places)
        if not place[15] and (place[11] <= TOPIC_BYTES_MAX_V1 or not _is_odd(place)):
            return RecordView(rest, place)
    return RecordView(rest, _examine(rest, 0, check_crc, position))


def iter_views(buffer: Buffer, check_crc: bool = True) -> Iterator[RecordView]:
    """Yield the records that are stored back to back in `buffer`, such as the body of a pull answer.

    Raises RecordError at the first invalid one, after yielding those before it."""
    for found in walk(buffer, check_crc):
        if isinstance(found, RecordError):
            raise found
        yield found


def walk(buffer: Buffer, check_crc: bool = True) -> Iterator[RecordView | RecordError]:
    """As `iter_views`, but yields the error and ends there."""
    position = 0
    while position < len(buffer):
        rest: Buffer = memoryview(buffer)[position:] if position else buffer
        # So many at a time: whoever goes on elsewhere behind a damaged record does not pay for all that follow it here.
        places, count, read, _why = _locate(rest, -1, check_crc, _LOCATED_AT_ONCE)
        for place in PLACE.iter_unpack(places):
            if place[15] or (place[11] > TOPIC_BYTES_MAX_V1 and _is_odd(place)):
                read = place[0]
                break
            yield RecordView(rest, place)
        else:
            if position + read == len(buffer) or count == _LOCATED_AT_ONCE:
                position += read
                continue
        try:
            odd = _examine(rest, read, check_crc, position + read)
        except RecordError as error:
            yield error
            return
        yield RecordView(rest, odd)
        position += odd[0] + odd[1]


def _is_odd(place: tuple[int, ...]) -> bool:
    """Whether `_examine` has to look at it: a checksum fails, or the topic is longer than version 1 allows (its length has one byte)."""
    if place[11] > TOPIC_BYTES_MAX_V1 and place[10] - place[9] - place[8] == 1:
        return True
    return place[15] != 0


def _examine(buffer: Buffer, at: int, check_crc: bool, position: int) -> tuple[int, ...]:
    """Return the place of the record at `at`, which `locate` has refused, if it can be read nevertheless. Raises RecordError, in which
    the record is said to lie at `position`."""
    with memoryview(buffer) as whole:
        try:
            size = size_at(whole, at)
        except RecordError as error:
            raise RecordError(error.fault, position, error.detail) from None
        with whole[at : at + size] as one:
            try:
                return _place_of(one, at, check_crc, position)
            except (struct.error, IndexError):
                raise RecordError(Fault.FIELDS, position, f"they reach beyond its {size} bytes") from None


def _place_of(one: memoryview, start: int, check_crc: bool, position: int) -> tuple[int, ...]:
    _, magic, body_crc, queue_id, _flag, queue_offset, log_offset, sys_flag, born_ms = _FRONT.unpack_from(one)
    host_at = STORED_MS_AT + 8 + (IPV6_EXTRA_BYTES if sys_flag & SYS_BORN_IPV6 else 0)
    (stored_ms,) = _LONG.unpack_from(one, host_at - 8)
    body_at = BODY_AT - STORED_MS_AT - 8 + host_at + (IPV6_EXTRA_BYTES if sys_flag & SYS_STORE_IPV6 else 0)
    (body_bytes,) = _INT.unpack_from(one, body_at)
    body_at += 4
    topic_at = _behind(one, body_at, body_bytes, position)
    if magic == MAGIC_V2:
        (topic_bytes,) = _SHORT.unpack_from(one, topic_at)
        topic_at += 2
    else:
        topic_bytes = one[topic_at]
        topic_bytes -= 256 if topic_bytes > TOPIC_BYTES_MAX_V1 else 0
        topic_at += 1
    properties_at = _behind(one, topic_at, topic_bytes, position)
    (properties_bytes,) = _SHORT.unpack_from(one, properties_at)
    properties_at += 2
    end = _behind(one, properties_at, properties_bytes, position)
    if end != len(one):
        raise RecordError(Fault.FIELDS, position, f"they end {len(one) - end} bytes before the record")
    if check_crc:
        _check(one, bytes(one[properties_at:]), one[body_at : body_at + body_bytes], body_crc, position)
    return (
        start, len(one), queue_id, queue_offset, log_offset, sys_flag, born_ms, stored_ms, start + body_at, body_bytes,
        start + topic_at, topic_bytes, start + properties_at, properties_bytes, start + host_at, 0,
    )  # fmt: skip


def _behind(one: memoryview, at: int, count: int, position: int) -> int:
    if not 0 <= count <= len(one) - at:
        raise RecordError(Fault.FIELDS, position, f"{count} bytes announced where {len(one) - at} are left")
    return at + count


def _check(one: memoryview, texts: bytes, body: memoryview, body_crc: int, position: int) -> None:
    if properties.has_tail_crc(texts):
        expected = properties.tail_crc(zlib.crc32(one[: -properties.TAIL_CRC_BYTES]))
        if expected != texts[-properties.TAIL_CRC_BYTES :]:
            raise RecordError(Fault.TAIL_CRC, position)
    elif properties.lost_tail_crc(texts, lambda behind: zlib.crc32(one[:-behind])):
        raise RecordError(Fault.TAIL_CRC, position, "the separator before the checksum is gone")
    if zlib.crc32(body) & CRC_MASK != body_crc:
        raise RecordError(Fault.BODY_CRC, position)


def received(
    head: Head, topic: str, body: bytes, names: dict[str, str], broker: str, stored_bytes: int, bytes_max: int
) -> ReceivedMessage:
    """Return a stored message for an application, decompressed. Raises ProtocolError if that fails."""
    (
        _size, _magic, body_crc, queue_id, flag, queue_offset, log_offset, sys_flag, born_ms, born, stored_ms, store, reconsume_times,
        prepared_offset, _body_bytes,
    ) = head  # fmt: skip
    if not properties.PRIVATE.isdisjoint(names):
        names = {name: value for name, value in names.items() if name not in properties.PRIVATE}
    if sys_flag & SYS_COMPRESSED:
        body = compression.decompress(body, sys_flag, bytes_max)
        sys_flag &= ~SYS_COMPRESSED
    offset_id = (store + _LONG.pack(log_offset)).hex().upper()
    return ReceivedMessage(
        topic=topic,
        body=body,
        queue=MessageQueue(topic, broker, queue_id),
        queue_offset=queue_offset,
        log_offset=log_offset,
        message_id=names.get(properties.UNIQUE_KEY, offset_id),
        offset_id=offset_id,
        tags=names.get(properties.TAGS, ""),
        keys=tuple(keys_of(names.get(properties.KEYS))),
        properties=names,
        born_ms=born_ms,
        stored_ms=stored_ms,
        born_host=address_text(born),
        store_host=address_text(store),
        reconsume_times=reconsume_times,
        sys_flag=sys_flag,
        flag=flag,
        body_crc=body_crc,
        prepared_offset=prepared_offset,
        stored_bytes=stored_bytes,
    )


@lru_cache(maxsize=1024)
def address_text(host: bytes) -> str:
    """Return a stored address as text. The messages of an answer come from few producers and one broker."""
    return address.join(address.unpack_ip(host[:-4]), int.from_bytes(host[-4:], "big", signed=True))
