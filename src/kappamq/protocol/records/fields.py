"""The fields of a stored message, and where they lie. record.py makes records, view.py reads them.

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
from enum import Enum
from typing import Final

from kappamq.errors import ProtocolError
from kappamq.protocol.records import compression

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
