"""Header scan, in Python: which frames are plain sends and pulls, and what they say.

Both wire forms (JSON and binary) end in the same table name -> value. A frame is *plain* only if every field in it is known
and well-formed; everything else returns None and is Python's to judge. kernel.c must agree on each single frame, so the rules
are spelled out here even where msgspec would be more generous: no duplicate keys, no double backslash, whole numbers.
"""

from __future__ import annotations

import re
import struct
from typing import Any, NamedTuple

import msgspec

from kappamq.native.layout import PULL_COMMIT, PULL_LITE, PULL_SUBSCRIPTION, PULL_SUSPEND, SPECIAL_PROPERTIES, SYS_PLAIN

SEND, SEND_V2, SEND_BATCH, PULL, LITE_PULL = 10, 310, 320, 11, 361
FAST_CODES = frozenset((SEND, SEND_V2, SEND_BATCH, PULL, LITE_PULL))

LONG_NAMES = {
    "producerGroup": "a", "topic": "b", "defaultTopic": "c", "defaultTopicQueueNums": "d", "queueId": "e", "sysFlag": "f",
    "bornTimestamp": "g", "flag": "h", "properties": "i", "reconsumeTimes": "j", "unitMode": "k", "maxReconsumeTimes": "l",
    "batch": "m", "brokerName": "n",
}  # fmt: skip
IGNORED = frozenset(("lo", "ns", "nsd", "bname", "oway"))
SEND_KEYS = frozenset("abcdefghijklmn") | IGNORED
SEND_KEYS_LONG = frozenset(LONG_NAMES) | IGNORED
PULL_KEYS = IGNORED | {
    "consumerGroup", "topic", "queueId", "queueOffset", "maxMsgNums", "sysFlag", "commitOffset", "suspendTimeoutMillis",
    "subscription", "subVersion", "expressionType", "maxMsgBytes", "requestSource",
}  # fmt: skip
TOP_KEYS = frozenset(("code", "flag", "language", "opaque", "remark", "version", "extFields", "serializeTypeCurrentRPC"))
BOOLEANS = frozenset(("true", "false"))

_BINARY_HEAD = struct.Struct(">hBhiii")
_INT = r"(-?[0-9]{1,10})"
_LONG = r"(-?[0-9]{1,18})"
_SEND_NUMBERS = re.compile("\0".join((_INT, _INT, _INT, _LONG, _INT, _INT, _INT))).fullmatch
_PULL_NUMBERS = re.compile("\0".join((_INT, _LONG, _INT, _INT, _LONG, _LONG, _LONG, _INT, _INT))).fullmatch
_INT_MIN, _INT_MAX = -(1 << 31), (1 << 31) - 1
_PRINTABLE_KEY = re.compile(r"[ !#-\[\]-~]+").fullmatch
_decode = msgspec.json.Decoder(dict[str, Any]).decode


class Head(NamedTuple):
    """What every header says, whatever its form."""

    code: int
    flag: int
    opaque: int
    ext: dict[str, str]


class Send(NamedTuple):
    topic: str
    queue_id: int
    sys_flag: int
    born_ms: int
    flag: int
    reconsume_times: int
    properties: str
    unique_key: str  # "" in a batch: its members carry their own


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
    explicit: bool  # the subscription came with the request (and is "*")


def read_json(header: bytes) -> Head | None:
    if b"\\\\" in header:
        return None  # the count of quotes below could not tell a closing quote from an escaped one
    try:
        top = _decode(header)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    code, ext = top.get("code"), top.get("extFields")
    flag, opaque, version = top.get("flag"), top.get("opaque"), top.get("version", 0)
    if type(code) is not int or type(flag) is not int or type(opaque) is not int or type(version) is not int:
        return None
    if code not in FAST_CODES or type(ext) is not dict or not top.keys() <= TOP_KEYS:
        return None
    if not (_INT_MIN <= opaque <= _INT_MAX and _INT_MIN <= version <= _INT_MAX and _INT_MIN <= flag <= _INT_MAX):
        return None
    strings = len(top) + 2 * len(ext)
    for name in ("language", "remark", "serializeTypeCurrentRPC"):
        value = top.get(name)
        if type(value) is str:
            strings += 1
        elif value is not None:
            return None
    # Strings in the text and strings decoded agree unless a key came twice.
    if header.count(b'"') - header.count(b'\\"') != 2 * strings:
        return None
    for value in ext.values():
        if type(value) is not str:
            return None
    return Head(code, flag, opaque, ext)


def read_binary(header: bytes) -> Head | None:
    if len(header) < 21:
        return None
    code, _language, _version, opaque, flag, remark_bytes = _BINARY_HEAD.unpack_from(header)
    if code not in FAST_CODES or remark_bytes != 0:
        return None
    end = 21 + int.from_bytes(header[17:21], "big", signed=True)
    if end != len(header):
        return None
    ext: dict[str, str] = {}
    position = 21
    count = 0
    try:
        while position < end:
            name_end = position + 2 + int.from_bytes(header[position : position + 2], "big", signed=True)
            value_at = name_end + 4
            if name_end <= position + 2 or value_at > end:
                return None
            value_end = value_at + int.from_bytes(header[name_end:value_at], "big", signed=True)
            if value_end <= value_at or value_end > end:
                return None
            ext[header[position + 2 : name_end].decode()] = header[value_at:value_end].decode()
            count += 1
            position = value_end
    except UnicodeDecodeError:
        return None
    if count != len(ext):
        return None
    return Head(code, flag, opaque, ext)


def plain_send(head: Head) -> Send | None:
    ext = head.ext
    if head.code == SEND:
        if not ext.keys() <= SEND_KEYS_LONG:
            return None
        ext = {LONG_NAMES.get(name, name): value for name, value in ext.items()}
    elif not ext.keys() <= SEND_KEYS:
        return None
    get = ext.get
    try:
        numbers = "\0".join((ext["d"], ext["e"], ext["f"], ext["g"], ext["h"], get("j", "0"), get("l", "0")))
        topic = ext["b"]
        if "a" not in ext or "c" not in ext:
            return None
    except KeyError:
        return None
    match = _SEND_NUMBERS(numbers)
    if match is None:
        return None
    default_queues, queue_id, sys_flag, born_ms, flag, reconsume_times, reconsume_max = map(int, match.groups())
    if sys_flag & ~SYS_PLAIN or queue_id < 0:
        return None
    for value in (default_queues, queue_id, sys_flag, flag, reconsume_times, reconsume_max):
        if not _INT_MIN <= value <= _INT_MAX:
            return None
    batch = get("m", "false")
    if get("k", "false") not in BOOLEANS or batch != ("true" if head.code == SEND_BATCH else "false"):
        return None
    properties = get("i", "")
    unique_key = ""
    if head.code != SEND_BATCH:
        pairs = plain_properties(properties)
        if pairs is None:
            return None
        unique_key = pairs.get("UNIQ_KEY", "")
        if _PRINTABLE_KEY(unique_key) is None:
            return None  # absent: Python makes one; odd: Python escapes it
    return Send(topic, queue_id, sys_flag, born_ms, flag, reconsume_times, properties, unique_key)


def plain_properties(text: str) -> dict[str, str] | None:
    """Name -> value, or None unless every pair is well-formed, none is special, and the sender waits for the store."""
    if not text:
        return {}
    try:
        pairs = dict([pair.split("\x01", 1) for pair in (text[:-1] if text[-1] == "\x02" else text).split("\x02")])
    except ValueError:
        return None
    if "" in pairs or "" in pairs.values() or not SPECIAL_PROPERTIES.isdisjoint(pairs):
        return None
    return pairs if pairs.get("WAIT", "true") == "true" else None


def plain_pull(head: Head) -> Pull | None:
    ext = head.ext
    if not ext.keys() <= PULL_KEYS:
        return None
    get = ext.get
    try:
        group, topic = ext["consumerGroup"], ext["topic"]
        numbers = "\0".join(
            (
                ext["queueId"], ext["queueOffset"], ext["maxMsgNums"], ext["sysFlag"], ext["commitOffset"],
                ext["suspendTimeoutMillis"], ext["subVersion"], get("maxMsgBytes", "0"), get("requestSource", "-1"),
            )
        )  # fmt: skip
    except KeyError:
        return None
    match = _PULL_NUMBERS(numbers)
    if match is None:
        return None
    queue_id, offset, count_max, sys_flag, commit_offset, suspend_ms, version, bytes_max, source = map(int, match.groups())
    if not (0 <= queue_id <= _INT_MAX and 0 < count_max <= _INT_MAX and offset >= 0 and suspend_ms >= 0 and source == -1):
        return None
    if not 0 <= bytes_max <= _INT_MAX:
        return None
    lite = PULL_LITE if head.code == LITE_PULL else 0
    if sys_flag & ~(PULL_COMMIT | PULL_SUSPEND | PULL_SUBSCRIPTION) != lite or head.flag & 2:
        return None
    if get("expressionType", "TAG") != "TAG":
        return None
    explicit = bool(sys_flag & PULL_SUBSCRIPTION)
    if explicit and get("subscription") != "*":
        return None
    return Pull(group, topic, queue_id, offset, count_max, sys_flag, commit_offset, suspend_ms, version, explicit)
