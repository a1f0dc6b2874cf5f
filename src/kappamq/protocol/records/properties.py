r"""Message properties: `name \x01 value \x02` repeated, as text inside a record or a send header.

The last property of a record may be its checksum, `__CRC32# \x01 <10 digits> \x02`: the CRC-32 of all bytes before it,
31 bits, in decimal with the least significant digit first.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from typing import Final

from kappamq.errors import ProtocolError
from kappamq.native import property_names

NAME_END: Final = "\x01"
PAIR_END: Final = "\x02"
TEXT_BYTES_MAX: Final = 32767
"""The length of the text is a signed 16-bit number."""

KEYS: Final = "KEYS"
TAGS: Final = "TAGS"
WAIT: Final = "WAIT"
DELAY: Final = "DELAY"
RETRY_TOPIC: Final = "RETRY_TOPIC"
REAL_TOPIC: Final = "REAL_TOPIC"
REAL_QUEUE_ID: Final = "REAL_QID"
TRANSACTION_PREPARED: Final = "TRAN_MSG"
PRODUCER_GROUP: Final = "PGROUP"
MIN_OFFSET: Final = "MIN_OFFSET"
MAX_OFFSET: Final = "MAX_OFFSET"
BUYER_ID: Final = "BUYER_ID"
ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"
TRANSFER_FLAG: Final = "TRANSFER_FLAG"
CORRECTION_FLAG: Final = "CORRECTION_FLAG"
MQ2_FLAG: Final = "MQ2_FLAG"
RECONSUME_TIME: Final = "RECONSUME_TIME"
MAX_RECONSUME_TIMES: Final = "MAX_RECONSUME_TIMES"
REGION: Final = "MSG_REGION"
TRACE_ON: Final = "TRACE_ON"
UNIQUE_KEY: Final = "UNIQ_KEY"
EXTEND_UNIQUE_INFO: Final = "EXTEND_UNIQ_INFO"
CONSUME_START_TIME: Final = "CONSUME_START_TIME"
INNER_COUNT: Final = "INNER_NUM"
INNER_BASE: Final = "INNER_BASE"
DUPLICATE_INFO: Final = "DUP_INFO"
CHECK_IMMUNITY_SECONDS: Final = "CHECK_IMMUNITY_TIME_IN_SECONDS"
PREPARED_QUEUE_OFFSET: Final = "TRAN_PREPARED_QUEUE_OFFSET"
TRANSACTION_ID: Final = "__transactionId__"
TRANSACTION_CHECK_TIMES: Final = "TRANSACTION_CHECK_TIMES"
INSTANCE_ID: Final = "INSTANCE_ID"
CORRELATION_ID: Final = "CORRELATION_ID"
REPLY_TO_CLIENT: Final = "REPLY_TO_CLIENT"
TTL: Final = "TTL"
ARRIVE_TIME: Final = "ARRIVE_TIME"
PUSH_REPLY_TIME: Final = "PUSH_REPLY_TIME"
CLUSTER: Final = "CLUSTER"
MESSAGE_TYPE: Final = "MSG_TYPE"
POP_CHECK: Final = "POP_CK"
POP_CHECK_OFFSET: Final = "POP_CK_OFFSET"
FIRST_POP_TIME: Final = "1ST_POP_TIME"
SHARDING_KEY: Final = "__SHARDINGKEY"
FORWARD_QUEUE_ID: Final = "PROPERTY_FORWARD_QUEUE_ID"
REDIRECT: Final = "REDIRECT"
MULTI_DISPATCH: Final = "INNER_MULTI_DISPATCH"
MULTI_QUEUE_OFFSET: Final = "INNER_MULTI_QUEUE_OFFSET"
TRACE_CONTEXT: Final = "TRACE_CONTEXT"
TIMER_DELAY_SECONDS: Final = "TIMER_DELAY_SEC"
TIMER_DELAY_MS: Final = "TIMER_DELAY_MS"
TIMER_DELIVER_MS: Final = "TIMER_DELIVER_MS"
TIMER_OUT_MS: Final = "TIMER_OUT_MS"
TIMER_ENQUEUE_MS: Final = "TIMER_ENQUEUE_MS"
TIMER_DEQUEUE_MS: Final = "TIMER_DEQUEUE_MS"
TIMER_ROLL_TIMES: Final = "TIMER_ROLL_TIMES"
TIMER_DELETE_UNIQUE_KEY: Final = "TIMER_DEL_UNIQKEY"
TIMER_DELAY_LEVEL: Final = "TIMER_DELAY_LEVEL"
BORN_HOST: Final = "__BORNHOST"
BORN_TIMESTAMP: Final = "BORN_TIMESTAMP"
TRANSIENT_PREFIX: Final = "__RMQ.TRANSIENT."
DLQ_ORIGIN_TOPIC: Final = "DLQ_ORIGIN_TOPIC"
DLQ_ORIGIN_MESSAGE_ID: Final = "DLQ_ORIGIN_MESSAGE_ID"
TAIL_CRC: Final = property_names.TAIL_CRC
BATCH_BYTES: Final = property_names.BATCH_BYTES
"""Ours: on the first record of a batch, how many bytes of the log the whole batch takes, 10 decimal digits."""
HALF_SINCE: Final = property_names.HALF_SINCE
"""Ours: on a copy of a half message, when the first one was stored."""
TRANSACTION_OUTCOME: Final = property_names.TRANSACTION_OUTCOME
"""Ours: on an op record, the result of the transaction."""

TIMER_NAMES: Final = frozenset({TIMER_DELAY_SECONDS, TIMER_DELAY_MS, TIMER_DELIVER_MS})
PRIVATE: Final = property_names.PRIVATE_NAMES
"""Bookkeeping of a broker in stored records: our client and the command line do not show it."""
BROKER_ONLY: Final = PRIVATE | {POP_CHECK}
"""Only a broker may set these; they are removed from what a client sends."""
OF_THE_RECORD: Final = frozenset({TAIL_CRC, BATCH_BYTES})
"""These describe one record and its neighbours in the log, so a copy of the message omits them."""

RESERVED: Final = frozenset(
    value
    for name, value in list(globals().items())
    if name.isupper() and isinstance(value, str) and name not in ("NAME_END", "PAIR_END", "TRANSIENT_PREFIX")
)
"""All names above: reserved, so applications cannot use them for their own properties."""

NUMBER_DIGITS: Final = 10
TAIL_CRC_BYTES: Final = len(TAIL_CRC) + 1 + NUMBER_DIGITS + 1
BATCH_BYTES_BYTES: Final = len(BATCH_BYTES) + 1 + NUMBER_DIGITS + 1
_TAIL_CRC_START = (TAIL_CRC + NAME_END).encode()
_NAME_END = NAME_END.encode()
_PAIR_END = PAIR_END.encode()
_BATCH_START = BATCH_BYTES + NAME_END


def encode(properties: Mapping[str, str]) -> str:
    """Return the text of `properties`. Raises ProtocolError for names and values that contain a separator."""
    parts: list[str] = []
    for name, value in properties.items():
        if NAME_END in name or PAIR_END in name or PAIR_END in value:
            raise ProtocolError(f"the property {name!r} contains a separator (0x01 or 0x02) in its name or value")
        parts += (name, NAME_END, value, PAIR_END)
    return "".join(parts)


def decode(text: str) -> dict[str, str]:
    """Decode properties as Java does: parts without a name or a value are dropped, the last of equal names wins."""
    result: dict[str, str] = {}
    for piece in text.split(PAIR_END):
        name, _, value = piece.partition(NAME_END)
        if name and value:
            result[name] = value
    return result


def get(text: str, name: str) -> str | None:
    """Return one property of a text without decoding the others."""
    return decode(text).get(name) if name in text else None


def tail_crc(crc: int) -> bytes:
    """Return the property with a record's checksum; see `record.py` for what it covers."""
    digits = str(crc & 0x7FFFFFFF)[::-1].ljust(NUMBER_DIGITS, "0")
    return _TAIL_CRC_START + digits.encode() + PAIR_END.encode()


def has_tail_crc(properties: bytes) -> bool:
    """Return whether the last property of an encoded text is a record's checksum, valid or not.

    It must be a property of its own: the name of a producer's property may end with the same letters."""
    at = len(properties) - TAIL_CRC_BYTES
    return at >= 0 and properties.startswith(_TAIL_CRC_START, at) and (at == 0 or properties[at - 1 : at] == _PAIR_END)


def batch_bytes(count: int) -> str:
    """Return the value of BATCH_BYTES: of fixed width, so that it can be written before the length is known."""
    if not 0 <= count < 10**NUMBER_DIGITS:
        raise ProtocolError(f"a batch of {count} bytes cannot be written in {NUMBER_DIGITS} digits")
    return str(count).zfill(NUMBER_DIGITS)


def lost_tail_crc(properties: bytes, crc_of: Callable[[int], int]) -> bool:
    """Return whether the separator before the checksum was damaged, so that the checksum looks like part of a value.

    `crc_of(n)`: the CRC-32 of the record without its last `n` bytes. The checksum covers the separator, so it is valid again
    once the separator is restored."""
    if not properties.startswith(_TAIL_CRC_START, max(0, len(properties) - TAIL_CRC_BYTES)) or has_tail_crc(properties):
        return False
    before = properties[:-TAIL_CRC_BYTES]
    if _NAME_END not in before[before.rfind(_PAIR_END) + 1 :]:
        return False  # the letters are the end of the name of a producer's property
    return tail_crc(zlib.crc32(_PAIR_END, crc_of(TAIL_CRC_BYTES + 1)))[:-1] == properties[len(before) : -1]


def opens_batch(text: str) -> int | None:
    """Return the batch length in the properties of a record (without the tail checksum), None if there is none.

    Only the last property counts, since only a broker writes there."""
    before, found, digits = text.removesuffix(PAIR_END).rpartition(_BATCH_START)
    if not found or not text.endswith(PAIR_END) or (before and not before.endswith(PAIR_END)):
        return None
    return int(digits) if len(digits) == NUMBER_DIGITS and digits.isascii() and digits.isdigit() else None
