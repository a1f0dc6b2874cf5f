"""Header scan, in Python: which frames are plain sends, pulls and ends of transactions, and the values of their fields.

Both wire forms (JSON and binary) give the same typed fields. A frame is *plain* only if every field in it is known and
well-formed; everything else returns None and is left to Python. scan.c and json.c must agree on each single frame. The rules:

- JSON is standard JSON. If a key comes twice the last one wins, in either form, but all must be well-formed (and each
  `extFields` complete).
- `code`, `flag`, `opaque` and (optional) `version` are whole numbers of 32 bits; `language`, `remark` and
  `serializeTypeCurrentRPC` are strings or null; `extFields` holds strings under the names that the request code knows.
- Numbers inside `extFields` are an optional minus and up to 10 digits (18 for times and offsets), leading zeros allowed; or
  JSON numbers, as clients in other languages write them.
"""

from __future__ import annotations

import re
import struct
from typing import Any, Final, Generic, NamedTuple, TypeVar

import msgspec

from kappamq.native.layout import (
    PULL_COMMIT,
    PULL_LITE,
    PULL_SUBSCRIPTION,
    PULL_SUSPEND,
    SPECIAL_PROPERTIES,
    SYS_COMMIT,
    SYS_PLAIN,
    SYS_PREPARED,
    SYS_TRANSACTION,
    WAITING_BYTES_MAX,
    WAITING_PAIRS_MAX,
)

SEND, SEND_V2, SEND_BATCH, PULL, LITE_PULL, END_TRANSACTION = 10, 310, 320, 11, 361, 37

LONG_NAMES: Final = {
    "a": "producerGroup", "b": "topic", "c": "defaultTopic", "d": "defaultTopicQueueNums", "e": "queueId", "f": "sysFlag",
    "g": "bornTimestamp", "h": "flag", "i": "properties", "j": "reconsumeTimes", "k": "unitMode", "l": "maxReconsumeTimes",
    "m": "batch", "n": "brokerName",
}  # fmt: skip

_BINARY_HEAD: Final = struct.Struct(">hBhiii")
_int32: Final = struct.Struct(">i").unpack_from
_INT: Final = r"(-?[0-9]{1,10})"
_LONG: Final = r"(-?[0-9]{1,18})"
_SEND_NUMBERS: Final = re.compile("\0".join((_INT, _INT, _INT, _INT, _INT, _INT))).fullmatch
_PULL_NUMBERS: Final = re.compile("\0".join((_INT, _LONG, _INT, _INT, _LONG, _LONG, _LONG, _INT, _INT))).fullmatch
_long_number: Final = re.compile(_LONG).fullmatch
_TRUE: Final = ("true",)
_FALSE: Final = ("false", "0")  # the C++ client writes 0 and 1
_BOOLEANS: Final = ("false", "true", "0", "1")
_INT_MIN: Final = -(1 << 31)
_INT_MAX: Final = (1 << 31) - 1
_WISHES: Final = frozenset({"TRAN_MSG", "DELAY", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"})
_OF_HALF: Final = frozenset({"CHECK_IMMUNITY_TIME_IN_SECONDS", "TRANSACTION_CHECK_TIMES", "__transactionId__"})
_NOT_WAITING: Final = (SPECIAL_PROPERTIES - _WISHES) | _OF_HALF
_positive: Final = re.compile(r"[1-9][0-9]{0,14}").fullmatch
_END_NUMBERS: Final = re.compile("\0".join((_LONG, _LONG, _INT))).fullmatch
_printable_key: Final = re.compile(r"[ !#-\[\]-~]+").fullmatch


def _special_names() -> str:
    """A pattern for the special names, by their first letter: that excludes most names quickly."""
    rests: dict[str, list[str]] = {}
    for name in sorted(SPECIAL_PROPERTIES):
        rests.setdefault(name[0], []).append(re.escape(name[1:]))
    return "|".join(f"{first}(?:{'|'.join(rest)})" for first, rest in rests.items())


# Pairs `name 0x01 value 0x02` without a special name and with no WAIT but true; group 1 is the last UNIQ_KEY.
_plain_pairs: Final = re.compile(
    f"(?:(?!(?:{_special_names()})\x01)(?:UNIQ_KEY\x01([^\x01\x02]+)|(?!WAIT\x01)[^\x01\x02]+\x01[^\x01\x02]+|WAIT\x01true)\x02)*+"
).fullmatch


Number = str | int


class SendFields(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """Ext fields of a send, under their one-letter names; wire.md 4 explains them."""

    a: str
    b: str
    c: str
    d: Number
    e: Number
    f: Number
    g: Number
    h: Number
    i: str = ""
    j: Number = "0"
    k: str = "false"
    l: Number = "0"  # noqa: E741 - the wire's name
    m: str = "false"
    n: str = ""
    lo: str = ""
    ns: str = ""
    nsd: str = ""
    bname: str = ""
    oway: str = ""
    access_key: str = msgspec.field(default="", name="AccessKey")
    channel: str = msgspec.field(default="", name="OnsChannel")
    security_token: str = msgspec.field(default="", name="SecurityToken")
    signature: str = msgspec.field(default="", name="Signature")


LongSendFields: Final = msgspec.defstruct(
    "LongSendFields",
    [
        (field.name, field.type) if field.required else (field.name, field.type, field.default)
        for field in msgspec.structs.fields(SendFields)
    ],
    rename=LONG_NAMES
    | {field.name: field.encode_name for field in msgspec.structs.fields(SendFields) if len(field.name) > 1},
    forbid_unknown_fields=True,
    gc=False,
)  # code 10 spells the same fields out


class PullFields(msgspec.Struct, forbid_unknown_fields=True, gc=False, rename="camel"):
    consumer_group: str
    topic: str
    queue_id: Number
    queue_offset: Number
    max_msg_nums: Number
    sys_flag: Number
    commit_offset: Number
    suspend_timeout_millis: Number
    sub_version: Number
    subscription: str = ""
    expression_type: str = "TAG"
    max_msg_bytes: Number = "0"
    request_source: Number = "-1"
    lo: str = ""
    ns: str = ""
    nsd: str = ""
    bname: str = ""
    oway: str = ""
    access_key: str = msgspec.field(default="", name="AccessKey")
    channel: str = msgspec.field(default="", name="OnsChannel")
    security_token: str = msgspec.field(default="", name="SecurityToken")
    signature: str = msgspec.field(default="", name="Signature")


class EndFields(msgspec.Struct, forbid_unknown_fields=True, gc=False, rename="camel"):
    producer_group: str
    tran_state_table_offset: Number
    commit_log_offset: Number
    commit_or_rollback: Number
    msg_id: str
    topic: str = ""
    from_transaction_check: str = "false"
    transaction_id: str = ""
    lo: str = ""
    ns: str = ""
    nsd: str = ""
    bname: str = ""
    oway: str = ""
    access_key: str = msgspec.field(default="", name="AccessKey")
    channel: str = msgspec.field(default="", name="OnsChannel")
    security_token: str = msgspec.field(default="", name="SecurityToken")
    signature: str = msgspec.field(default="", name="Signature")


Fields = TypeVar("Fields")


class Header(msgspec.Struct, Generic[Fields], kw_only=True, forbid_unknown_fields=True, gc=False):
    """The fields of every header, in either form. In the order of Java's JSON: msgspec then finds the next field fastest."""

    code: int
    ext: Fields = msgspec.field(name="extFields")
    flag: int
    language: str | None = None
    opaque: int
    remark: str | None = None
    serialize_type: str | None = msgspec.field(default=None, name="serializeTypeCurrentRPC")
    version: int = 0


class Pull(NamedTuple):
    group: str
    topic: str
    queue_id: int
    offset: int
    count_max: int
    sys_flag: int
    commit_offset: int
    suspend_ms: int
    version: int
    explicit: bool  # the request carried its subscription (which is "*")


class End(NamedTuple):
    """The end of a transaction, as its producer requests it."""

    group: str
    queue_offset: int  # of the half message
    log_offset: int
    decision: int  # SYS_COMMIT, or SYS_TRANSACTION to roll it back
    message_id: str
    transaction_id: str


class Wish(NamedTuple):
    """What a send that is not for consumers yet waits for."""

    name: str  # of the property that says so
    value: str
    group: str  # PGROUP, "" if there is none
    unique_key: str


class Fixed(NamedTuple):
    """The fields of a send other than its time, properties and body: a producer repeats them from message to message."""

    topic: str
    queue_id: int
    sys_flag: int
    flag: int
    reconsume_times: int


_FIELDS: Final[dict[int, Any]] = {
    SEND: LongSendFields, SEND_V2: SendFields, SEND_BATCH: SendFields, PULL: PullFields, LITE_PULL: PullFields,
    END_TRANSACTION: EndFields,
}  # fmt: skip
_DECODE: Final = {
    code: msgspec.json.Decoder(Header[fields]).decode  # type: ignore[valid-type]
    for code, fields in _FIELDS.items()
}
_NAMES: Final = {
    field.encode_name.encode(): field.encode_name
    for fields in _FIELDS.values()
    for field in msgspec.structs.fields(fields)
}
_decode_code: Final = msgspec.json.Decoder(Header[msgspec.Raw]).decode
_GUESS: Final = {(b'{"code":%d,"' % code)[:12]: code for code in _FIELDS}


def read_json(header: bytes) -> Header[Any] | None:
    top: Header[Any] | None
    code = _GUESS.get(header[:12])
    if code is not None:
        try:
            top = _DECODE[code](header)
            if top.code == code:
                return top if _INT_MIN <= top.opaque <= _INT_MAX else None
        except (msgspec.DecodeError, UnicodeDecodeError):
            pass  # the guess may have been wrong
    try:
        decode = _DECODE.get(_decode_code(header).code)
        top = decode(header) if decode is not None else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return top if top is not None and _INT_MIN <= top.opaque <= _INT_MAX else None


def read_binary(header: bytes) -> Header[Any] | None:
    end = len(header)
    if end < 21:
        return None
    code, _language, version, opaque, flag, remark_bytes = _BINARY_HEAD.unpack_from(header)
    fields = _FIELDS.get(code)
    if fields is None or remark_bytes != 0 or 21 + int.from_bytes(header[17:21], "big", signed=True) != end:
        return None
    ext: dict[str, str] = {}
    position = 21
    try:
        while position < end:
            name_at = position + 2
            name_end = name_at + (header[position] << 8 | header[position + 1])
            value_at = name_end + 4
            name = _NAMES.get(header[name_at:name_end])
            position = value_at + _int32(header, name_end)[0]
            if name is None or position <= value_at or position > end:
                return None
            ext[name] = str(header[value_at:position], "utf-8")
        return Header(code=code, ext=msgspec.convert(ext, fields), flag=flag, opaque=opaque, version=version)
    except (IndexError, struct.error, UnicodeDecodeError, msgspec.ValidationError):
        return None  # a length beyond the header, invalid text, or fields that this code does not have


def plain_fixed(code: int, version: int, ext: SendFields) -> Fixed | None:
    """The fields that a producer repeats. The caller caches the result by exactly the fields used here."""
    match = _SEND_NUMBERS(_joined((ext.d, ext.e, ext.f, ext.h, ext.j, ext.l)))
    if match is None or not _INT_MIN <= version <= _INT_MAX:
        return None
    numbers = [int(text) for text in match.groups()]
    if min(numbers) < _INT_MIN or max(numbers) > _INT_MAX:
        return None
    _default_queues, queue_id, sys_flag, flag, reconsume_times, _reconsume_max = numbers
    if sys_flag & ~(SYS_PLAIN | SYS_PREPARED) or queue_id < 0:
        return None
    if ext.k not in _BOOLEANS or ext.m not in (_TRUE if code == SEND_BATCH else _FALSE):
        return None
    return Fixed(ext.b, queue_id, sys_flag, flag, reconsume_times)


def _joined(numbers: tuple[Number, ...]) -> str:
    try:
        return "\0".join(numbers)  # type: ignore[arg-type]
    except TypeError:
        return "\0".join(map(str, numbers))


def plain_time(text: Number) -> int | None:
    if isinstance(text, int):
        text = str(text)
    if len(text) <= 18 and text.isdigit() and text.isascii():
        return int(text)
    match = _long_number(text)
    return int(match[0]) if match is not None else None


def plain_properties(text: str) -> str | None:
    """UNIQ_KEY ("" if there is none), or None unless every pair is well-formed (neither half empty, no separator in a value),
    none is special, and the sender waits for the store."""
    if text and text[-1] != "\x02":
        text += "\x02"
    match = _plain_pairs(text)
    return (match[1] or "") if match is not None else None


def waiting_properties(text: str) -> Wish | None:
    """The same for a send that waits: exactly one property says for what, no name comes twice, and none is one that the broker
    writes itself."""
    if len(text.encode()) > WAITING_BYTES_MAX:
        return None
    pairs: dict[str, str] = {}
    wish = ""
    for piece in text.removesuffix("\x02").split("\x02"):
        name, _, value = piece.partition("\x01")
        if not name or not value or "\x01" in value or name in pairs or name in _NOT_WAITING:
            return None
        pairs[name] = value
        if name in _WISHES:
            if wish:
                return None
            wish = name
    if not wish or len(pairs) > WAITING_PAIRS_MAX or pairs.get("WAIT", "true") != "true":
        return None
    return Wish(wish, pairs[wish], pairs.get("PGROUP", ""), pairs.get("UNIQ_KEY", ""))


def positive(text: str) -> int | None:
    """A positive number that is written back unchanged: no sign, no leading zero, and a thousand times its value fits into 64 bits."""
    return int(text) if _positive(text) is not None else None


def printable_key(key: str) -> bool:
    """Whether a key can be put into JSON without escaping."""
    return (key.isalnum() and key.isascii()) or _printable_key(key) is not None


def plain_pull(header: Header[PullFields]) -> Pull | None:
    ext = header.ext
    numbers = _joined(
        (
            ext.queue_id, ext.queue_offset, ext.max_msg_nums, ext.sys_flag, ext.commit_offset, ext.suspend_timeout_millis,
            ext.sub_version, ext.max_msg_bytes, ext.request_source,
        )
    )  # fmt: skip
    match = _PULL_NUMBERS(numbers)
    if match is None or not _INT_MIN <= header.version <= _INT_MAX:
        return None
    queue_id, offset, count_max, sys_flag, commit_offset, suspend_ms, version, bytes_max, source = map(
        int, match.groups()
    )
    if not (
        0 <= queue_id <= _INT_MAX and 0 < count_max <= _INT_MAX and offset >= 0 and suspend_ms >= 0 and source == -1
    ):
        return None
    if not 0 <= bytes_max <= _INT_MAX:
        return None
    lite = PULL_LITE if header.code == LITE_PULL else 0
    if sys_flag & ~(PULL_COMMIT | PULL_SUSPEND | PULL_SUBSCRIPTION) != lite or header.flag & 2:
        return None
    if ext.expression_type != "TAG":
        return None
    explicit = bool(sys_flag & PULL_SUBSCRIPTION)
    if explicit and ext.subscription != "*":
        return None
    return Pull(
        ext.consumer_group,
        ext.topic,
        queue_id,
        offset,
        count_max,
        sys_flag,
        commit_offset,
        suspend_ms,
        version,
        explicit,
    )


def plain_end(header: Header[EndFields]) -> End | None:
    ext = header.ext
    match = _END_NUMBERS(_joined((ext.tran_state_table_offset, ext.commit_log_offset, ext.commit_or_rollback)))
    if match is None or not _INT_MIN <= header.version <= _INT_MAX or ext.from_transaction_check not in _BOOLEANS:
        return None
    queue_offset, log_offset, decision = map(int, match.groups())
    if decision not in (SYS_COMMIT, SYS_TRANSACTION):
        return None
    return End(ext.producer_group, queue_offset, log_offset, decision, ext.msg_id, ext.transaction_id)
