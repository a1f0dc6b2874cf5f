"""The kernel's replies: the response frames of a send, of the end of a transaction and of a pull, in both wire forms."""

from __future__ import annotations

import json
import struct
from typing import Final

VERSION: Final = 479
LANGUAGE: Final = 3  # Python
_BINARY_HEAD: Final = struct.Struct(">hBhii")
_LENGTHS: Final = struct.Struct(">iI")


class Replies:
    def __init__(self, store_host: bytes, region: str, trace: str) -> None:
        self._host = store_host.hex().upper()
        self._region, self._trace = region, trace
        quoted = json.dumps(region, ensure_ascii=False).replace("%", "%%")
        # Filled with ids, queue id, queue offset, an optional part (transaction id), opaque.
        self._sent = (
            '{"code":0,"extFields":{"msgId":"%b","queueId":"%d","queueOffset":"%d",%b"MSG_REGION":'
            f'{quoted},"TRACE_ON":"{trace}"}},"flag":1,"language":"PYTHON","opaque":%d,'
            f'"serializeTypeCurrentRPC":"JSON","version":{VERSION}}}'
        ).encode()
        self._id = f"{self._host}%016X".encode()

    def sent(
        self, opaque: int, binary: bool, log_offsets: list[int], queue_id: int, queue_offset: int, unique_key: str,
        recall_handle: str = "",
    ) -> bytes:  # fmt: skip
        if len(log_offsets) == 1:
            ids = self._id % log_offsets[0]
        else:
            ids = b",".join([self._id % log_offset for log_offset in log_offsets])
        if binary:
            ext = [("msgId", ids.decode()), ("queueId", str(queue_id)), ("queueOffset", str(queue_offset))]
            if unique_key:
                ext.append(("transactionId", unique_key))
            if recall_handle:
                ext.append(("recallHandle", recall_handle))
            ext += (("MSG_REGION", self._region), ("TRACE_ON", self._trace))
            return _binary_reply(opaque, b"", ext, b"")
        more = b'"transactionId":"%b",' % unique_key.encode() if unique_key else b""
        if recall_handle:
            more += b'"recallHandle":"%b",' % recall_handle.encode()
        text = self._sent % (ids, queue_id, queue_offset, more, opaque)
        return _LENGTHS.pack(4 + len(text), len(text)) + text

    def ended(self, opaque: int, binary: bool) -> bytes:
        if binary:
            return _binary_reply(opaque, b"", [], b"")
        text = (
            f'{{"code":0,"flag":1,"language":"PYTHON","opaque":{opaque},"serializeTypeCurrentRPC":"JSON",'
            f'"version":{VERSION}}}'
        ).encode()
        return _LENGTHS.pack(4 + len(text), len(text)) + text

    def pulled(
        self, opaque: int, binary: bool, next_offset: int, low: int, end: int, body: bytes, suggested: int = 0
    ) -> bytes:
        if binary:
            ext = [
                ("suggestWhichBrokerId", str(suggested)), ("nextBeginOffset", str(next_offset)), ("minOffset", str(low)),
                ("maxOffset", str(end)),
            ]  # fmt: skip
            return _binary_reply(opaque, b"FOUND", ext, body)
        text = (
            f'{{"code":0,"extFields":{{"suggestWhichBrokerId":"{suggested}","nextBeginOffset":"{next_offset}","minOffset":"{low}",'
            f'"maxOffset":"{end}"}},"flag":1,"language":"PYTHON","opaque":{opaque},"remark":"FOUND",'
            f'"serializeTypeCurrentRPC":"JSON","version":{VERSION}}}'
        ).encode()
        return b"".join((_LENGTHS.pack(4 + len(text) + len(body), len(text)), text, body))


def _binary_reply(opaque: int, remark: bytes, ext: list[tuple[str, str]], body: bytes) -> bytes:
    parts: list[bytes] = []
    for name, value in ext:
        value_bytes = value.encode()
        parts += (len(name).to_bytes(2, "big"), name.encode(), len(value_bytes).to_bytes(4, "big"), value_bytes)
    fields = b"".join(parts)
    header = b"".join(
        (
            _BINARY_HEAD.pack(0, LANGUAGE, VERSION, opaque, 1), len(remark).to_bytes(4, "big"), remark,
            len(fields).to_bytes(4, "big"), fields,
        )
    )  # fmt: skip
    return b"".join((_LENGTHS.pack(4 + len(header) + len(body), 1 << 24 | len(header)), header, body))
