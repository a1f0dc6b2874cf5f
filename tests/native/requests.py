"""Requests as a Java client words them, for tests that know what they want."""

from __future__ import annotations

import json
import struct
from typing import Any

from tests.native.frames import LONG

KEY = "7F0000011A2B18B4AAC2000000000012"


def properties(**pairs: str) -> str:
    return "".join(f"{name}\x01{value}\x02" for name, value in {"UNIQ_KEY": KEY, **pairs}.items())


def send_fields(**changed: str | None) -> dict[str, str]:
    fields = {
        "a": "producers", "b": "tea", "c": "TBW102", "d": "4", "e": "1", "f": "0", "g": "1700000000123", "h": "7",
        "i": properties(TAGS="TagA", KEYS="k1 k2"), "j": "0", "k": "false", "m": "false", "n": "broker-a",
    }  # fmt: skip
    merged: dict[str, str | None] = {**fields, **changed}
    return {name: value for name, value in merged.items() if value is not None}


def pull_fields(**changed: str | None) -> dict[str, str]:
    fields = {
        "consumerGroup": "shop", "topic": "tea", "queueId": "1", "queueOffset": "0", "maxMsgNums": "32", "sysFlag": "3",
        "commitOffset": "5", "suspendTimeoutMillis": "15000", "subVersion": "100", "subscription": "*", "expressionType": "TAG",
    }  # fmt: skip
    merged: dict[str, str | None] = {**fields, **changed}
    return {name: value for name, value in merged.items() if value is not None}


def header(code: int, fields: dict[str, str], **changed: Any) -> bytes:
    top = {
        "code": code, "extFields": fields, "flag": 0, "language": "JAVA", "opaque": 9, "serializeTypeCurrentRPC": "JSON",
        "version": 479, **changed,
    }  # fmt: skip
    return json.dumps(top, separators=(",", ":"), ensure_ascii=False).encode()


def binary_header(code: int, fields: dict[str, str], opaque: int = 9, flag: int = 0) -> bytes:
    ext = b"".join(
        struct.pack(">h", len(name.encode())) + name.encode() + struct.pack(">i", len(value.encode())) + value.encode()
        for name, value in fields.items()
    )
    return struct.pack(">hBhiiii", code, 0, 479, opaque, flag, 0, len(ext)) + ext


def framed(head: bytes, body: bytes = b"", binary: bool = False) -> bytes:
    return struct.pack(">iI", 4 + len(head) + len(body), len(head) | binary << 24) + head + body


def send(
    body: bytes = b"hello",
    *,
    code: int = 310,
    binary: bool = False,
    flag: int = 0,
    opaque: int = 9,
    **changed: str | None,
) -> bytes:
    fields = send_fields(**changed)
    if code == 10:
        fields = {LONG[name]: value for name, value in fields.items()}
    head = binary_header(code, fields, opaque, flag) if binary else header(code, fields, opaque=opaque, flag=flag)
    return framed(head, body, binary)


def pull(
    *, code: int = 11, binary: bool = False, flag: int = 0, opaque: int = 9, body: bytes = b"", **changed: str | None
) -> bytes:
    fields = pull_fields(**changed)
    head = binary_header(code, fields, opaque, flag) if binary else header(code, fields, opaque=opaque, flag=flag)
    return framed(head, body, binary)


def member(body: bytes, text: bytes = b"", flag: int = 0) -> bytes:
    return (
        struct.pack(">iiiii", 22 + len(body) + len(text), 0, 0, flag, len(body))
        + body
        + struct.pack(">H", len(text))
        + text
    )


def answers(data: bytes) -> list[tuple[dict[str, Any], bytes]]:
    """(header, body) of each response frame, whatever its form."""
    found = []
    while data:
        total, mark = struct.unpack_from(">iI", data)
        head, body = data[8 : 8 + (mark & 0xFFFFFF)], data[8 + (mark & 0xFFFFFF) : 4 + total]
        found.append((read_binary(head) if mark >> 24 else json.loads(head), body))
        data = data[4 + total :]
    return found


def read_binary(head: bytes) -> dict[str, Any]:
    code, language, version, opaque, flag, remark_bytes = struct.unpack_from(">hBhiii", head)
    at = 17 + remark_bytes
    result: dict[str, Any] = {"code": code, "language": language, "version": version, "opaque": opaque, "flag": flag}
    if remark_bytes:
        result["remark"] = head[17:at].decode()
    ext: dict[str, str] = {}
    (ext_bytes,) = struct.unpack_from(">i", head, at)
    at += 4
    assert at + ext_bytes == len(head)
    while at < len(head):
        (size,) = struct.unpack_from(">h", head, at)
        name = head[at + 2 : at + 2 + size].decode()
        at += 2 + size
        (size,) = struct.unpack_from(">i", head, at)
        ext[name] = head[at + 4 : at + 4 + size].decode()
        at += 4 + size
    result["extFields"] = ext
    return result
