"""One stored record, in Python: its bytes, its checks, its hashes. Defines the behaviour of record.c."""

from __future__ import annotations

import struct
from mmap import mmap
from operator import mul
from typing import Final
from zlib import crc32

from kappamq.native.layout import (
    BATCH_MEMBERS_MAX,
    BATCH_NAME,
    BATCH_PAIRS_MAX,
    HEAD,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    PROPERTIES_BYTES_MAX,
    QUEUE_OFFSET_MAX,
    SCAN_BLANK,
    SCAN_DAMAGED,
    SCAN_EMPTY,
    SCAN_MORE,
    SYS_BORN_V6,
    SYS_STORE_V6,
    TAIL_CRC_BYTES,
    TAIL_CRC_NAME,
    TOPIC_BYTES_LIMIT,
    TOPIC_BYTES_MAX,
)  # fmt: skip
from kappamq.native.pure_scan import plain_properties

Buffer = bytes | bytearray | memoryview | mmap
Fields = tuple[int, int, int, int, int, int, int, int, bytes, bytes]
"""size, queue id, queue offset, log offset, sys flag, store ms, body position, body bytes, topic, properties"""
Member = tuple[int, bytes, bytes]
Pair = tuple[bytes, bytes]
"""the name of a property, and all of it up to its 0x02"""
GroupMember = tuple[str, int, int, int, int, bytes, int, int, bytes, bytes]
"""flag, body, properties"""

_POWERS: Final = tuple(pow(31, n, 1 << 32) for n in range(1023, -1, -1))
_SHORT: Final = tuple(_POWERS[1024 - n :] for n in range(65))
_FACTORS: Final = tuple(pow(31, n, 1 << 32) for n in range(65))
_MARK: Final = struct.Struct(">ii")
_MEMBER: Final = struct.Struct(">iiiii")
_HEAD_V4: Final = HEAD[8, 8]
_V6: Final = SYS_BORN_V6 | SYS_STORE_V6


# -- hashes --------------------------------------------------------------------------------------------------------


_LMQ: Final = b"%LMQ%"
_FRONT: Final = struct.Struct(">iiiiiqqi")


def hash_on(value: int, data: bytes) -> int:
    """java.lang.String.hashCode of a text: `value` is the hash of its beginning, and `data` (UTF-8) the rest; unsigned.

    Invalid UTF-8 counts as U+FFFD, one per maximal broken sequence, as Java reads it."""
    count = len(data)
    if count <= 64 and data.isascii():
        total: int = value * _FACTORS[count] + sum(map(mul, data, _SHORT[count]))
        return total & 0xFFFFFFFF
    units = memoryview(data.decode("utf-8", "replace").encode("utf-16-le")).cast("H")
    for start in range(0, len(units), 1024):
        piece = units[start : start + 1024]
        value = value * pow(31, len(piece), 1 << 32) + sum(map(mul, piece, _POWERS[1024 - len(piece) :]))
    return value & 0xFFFFFFFF


def java_hash(data: bytes) -> int:
    """java.lang.String.hashCode of UTF-8 text, as signed 32 bits."""
    value = hash_on(0, data)
    return value - (1 << 32) if value >> 31 else value


def index_hash(value: int) -> int:
    """The key index's form of an (unsigned) hash: its magnitude, 0 for the one without a magnitude."""
    return value & 0x7FFFFFFF if value <= 0x80000000 else 0x100000000 - value


def check_host(host: bytes) -> None:
    if len(host) != 8 and len(host) != 20:
        raise ValueError(f"an address is 8 or 20 bytes (ip and port), not {len(host)}")


# -- making --------------------------------------------------------------------------------------------------------


def topic_field(topic: bytes) -> tuple[int, bytes]:
    """(magic, topic prefixed with its length): a long name needs version 2."""
    if len(topic) <= TOPIC_BYTES_MAX:
        return MAGIC_V1, len(topic).to_bytes(1, "big") + topic
    return MAGIC_V2, len(topic).to_bytes(2, "big") + topic


def encode(
    magic: int, topic: bytes, queue_id: int, flag: int, sys_flag: int, born_ms: int, born: bytes, reconsume_times: int,
    prepared: int, body: bytes, properties: bytes, now_ms: int, queue_offset: int, log_offset: int, store_host: bytes,
    tail_crc: bool,
) -> bytes | None:  # fmt: skip
    """The record's bytes; None if the properties do not fit into a record. `magic` and `topic` are those of `topic_field`."""
    if len(born) == len(store_host) == 8:
        head, sys_flag = _HEAD_V4, sys_flag & ~_V6
    else:
        head, sys_flag = HEAD[len(born), len(store_host)], sys_flag & ~_V6
        sys_flag |= (SYS_BORN_V6 if len(born) == 20 else 0) | (SYS_STORE_V6 if len(store_host) == 20 else 0)
    if properties and properties[-1] != 2:
        properties += b"\x02"
    size = len(properties) + (TAIL_CRC_BYTES if tail_crc else 0)
    if size > PROPERTIES_BYTES_MAX:
        return None
    length = size.to_bytes(2, "big")
    body_bytes = len(body)
    front = head.pack(
        head.size + body_bytes + len(topic) + 2 + size, magic, crc32(body) & 0x7FFFFFFF, queue_id, flag, queue_offset, log_offset,
        sys_flag, born_ms, born, now_ms, store_host, reconsume_times, prepared, body_bytes,
    )  # fmt: skip
    record = b"".join((front, body, topic, length, properties))
    if not tail_crc:
        return record
    return b"%b%b%b\x02" % (record, TAIL_CRC_NAME, (b"%010d" % (crc32(record) & 0x7FFFFFFF))[::-1])


def split_batch(body: bytes, plain: bool) -> list[Member] | None:
    """(flag, body, properties) of each member of a batch; None unless every length fits (and, if `plain`, none is special)."""
    members: list[Member] = []
    at, limit = 0, len(body)
    while at < limit:
        if limit - at < 22:
            return None
        size, _magic, _crc, flag, body_bytes = _MEMBER.unpack_from(body, at)
        properties_at = at + 20 + body_bytes + 2
        if body_bytes < 1 or properties_at > limit:
            return None
        end = properties_at + int.from_bytes(body[properties_at - 2 : properties_at], "big")
        if end != at + size or end > limit or end - properties_at > PROPERTIES_BYTES_MAX:
            return None
        properties = body[properties_at:end]
        if plain:
            try:
                if plain_properties(properties.decode()) is None:
                    return None
            except UnicodeDecodeError:
                return None
        members.append((flag, body[at + 20 : at + 20 + body_bytes], properties))
        at = end
    return members if members and (not plain or len(members) <= BATCH_MEMBERS_MAX) else None


def plain_batch(body: bytes) -> tuple[int, int] | None:
    """How many members a batch has, and the size of their longest properties; None where `split_batch` with `plain` returns None."""
    members = split_batch(body, True)
    return None if members is None else (len(members), max(len(properties) for _flag, _body, properties in members))


def batch_properties(text: str) -> list[Pair] | None:
    """The properties that the members of a batch inherit from it: all but the key. None if there are too many, or a name
    comes twice."""
    pairs: dict[bytes, bytes] = {}
    count = 0
    for piece in text.encode().split(b"\x02"):
        name = piece.partition(b"\x01")[0]
        if name and name != b"UNIQ_KEY":
            count += 1
            pairs[name] = piece + b"\x02"
    return list(pairs.items()) if count == len(pairs) <= BATCH_PAIRS_MAX else None


def complete(members: list[Member], inherited: list[Pair], added: bytes) -> list[Member]:
    """The members as they are stored: with inherited properties that they do not set themselves, and with what the broker adds."""
    made: list[Member] = []
    for flag, body, text in members:
        if text and text[-1] != 2:
            text += b"\x02"
        own = b"\x02" + text
        more = b"".join([pair for name, pair in inherited if b"\x02%b\x01" % name not in own])
        made.append((flag, body, text + more + added))
    return made


# -- reading -------------------------------------------------------------------------------------------------------


def parse(buffer: Buffer, at: int, limit: int) -> Fields | int:
    """The record at `at`, or why there is none (SCAN_*). `limit` is one past the last byte that may be read."""
    if limit - at < 8:
        return SCAN_MORE
    if limit - at < 91:
        size, magic = _MARK.unpack_from(buffer, at)
    else:
        head = _HEAD_V4
        (
            size, magic, _crc, queue_id, _flag, queue_offset, log_offset, sys_flag, _born, _born_host, store_ms, _store_host,
            _reconsume, _prepared, body_bytes,
        ) = head.unpack_from(buffer, at)  # fmt: skip
    if magic != MAGIC_V1 and magic != MAGIC_V2:
        if magic == MAGIC_BLANK and size >= 8:
            return SCAN_BLANK
        return SCAN_EMPTY if size == 0 and magic == 0 else SCAN_DAMAGED
    if size < 91:
        return SCAN_DAMAGED
    end = at + size
    if end > limit:
        return SCAN_MORE
    if sys_flag & _V6:
        head = HEAD[20 if sys_flag & SYS_BORN_V6 else 8, 20 if sys_flag & SYS_STORE_V6 else 8]
        if size < head.size + 3:
            return SCAN_DAMAGED
        fields = head.unpack_from(buffer, at)
        store_ms, body_bytes = fields[10], fields[14]
    body_at = at + head.size
    topic_at = body_at + body_bytes
    if body_bytes < 0 or queue_id < 0 or not 0 <= queue_offset <= QUEUE_OFFSET_MAX or topic_at + 3 > end:
        return SCAN_DAMAGED
    topic_bytes = buffer[topic_at]
    topic_at += 1
    if magic == MAGIC_V2:
        topic_bytes = topic_bytes << 8 | buffer[topic_at]
        topic_at += 1
        if topic_bytes > TOPIC_BYTES_LIMIT:
            return SCAN_DAMAGED
    topic_end = topic_at + topic_bytes
    properties_at = topic_end + 2
    if properties_at > end or properties_at + (buffer[topic_end] << 8 | buffer[topic_end + 1]) != end:
        return SCAN_DAMAGED
    topic, properties = bytes(buffer[topic_at:topic_end]), bytes(buffer[properties_at:end])
    if b"\0" in topic or (not topic.isascii() and not _is_text(topic)):
        return SCAN_DAMAGED
    return size, queue_id, queue_offset, log_offset, sys_flag, store_ms, body_at, body_bytes, topic, properties


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def property_values(properties: bytes) -> dict[bytes, bytes]:
    """Name -> value as Java reads it: a pair with an empty half is ignored, a later pair wins."""
    pairs = [piece.partition(b"\x01") for piece in properties.split(b"\x02")]
    return {name: value for name, _separator, value in pairs if name and value}


def _ends_with_private(properties: bytes, size: int, name: bytes) -> bool:
    """Whether `properties`, up to `size`, end with the private property `name`. It must be a property of its own: the name of
    a producer's property may end with the same letters."""
    at = size - TAIL_CRC_BYTES
    return at >= 0 and properties.startswith(name, at) and (at == 0 or properties[at - 1] == 2)


def without_tail_crc(properties: bytes) -> bytes:
    """Properties of a record before its tail CRC was added."""
    return (
        properties[:-TAIL_CRC_BYTES] if _ends_with_private(properties, len(properties), TAIL_CRC_NAME) else properties
    )


def batch_bytes(properties: bytes) -> int:
    """Log bytes of the batch that this record opens, 0 if it opens none. Only a property written by a broker counts: the last one
    but for the tail CRC."""
    size = len(properties)
    if _ends_with_private(properties, size, TAIL_CRC_NAME):
        size -= TAIL_CRC_BYTES
    if not _ends_with_private(properties, size, BATCH_NAME) or properties[size - 1] != 2:
        return 0
    digits = properties[size - 11 : size - 1]
    return int(digits) if digits.isdigit() else 0


def _lost_its_separator(buffer: Buffer, at: int, size: int, properties: bytes) -> bool:
    """A tail CRC covers the byte before it, and if that separator is damaged, the CRC does not look like a property of its own: is
    the name part of the last property's value, and does the CRC match once the separator is restored?"""
    before = properties[:-TAIL_CRC_BYTES]
    if b"\x01" not in before[before.rfind(b"\x02") + 1 :]:
        return False  # the letters end the name of a producer's property
    value = crc32(b"\x02", crc32(buffer[at : at + size - TAIL_CRC_BYTES - 1])) & 0x7FFFFFFF
    return properties[-11:-1] == (b"%010d" % value)[::-1]


def intact(buffer: Buffer, at: int, size: int, body_at: int, body_bytes: int, properties: bytes) -> bool:
    """Whether the body CRC matches, and the tail CRC if there is one."""
    body = buffer[body_at : body_at + body_bytes]
    if int.from_bytes(buffer[at + 8 : at + 12], "big") != crc32(body) & 0x7FFFFFFF:
        return False
    # A tail that never reached the disk reads as zeros, including the CRC that would have detected it.
    if properties and not properties[-1]:
        return False
    tail_at = len(properties) - TAIL_CRC_BYTES
    if tail_at < 0 or not properties.startswith(TAIL_CRC_NAME, tail_at):
        return True
    if tail_at and properties[tail_at - 1] != 2:
        return not _lost_its_separator(buffer, at, size, properties)
    value = crc32(buffer[at : at + size - TAIL_CRC_BYTES]) & 0x7FFFFFFF
    return properties[-11:] == (b"%010d" % value)[::-1] + b"\x02"


def is_message(record: memoryview, log_offset: int, name: bytes, queue_id: int, number: int) -> bool:
    """Whether the bytes claim to be message `number` of this queue, at this log offset. An LMQ queue lists messages of other topics,
    which have numbers of their own."""
    size, magic, _crc, queue, _flag, queue_offset, claimed, sys_flag = _FRONT.unpack_from(record)
    if magic not in (MAGIC_V1, MAGIC_V2) or claimed != log_offset:
        return False
    if name.startswith(_LMQ):
        return True
    head = 72 + (20 if sys_flag & SYS_BORN_V6 else 8) + (20 if sys_flag & SYS_STORE_V6 else 8)
    if queue != queue_id or queue_offset != number or size - head < 3:
        return False
    body = int.from_bytes(record[head - 4 : head], "big", signed=True)
    length_bytes = 1 if magic == MAGIC_V1 else 2
    if not 0 <= body <= size - head - 3:
        return False
    at = head + body
    length = int.from_bytes(record[at : at + length_bytes], "big")
    at += length_bytes
    return length == len(name) and record[at : at + length] == name


def scan(buffer: Buffer, log_offset: int, check: bool) -> tuple[int, int, int, int]:
    """How many bytes of `buffer`, which begins at `log_offset`, are good records: (bytes, why it stopped, records, last store ms).

    A batch counts only if it is complete: a part of it must never be visible. If a file ends or turns to zeros within a batch, what
    is left of the batch is damage. All members of a batch have one store time: a record with another one within the announced
    length shows that it was no batch (a Java broker stores whatever a producer writes there)."""
    at = good = records = whole_records = store_ms = whole_ms = batch_end = batch_ms = 0
    limit = len(buffer)
    why = SCAN_MORE
    while at < limit:
        fields = parse(buffer, at, limit)
        if isinstance(fields, int):
            why = fields if fields == SCAN_MORE or at == good else SCAN_DAMAGED
            break
        size, _id, _number, claimed_offset, _sys_flag, store_ms, body_at, body_bytes, _topic, properties = fields
        if claimed_offset != log_offset + at or (
            check and not intact(buffer, at, size, body_at, body_bytes, properties)
        ):
            why = SCAN_DAMAGED
            break
        if at >= batch_end or store_ms != batch_ms:
            if at < batch_end:
                good, whole_records, whole_ms = at, records, batch_ms
            length = batch_bytes(properties)
            batch_end = at + length if length else 0
            batch_ms = store_ms
        at += size
        records += 1
        if at >= batch_end:
            good, whole_records, whole_ms = at, records, store_ms
    return good, why, whole_records, whole_ms
