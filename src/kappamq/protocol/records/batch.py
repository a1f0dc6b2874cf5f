"""Batches: several messages in one send (code 320), and their records in the log.

int32 size | int32 0 | int32 0 | int32 flag | int32 + body | int16 + properties        (one member)
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from kappamq.errors import ProtocolError
from kappamq.protocol.records import compression, properties
from kappamq.protocol.records.record import SYS_COMPRESSED, SYS_INNER_BATCH, SYS_NEED_UNWRAP, Record

MEMBERS_MAX: Final = 1 << 20
"""Upper bound of members: even empty ones would fill the largest frame."""
INNER_MEMBERS_MAX: Final = 1 << 18
"""Upper bound of messages in a record that holds a batch: more than fit into a message of the default limit (4 MiB)."""
MEMBER_BYTES: Final = 22
"""Size of an empty member."""

_FRONT = struct.Struct(">iiiii")  # size, magic, CRC, flag, body length
_SHORT = struct.Struct(">h")
assert _FRONT.size + _SHORT.size == MEMBER_BYTES


@dataclass(frozen=True, slots=True)
class Member:
    """One message of a batch; topic, queue and times are in the header of the send."""

    body: bytes
    properties: str = ""
    flag: int = 0


def encode(members: Iterable[Member]) -> bytes:
    """Return the body of a batch send. Raises ProtocolError if a member does not fit its fields."""
    parts: list[bytes] = []
    for member in members:
        text = member.properties.encode()
        try:
            parts += (
                _FRONT.pack(MEMBER_BYTES + len(member.body) + len(text), 0, 0, member.flag, len(member.body)),
                member.body,
                _SHORT.pack(len(text)),
                text,
            )
        except struct.error as error:
            raise ProtocolError(f"a member of the batch does not fit: {error}") from None
    return b"".join(parts)


def split(
    data: bytes | bytearray | memoryview, members_max: int = MEMBERS_MAX, advice: str = ": send them in several batches"
) -> list[Member]:
    """Decode the body of a batch send: all members, or a ProtocolError. An empty body is an empty batch.

    `advice` ends the text about too many members.
    """
    view = memoryview(data)
    members: list[Member] = []
    at = 0
    while at < len(view):
        if len(members) >= members_max:
            raise ProtocolError(f"the batch has more than {members_max} messages{advice}")
        end, body_at = at, at + _FRONT.size
        try:
            size, _, _, flag, body_bytes = _FRONT.unpack_from(view, at)
            end = at + size
            text_at = body_at + body_bytes + _SHORT.size
            if body_bytes < 0 or not (text_at <= end <= len(view)):
                raise ProtocolError(
                    f"member {len(members)} of the batch: size {size} and body length {body_bytes} are wrong"
                )
            (text_bytes,) = _SHORT.unpack_from(view, text_at - _SHORT.size)
        except struct.error:
            raise ProtocolError(f"the batch ends within member {len(members)}") from None
        if text_at + text_bytes != end:
            raise ProtocolError(f"member {len(members)} of the batch: properties of {text_bytes} bytes do not end it")
        try:
            text = str(view[text_at:end], "utf-8")
        except UnicodeDecodeError:
            raise ProtocolError(f"member {len(members)} of the batch: its properties are not UTF-8") from None
        members.append(Member(bytes(view[body_at : text_at - _SHORT.size]), text, flag))
        at = end
    return members


def lay_out(records: Sequence[Record], log_offset: int) -> bytes:
    """Encode records that belong together, to be appended at `log_offset`; sets the offset of each.

    The first of several carries the length of all, so that recovery keeps a batch whole or not at all.
    """
    if len(records) > 1:
        first = records[0]
        text = first.properties
        if text and not text.endswith(properties.PAIR_END):
            text += properties.PAIR_END
        # The number has a fixed width, so a placeholder gives the size of the record that will contain it.
        first.properties = text + properties.encode({properties.BATCH_BYTES: properties.batch_bytes(0)})
        total = sum(record.size for record in records)
        first.properties = text + properties.encode({properties.BATCH_BYTES: properties.batch_bytes(total)})
    parts: list[bytes] = []
    for record in records:
        record.log_offset = log_offset
        encoded = record.encode()
        parts.append(encoded)
        log_offset += len(encoded)
    return b"".join(parts)


def unwrap(record: Record, bytes_max: int = compression.BODY_BYTES_MAX) -> list[Record]:
    """Return the messages inside a record that holds a whole batch, else the record itself.

    Raises ProtocolError if they cannot be decoded, BodyTooLong if the body has more than `bytes_max` bytes when decompressed.
    """
    if not record.sys_flag & SYS_NEED_UNWRAP or not record.sys_flag & SYS_INNER_BATCH:
        return [record]
    body, sys_flag = record.body, record.sys_flag & ~(SYS_NEED_UNWRAP | SYS_INNER_BATCH)
    if sys_flag & SYS_COMPRESSED:
        body = compression.decompress(body, sys_flag, bytes_max)
        sys_flag &= ~SYS_COMPRESSED
    names = record.property_map()
    first = _number(names.get(properties.INNER_BASE, ""), record.queue_offset)
    count = _number(names.get(properties.INNER_COUNT, ""), INNER_MEMBERS_MAX)
    if count < INNER_MEMBERS_MAX:
        members = split(body, count, ", which is the number in its record")
    else:
        members = split(body, INNER_MEMBERS_MAX, ", more than a record may hold")
    return [
        replace(
            record,
            body=member.body,
            properties=member.properties,
            flag=member.flag,
            queue_offset=first + number,
            sys_flag=sys_flag,
        )
        for number, member in enumerate(members)
    ]


def _number(text: str, otherwise: int) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else otherwise
