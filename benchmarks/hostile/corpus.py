"""For every request code the largest body and the worst header that the limits admit, and a little more than they admit.

Whatever is JSON comes as many tiny values, as deep nesting, as one long text of escapes, in fastjson's dialect, with numbers of
thousands of digits and with one key again and again. What handlers work on comes well-formed and as much of it as fits. And of each
code a plain request comes many times at once, so that there is more to do in one turn than a turn has time for.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any

from kappamq.broker.requests.table import REQUEST_SIZES as BROKER_SIZES
from kappamq.config.net import NetConfig
from kappamq.nameserver.request_sizes import REQUEST_SIZES as NAMESERVER_SIZES
from kappamq.net.requests.sizes import RequestLimit
from kappamq.protocol.codes import RequestCode
from kappamq.protocol.headers import admin as headers_admin
from kappamq.protocol.headers import client as headers_client
from kappamq.protocol.headers import nameserver as headers_nameserver
from kappamq.protocol.headers.header import Header
from kappamq.protocol.later import complete

BROKER, NAMESERVER = "broker", "nameserver"
TOPIC, GROUP, CLIENT = "hostile", "hostile_group", "hostile_client"
_NAMESERVER_CODES = {
    header.code for header in vars(headers_nameserver).values() if isinstance(header, type) and issubclass(header, Header)
}  # fmt: skip
_SHARED = {
    RequestCode.SEND_MESSAGE: headers_client.SendMessage,
    RequestCode.SEND_MESSAGE_V2: headers_client.SendMessageV2,
    RequestCode.SEND_BATCH_MESSAGE: headers_client.SendMessageV2,
    RequestCode.SEND_REPLY_MESSAGE: headers_client.SendMessage,
    RequestCode.SEND_REPLY_MESSAGE_V2: headers_client.SendMessageV2,
    RequestCode.LITE_PULL_MESSAGE: headers_client.PullMessage,
}
_NAMES = {
    **dict.fromkeys(("topic", "b", "originTopic"), TOPIC),
    **dict.fromkeys(("consumerGroup", "group", "producerGroup", "a", "groupName", "srcGroup", "destGroup"), GROUP),
    **dict.fromkeys(("clientId", "clientID"), CLIENT),
    "brokerAddr": "127.0.0.1:10",
    "subscription": "*",
    "c": "TBW102",
    "defaultTopic": "TBW102",
    "i": "",
    "properties": "",
}
_NOT_ASKED = {RequestCode.DELETE_EXPIRED_COMMITLOG, RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE}
"""They do what they say, and what they cost is the disk's."""
_PROPERTIES_BYTES = 32_000
AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    server: str
    frame: bytes
    times: int = 1  # so many of these are sent at once


def cases(config: NetConfig | None = None) -> Iterator[Case]:
    """All of it; a few hundred megabytes if somebody keeps them all."""
    config = config or NetConfig()
    for code in RequestCode:
        if code in _NOT_ASKED:
            continue
        server = NAMESERVER if code in _NAMESERVER_CODES else BROKER
        limit = (NAMESERVER_SIZES if server == NAMESERVER else BROKER_SIZES)[code]
        for what, frame in _of(code, limit, config):
            yield Case(f"{code.name} {what}", server, frame)
        yield Case(f"{code.name} many at once", server, framed(header_json(code, _whole(code))), AT_ONCE)


def _of(code: RequestCode, limit: RequestLimit, config: NetConfig) -> Iterator[tuple[str, bytes]]:
    ext = fields_of(code)
    body_max, header_max = getattr(config, limit.body), getattr(config, limit.header)
    usual = b"x" * 100 if "message" in limit.body or limit.body == "frame_bytes_max" else b""
    for what, header in _headers(code, ext, header_max):
        yield f"header: {what}", framed(header, usual, form=int(what.startswith("binary")))
    plain = header_json(code, ext)
    room = min(body_max, config.frame_bytes_max - len(plain) - 8)
    yield "body: the largest", framed(plain, bytes(room))
    if room < body_max - (1 << 16) or body_max < config.frame_bytes_max:
        yield "body: too large", framed(plain, bytes(min(4 * body_max, config.frame_bytes_max - len(plain) - 8)))
    if limit.kind is not None or code is RequestCode.REGISTER_BROKER:
        for what, body in _json_bodies(room, config.loose_json_bytes_max):
            yield f"body: {what}", framed(plain, body)
    for what, header, body in _shaped(code, ext, room):
        yield what, framed(header, body)


def fields_of(code: RequestCode) -> dict[str, str]:
    """The fields of a request as an honest client might fill them in."""
    kind = _SHARED.get(code) or Header.requests.get(code)
    if kind is None:
        return {"topic": TOPIC, "consumerGroup": GROUP}
    complete(kind)
    names = kind.wire_names
    ext = {}
    for field in fields(kind):  # type: ignore[arg-type]
        name, hint = names[field.name], str(field.type)
        if name in _NAMES:
            ext[name] = _NAMES[name]
        elif "bool" in hint:
            ext[name] = "false"
        elif "int" in hint.lower():
            ext[name] = "1"
        elif hint.startswith("str"):
            ext[name] = "x"
        else:
            ext[name] = str(field.default.name) if isinstance(field.default, Enum) else "x"
    return ext


def _whole(code: RequestCode) -> dict[str, str]:
    """The same, and of what is listed by pages all of it."""
    pages = ("topicSeq", "maxTopicNum", "groupSeq", "maxGroupNum", "dataVersion")
    return {name: value for name, value in fields_of(code).items() if name not in pages}


# -- headers -----------------------------------------------------------------------------------------------------------


def header_json(code: int, ext: dict[str, str], **more: Any) -> bytes:
    whole = {"code": int(code), "language": "JAVA", "version": 479, "opaque": 7, "flag": 0, "extFields": ext, **more}
    return json.dumps(whole, separators=(",", ":"), ensure_ascii=False).encode()


def framed(header: bytes, body: bytes = b"", form: int = 0) -> bytes:
    return struct.pack(">ii", 4 + len(header) + len(body), form << 24 | len(header)) + header + body


def _headers(code: RequestCode, ext: dict[str, str], limit: int) -> Iterator[tuple[str, bytes]]:
    plain = header_json(code, ext)
    room = limit - len(plain) - 100
    yield "as usual", plain
    yield "many fields", header_json(code, {**ext, **{f"{n:x}": "" for n in range(room // 10)}})
    yield "a long remark of escapes", plain[:-1] + b',"remark":"' + rb"\u0001" * (room // 6) + b'"}'
    yield "a field again and again", plain.replace(b'"extFields":{', b'"extFields":{' + b'"z":"1",' * (room // 8))
    for name in ext:
        if name in _NAMES and name != "brokerAddr":
            yield f"a long {name}", header_json(code, {**ext, name: "y" * room})
            yield f"a long {name} of parts", header_json(code, {**ext, name: "a||" * (room // 3)})
    loose = plain.replace(b'"', b"'")
    yield "in the dialect", loose[:-1] + b",remark:'" + rb"\x41" * ((8 * 1024 - len(loose) - 20) // 4) + b"'}"
    yield "in the dialect, many fields", loose.replace(b"{", b"{" + b"k:1," * 1500, 1)
    yield "in the dialect, too long", loose[:-1] + b",remark:'" + rb"\x41" * (room // 4) + b"'}"
    yield "digits", plain.replace(b'"version":479', b'"version":' + b"9" * (room // 2))
    pairs = b"".join(struct.pack(">h", 1) + b"k" + struct.pack(">i", 1) + b"v" for _ in range(room // 8))
    known = b"".join(
        struct.pack(">h", len(name)) + name.encode() + struct.pack(">i", len(value)) + value.encode()
        for name, value in ext.items()
    )
    if int(code) < 0x8000:
        pairs = known + pairs[: (room - len(known)) // 8 * 8]
        yield "binary, many fields", _binary(int(code), pairs)


def _binary(code: int, pairs: bytes) -> bytes:
    return struct.pack(">hBhiiii", code, 0, 479, 7, 0, 0, len(pairs)) + pairs


# -- bodies ------------------------------------------------------------------------------------------------------------


def _json_bodies(limit: int, loose: int) -> Iterator[tuple[str, bytes]]:
    yield "empty objects", _filled(b'{"consumerDataSet":[', b"{}", b"]}", limit)
    yield "zeros", _filled(b'{"mqSet":[', b"0", b"]}", limit)
    yield "empty objects, as many as admitted", _filled(b'{"x":[', b"{}", b"]}", limit // 32 * 2)
    yield "nesting", b'{"a":' * (limit // 6) + b"1" + b"}" * (limit // 6)
    yield "lists in lists", b"[" * limit
    yield "a text of escapes", b'{"clientID":"' + rb"\u00e9" * ((limit - 20) // 6) + b'"}'
    yield "digits", b'{"heartbeatFingerprint":' + b"1" * (limit - 30) + b"}"
    yield "numbers of many digits", _filled(b'{"x":[', b"1" * 4000, b"]}", limit)
    yield "one key again and again", _filled(b"{", b'"clientID":"x"', b"}", limit)
    yield "the dialect", _filled(b"{consumerDataSet:[", b"{}", b"]}", loose)
    yield "the dialect, escapes", b"{clientID:'" + rb"\x41" * (loose // 4 - 10) + b"'}"
    yield "the dialect, objects as keys", _filled(b"{x:{", b"{a:1}:2", b"}}", loose)
    yield "the dialect, too long", _filled(b"{consumerDataSet:[", b"{}", b"]}", limit)
    yield "wrong at its end", _filled(b'{"x":[', b'"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"', b"]", limit)


def _filled(before: bytes, item: bytes, behind: bytes, limit: int) -> bytes:
    count = max(1, (limit - len(before) - len(behind)) // (len(item) + 1))
    return before + b",".join([item] * count) + behind


def _listed(before: str, items: Iterator[str], behind: str, limit: int) -> bytes:
    """As many items as fit, in bytes and in JSON values."""
    parts: list[str] = []
    size, values = len(before) + len(behind), 8
    for item in items:
        size += len(item) + 1
        values += item.count(",") + item.count("{") + item.count("[") + 1
        if size > limit or values > limit // 32:
            break
        parts.append(item)
    return (before + ",".join(parts) + behind).encode()


def _numbers() -> Iterator[int]:
    return iter(range(1 << 30))


def _shaped(code: RequestCode, ext: dict[str, str], limit: int) -> Iterator[tuple[str, bytes, bytes]]:
    """What handlers take for an honest request, and as much of it as they take."""
    plain = header_json(code, ext)
    if code is RequestCode.HEART_BEAT:
        yield from ((what, plain, body) for what, body in _heartbeats(limit))
    elif code in (RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ):
        queues = (f'{{"topic":"{TOPIC}","brokerName":"broker-a","queueId":{n}}}' for n in _numbers())
        front = f'{{"consumerGroup":"{GROUP}","clientId":"{CLIENT}","mqSet":['
        yield "many queues", plain, _listed(front, queues, "]}", limit)
    elif code is RequestCode.UPDATE_AND_CREATE_TOPIC_LIST:
        topics = (f'{{"topicName":"hostile_{n}","readQueueNums":1,"writeQueueNums":1,"perm":6}}' for n in _numbers())
        yield "many topics", plain, _listed('{"topicConfigList":[', topics, "]}", limit)
    elif code is RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST:
        groups = (f'{{"groupName":"hostile_g_{n}"}}' for n in _numbers())
        yield "many groups", plain, _listed('{"groupConfigList":[', groups, "]}", limit)
    elif code is RequestCode.REGISTER_BROKER:
        topics = (f'"t{n}":{{"topicName":"t{n}","readQueueNums":1,"writeQueueNums":1,"perm":6}}' for n in _numbers())
        front = '{"topicConfigSerializeWrapper":{"topicConfigTable":{'
        named = header_json(
            code, {**ext, "brokerName": "b", "clusterName": "c", "bodyCrc32": "0", "heartbeatTimeoutMillis": "60000"}
        )
        yield "many topics", named, _listed(front, topics, "}}}", limit)
    elif code in (RequestCode.UPDATE_BROKER_CONFIG, RequestCode.UPDATE_NAMESRV_CONFIG):
        yield "many lines", plain, b"".join(b"a%x=\\u0041\\u0042\n" % n for n in range(limit // 24))
        yield "one long line", plain, b"brokerName=" + b"\\u0041" * ((limit - 20) // 6)
    elif code in (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE):
        yield from _pulls(code, ext)
    elif code in (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE):
        yield from _sends(code, ext, min(limit, 4_000_000))
    elif code is RequestCode.CHECK_CLIENT_CONFIG:
        wanted = {"topic": TOPIC, "subString": sql(16_000, 1), "expressionType": "SQL92"}
        body = json.dumps({"clientId": CLIENT, "group": GROUP, "subscriptionData": wanted}).encode()
        yield "a long condition", plain, body


def _heartbeats(limit: int) -> Iterator[tuple[str, bytes]]:
    front = f'{{"clientID":"{CLIENT}","consumerDataSet":['
    mode = '"consumeType":"CONSUME_PASSIVELY","messageModel":"CLUSTERING"'

    def consumers(subscriptions: str) -> Iterator[str]:
        return (f'{{"groupName":"hostile_h_{n}",{mode},"subscriptionDataSet":[{subscriptions}]}}' for n in _numbers())

    yield (
        "many groups",
        _listed(front, (each for each, _ in zip(consumers(""), range(1000), strict=False)), "]}", limit),
    )
    topics = (f'{{"topic":"t{n}","subString":"a||b","subVersion":1}}' for n in _numbers())
    one = f'{{"groupName":"{GROUP}",{mode},"subscriptionDataSet":['
    yield "many topics of one group", _listed(front + one, topics, "]}]}", limit)
    topics = (f'{{"topic":"t{n}","subString":"a||c","subVersion":9}}' for n in _numbers())
    yield "other tags of many topics", _listed(front + one, topics, "]}]}", limit)
    again = (f'{{"groupName":"{GROUP}",{mode}}}' for _ in _numbers())
    yield "one group again and again", _listed(front, again, "]}", limit)
    tags = "||".join(f"{n:x}" for n in range((limit - 400) // 8))
    many = f'{{"topic":"{TOPIC}","subString":"{tags}","subVersion":2}}'
    yield "many tags", (front + one + many + "]}]}").encode()
    many = f'{{"topic":"{TOPIC}","subString":"{tags[:60_000]}","subVersion":3}}'
    yield "as many tags as one may want", (front + one + many + "]}]}").encode()
    producers = (f'{{"groupName":"p{n}"}}' for n in range(1000))
    yield "many producers", _listed(f'{{"clientID":"{CLIENT}","producerDataSet":[', producers, "]}", limit)
    wanted = (
        f'{{"topic":"q{n}","subString":"{sql(15_000, n)}","expressionType":"SQL92","subVersion":1}}' for n in _numbers()
    )
    yield "many conditions", _listed(front + one, wanted, "]}]}", limit)


def sql(length: int, number: int) -> str:
    """A condition of about so many characters, unlike others with another number."""
    parts = [f"a{number} = {number}"]
    while sum(map(len, parts)) + 4 * len(parts) < length:
        parts.append(f"b{len(parts)} = {len(parts)}")
    return " OR ".join(parts)


def _pulls(code: RequestCode, ext: dict[str, str]) -> Iterator[tuple[str, bytes, bytes]]:
    asked = {**ext, "sysFlag": "4", "queueId": "0", "queueOffset": "0", "maxMsgNums": "32", "suspendTimeoutMillis": "0"}
    for number in range(20):
        tags = "||".join(f"{number:x}{n:x}" for n in range(8_000))
        tagged = {**asked, "subscription": tags, "expressionType": "TAG"}
        yield f"many tags {number}", header_json(code, tagged), b""
        conditioned = {**asked, "subscription": sql(14_000, number), "expressionType": "SQL92"}
        yield f"a long condition {number}", header_json(code, conditioned), b""
    yield (
        "a wrong condition",
        header_json(code, {**asked, "subscription": "(" * 16_000, "expressionType": "SQL92"}),
        b"",
    )


def _sends(code: RequestCode, ext: dict[str, str], limit: int) -> Iterator[tuple[str, bytes, bytes]]:
    asked = {**ext, "e": "0", "f": "0", "d": "4", "k": "false", "j": "0", "l": "0"}
    pairs = "".join(f"{n:x}\x01v\x02" for n in range(_PROPERTIES_BYTES // 7))
    if code is RequestCode.SEND_MESSAGE_V2:
        for what, more in (
            ("", ""),
            (", delayed", "DELAY\x011\x02"),
            (", odd", "INNER_NUM\x01\x02"),
            (", half", "TRAN_MSG\x01true\x02"),
        ):
            flag = "4" if "half" in what else "0"
            header = header_json(code, {**asked, "f": flag, "i": more + pairs})
            yield f"many properties{what}", header, b"x" * 100
        yield "too many properties", header_json(code, {**asked, "i": "a\x01b\x02" * 30_000}), b"x" * 100
        return
    batch = {**asked, "m": "true"}
    for what, topic, member in (
        ("known topic", TOPIC, b""),
        ("new topic", "hostile_fresh", b""),
        ("odd property", TOPIC, b"__CRC32#\x01x\x02"),
        ("own property", TOPIC, b"WAIT\x01true\x02"),
    ):
        one = struct.pack(">iiiii", 23 + len(member), 0, 0, 0, 1) + b"x" + struct.pack(">h", len(member)) + member
        yield f"many members, {what}", header_json(code, {**batch, "b": topic}), one * (limit // len(one))


__all__ = ["BROKER", "NAMESERVER", "Case", "cases", "fields_of", "framed", "header_json", "headers_admin", "sql"]
