"""Frames: the unit of data on a connection.

    int32 total     bytes that follow this field
    int32 mark      top byte: form of the header (0 JSON, 1 binary); low 24 bits: its length
    bytes header    code, language, version, opaque, flag, remark, ext map (see reference/wire.md, sections 1 and 2)
    bytes body      the rest, opaque

One `Frame` represents both forms; `binary` says which one it arrived in, and a reply uses the form of its request.
"""

from __future__ import annotations

import itertools
import re
import struct
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

import msgspec

from kappamq.errors import FrameTooLarge, ProtocolError
from kappamq.protocol import fastjson
from kappamq.protocol.codes import FLAG_ONEWAY, FLAG_RESPONSE, VERSION, Language, ResponseCode
from kappamq.protocol.headers.header import Header

FRAME_BYTES_MAX: Final = 16 << 20
"""The longest frame that RocketMQ's own peers accept, length field included."""

FIELDS_MAX: Final = 1024
"""No request of the protocol has fifty fields, and each takes a microsecond to decode."""

JSON: Final = 0
BINARY: Final = 1

_PREFIX = struct.Struct(">ii")
_LENGTH = struct.Struct(">i")
_SHORT = struct.Struct(">h")
_BINARY_HEAD = struct.Struct(">hBhii")  # code, language, version, opaque, flag
_HEADER_BYTES_LIMIT = (1 << 24) - 1  # the length has 24 bits
_CODE_BINARY_MAX = 0x7FFF
_ROOM_BYTES_MIN = 64 << 10  # of a decoder's buffer
_ROOM_BYTES_KEPT = 2 << 20  # a larger buffer is released once its content has been decoded

_LANGUAGE_NAMES = {member.value: member.name for member in Language}
_LANGUAGE_CODES = {member.name: member.value for member in Language}

_Int32 = Annotated[int, msgspec.Meta(ge=-(1 << 31), le=(1 << 31) - 1)]


class _JsonHeader(msgspec.Struct, omit_defaults=True):
    # In the order in which Java writes them, for readability only.
    code: _Int32
    extFields: dict[str, str] | None = None
    flag: _Int32 | None = None
    language: str | None = None
    opaque: _Int32 | None = None
    remark: str | None = None
    serializeTypeCurrentRPC: str | None = None
    version: _Int32 | None = None


_decode_json = msgspec.json.Decoder(_JsonHeader).decode
_encode_json = msgspec.json.Encoder().encode


class TooManyFields(ProtocolError):
    """A binary header that would take long to decode."""


@dataclass(slots=True)
class Frame:
    """One request or response. `code` is a request code, or a response code if FLAG_RESPONSE is set in `flag`."""

    code: int
    opaque: int = 0
    flag: int = 0
    remark: str | None = None
    ext: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    language: int = Language.PYTHON
    version: int = VERSION
    binary: bool = False
    # the decoded body, if the worker thread has decoded it already
    parsed: Any = field(default=None, compare=False, repr=False)

    @property
    def is_response(self) -> bool:
        return bool(self.flag & FLAG_RESPONSE)

    @property
    def is_oneway(self) -> bool:
        return bool(self.flag & FLAG_ONEWAY)

    def encode(self) -> bytes:
        """Return the whole frame, length field included. Raises ProtocolError if a part does not fit its field."""
        # Codes of the POP family have more than 16 bits and can only be sent as JSON, whatever form is wanted.
        form = BINARY if self.binary and -_CODE_BINARY_MAX <= self.code <= _CODE_BINARY_MAX else JSON
        try:
            header = self._binary_header() if form == BINARY else self._json_header()
        except (struct.error, UnicodeEncodeError, msgspec.MsgspecError, TypeError) as error:
            raise ProtocolError(f"the header of code {self.code} cannot be encoded: {error}") from error
        if len(header) > _HEADER_BYTES_LIMIT:
            raise ProtocolError(f"a header of {len(header)} bytes does not fit its length field of 24 bits")
        return _PREFIX.pack(4 + len(header) + len(self.body), form << 24 | len(header)) + header + self.body

    def _json_header(self) -> bytes:
        return _encode_json(
            _JsonHeader(
                code=int(self.code),
                extFields=self.ext or None,
                flag=self.flag,
                language=_LANGUAGE_NAMES.get(self.language, "OTHER"),
                opaque=self.opaque,
                remark=self.remark,
                serializeTypeCurrentRPC="JSON",
                version=self.version,
            )
        )

    def _binary_header(self) -> bytes:
        remark = (self.remark or "").encode()
        pairs = bytearray()
        for name, value in self.ext.items():
            name_bytes, value_bytes = name.encode(), value.encode()
            pairs += _SHORT.pack(len(name_bytes)) + name_bytes + _LENGTH.pack(len(value_bytes)) + value_bytes
        return b"".join(
            (
                _BINARY_HEAD.pack(self.code, self.language, self.version, self.opaque, self.flag),
                _LENGTH.pack(len(remark)),
                remark,
                _LENGTH.pack(len(pairs)),
                pairs,
            )
        )


_opaques = itertools.count(1)


def next_opaque() -> int:
    """Return a correlation id that is unique in this process: 31 bits, then starting over."""
    return next(_opaques) & 0x7FFFFFFF


def request(
    header: Header, body: bytes = b"", oneway: bool = False, opaque: int | None = None, code: int | None = None
) -> Frame:
    """Return the request frame for `header`.

    `code` is needed only where several requests share a header (a batch is sent with the header of a single send).
    """
    chosen = header.code if code is None else code
    if chosen is None:
        raise ProtocolError(f"{type(header).__name__} is not a request header; pass the code to send it with")
    return Frame(
        code=int(chosen),
        opaque=next_opaque() if opaque is None else opaque,
        flag=FLAG_ONEWAY if oneway else 0,
        ext=header.encode(),
        body=body,
    )


def reply(
    request: Frame, code: int = 0, remark: str | None = None, header: Header | None = None, body: bytes = b""
) -> Frame:
    """Return the answer to `request`: same correlation id, same form of header."""
    return Frame(
        code=int(code),
        opaque=request.opaque,
        flag=FLAG_RESPONSE,
        remark=remark,
        ext=header.encode() if header is not None else {},
        body=body,
        binary=request.binary,
    )


def decode(data: bytes | bytearray | memoryview, header_bytes_max: int = _HEADER_BYTES_LIMIT) -> Frame:
    """Decode one complete frame, length field included; its body is copied out of `data`.

    Raises ProtocolError: the peer does not speak this protocol, and the connection can no longer be used.
    """
    view = memoryview(data)
    frame, header_end = decode_header(view, header_bytes_max)
    frame.body = bytes(view[header_end:])
    return frame


def decode_header(
    view: memoryview, header_bytes_max: int = _HEADER_BYTES_LIMIT, *, loose_bytes_max: int | None = None
) -> tuple[Frame, int]:
    """Decode the header of one complete frame, and return where the body begins. Raises ProtocolError, as `decode` does."""
    if len(view) < _PREFIX.size:
        raise ProtocolError(f"a frame must have at least {_PREFIX.size} bytes, got {len(view)}")
    total, mark = _PREFIX.unpack_from(view)
    if total != len(view) - 4:
        raise ProtocolError(f"the frame announces {total} bytes after its length, but has {len(view) - 4}")
    header_end = _PREFIX.size + _check_mark(total, mark, header_bytes_max)
    header = bytes(view[_PREFIX.size : header_end])
    return _parse_binary(header) if mark >> 24 == BINARY else _parse_json(header, loose_bytes_max), header_end


_OPAQUE = re.compile(rb"[\"']?opaque[\"']?\s*:\s*[\"']?(\d{1,10})\b")


def refusal_of_unread(view: memoryview, why: str) -> Frame | None:
    """Return the answer to a request whose header was not decoded; None if it has no recognisable correlation id."""
    mark = _PREFIX.unpack_from(view)[1]
    header_bytes = mark & 0xFFFFFF
    if mark >> 24 == BINARY:
        if header_bytes < _BINARY_HEAD.size:
            return None
        opaque = _BINARY_HEAD.unpack_from(view, _PREFIX.size)[3]
    else:
        found = _OPAQUE.search(view, _PREFIX.size, _PREFIX.size + header_bytes)
        if found is None or int(found.group(1)) >= 1 << 31:
            return None
        opaque = int(found.group(1))
    binary = mark >> 24 == BINARY
    return Frame(code=ResponseCode.SYSTEM_ERROR, opaque=opaque, flag=FLAG_RESPONSE, remark=why, binary=binary)


class FrameDecoder:
    """Turns bytes into frames. Uses no socket and no clock: a file, a test or the simulator can feed it.

    Call `feed` with bytes; or let a socket write into `room` directly and call `received`: then only the bodies of frames are
    copied. The buffer grows with the bytes received, never with the length that the peer announces."""

    def __init__(self, max_bytes: int = FRAME_BYTES_MAX, header_bytes_max: int = _HEADER_BYTES_LIMIT) -> None:
        self._frame_bytes_max = max_bytes
        self._header_bytes_max = header_bytes_max
        self._buffer = memoryview(bytearray(_ROOM_BYTES_MIN))
        self._start = self._end = 0  # of what was received and is not decoded yet

    @property
    def buffered(self) -> int:
        """How many bytes of an incomplete frame are buffered."""
        return self._end - self._start

    def feed(self, data: bytes | bytearray | memoryview) -> list[Frame]:
        """Return each frame that `data` completes; keep the rest for the next call.

        Raises FrameTooLarge at once: the length is the peer's claim, and nothing is allocated for it.
        Raises ProtocolError for anything else that is not a frame. After either, the connection must be closed.
        """
        if len(data) > len(self._buffer) - self._end:
            self._move(len(data))
        self._buffer[self._end : self._end + len(data)] = data
        return self.received(len(data))

    def room(self) -> memoryview:
        """Where to write the next bytes: the same place until `received` says how many they were. Never empty."""
        if len(self._buffer) - self._end < _ROOM_BYTES_MIN // 2:
            self._move(max(_ROOM_BYTES_MIN, 3 * self.buffered))  # large enough that moving stays rare
        return self._buffer[self._end :]

    def received(self, count: int) -> list[Frame]:
        """Process `count` bytes that were written to `room`. Returns and raises what `feed` does."""
        self._end += count
        frames: list[Frame] = []
        view = self._buffer[: self._end]
        while (end := self._frame_end(view, self._start)) is not None:
            frames.append(decode(view[self._start : end], self._header_bytes_max))
            self._start = end
        if self._start == self._end:
            self._start = self._end = 0
            if len(self._buffer) > _ROOM_BYTES_KEPT:
                self._buffer = memoryview(bytearray(_ROOM_BYTES_MIN))
        return frames

    def _move(self, room: int) -> None:
        """Move the buffered bytes to the front of a buffer with this much room after them."""
        held = self.buffered
        waiting = self._buffer[self._start : self._end]
        if held + room > len(self._buffer):
            self._buffer = memoryview(bytearray(held + room))
        self._buffer[:held] = waiting
        self._start, self._end = 0, held

    def _frame_end(self, view: memoryview, start: int) -> int | None:
        held = len(view) - start
        if held < _LENGTH.size:
            return None
        (total,) = _LENGTH.unpack_from(view, start)
        if total < 4:
            raise ProtocolError(f"a frame of {total} bytes has no room for its header")
        if total + 4 > self._frame_bytes_max:
            raise FrameTooLarge(
                f"the peer announces a frame of {total + 4} bytes, the limit is {self._frame_bytes_max}"
            )
        if held >= _PREFIX.size:
            _check_mark(total, _PREFIX.unpack_from(view, start)[1], self._header_bytes_max)
        return start + 4 + total if held >= 4 + total else None


def _check_mark(total: int, mark: int, header_bytes_max: int) -> int:
    """Return the header's length if form and length are plausible."""
    form, length = mark >> 24, mark & 0xFFFFFF
    if form not in (JSON, BINARY):
        raise ProtocolError(f"unknown form of header {form & 0xFF}: expected 0 (JSON) or 1 (binary)")
    if length > total - 4:
        raise ProtocolError(f"a header of {length} bytes does not fit into a frame of {total} bytes")
    if length > header_bytes_max:
        raise FrameTooLarge(f"the peer announces a header of {length} bytes, the limit is {header_bytes_max}")
    return length


def _parse_json(header: bytes, loose_bytes_max: int | None) -> Frame:
    try:
        parsed = _decode_json(header)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _parse_lenient(header, loose_bytes_max)
    language = parsed.language
    return Frame(
        code=parsed.code,
        opaque=parsed.opaque or 0,
        flag=parsed.flag or 0,
        remark=parsed.remark,
        ext=parsed.extFields or {},
        language=Language.OTHER if language is None else _LANGUAGE_CODES.get(language, Language.OTHER),
        version=parsed.version or 0,
    )


def _parse_lenient(header: bytes, loose_bytes_max: int | None) -> Frame:
    """Decode a header as fastjson would: numbers as strings, strings as numbers, loose syntax."""
    parsed = fastjson.loads(header, loose_bytes_max=loose_bytes_max)
    if not isinstance(parsed, dict):
        raise ProtocolError("the header is not a JSON object")
    ext = parsed.get("extFields")
    if ext is not None and not isinstance(ext, dict):
        raise ProtocolError("'extFields' of the header is not a JSON object")
    remark = parsed.get("remark")
    language = parsed.get("language")
    if isinstance(language, str):
        language = _LANGUAGE_CODES.get(language, Language.OTHER)
    elif not isinstance(language, int) or language not in _LANGUAGE_NAMES:
        language = Language.OTHER
    if parsed.get("code") is None:
        raise ProtocolError("the header has no 'code'")
    return Frame(
        code=_number(parsed, "code"),
        opaque=_number(parsed, "opaque"),
        flag=_number(parsed, "flag"),
        remark=None if remark is None else _text(remark),
        ext={_text(name): _text(value) for name, value in (ext or {}).items() if value is not None},
        language=int(language),
        version=_number(parsed, "version"),
    )


def _number(parsed: dict[Any, Any], name: str) -> int:
    value = parsed.get(name)
    if value is None:
        return 0
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        raise ProtocolError(f"'{name}' of the header is not a number: {_text(value)[:40]!r}") from None
    if not -(1 << 31) <= number < 1 << 31:
        raise ProtocolError(f"'{name}' of the header does not fit into 32 bits")
    return number


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    return fastjson.dumps(value).decode()


def _parse_binary(header: bytes) -> Frame:
    try:
        code, language, version, opaque, flag = _BINARY_HEAD.unpack_from(header)
        remark, position = _take(header, _BINARY_HEAD.size)
        ext_bytes, ext_end = _take(header, position)
        ext: dict[str, str] = {}
        position = count = 0
        while position < len(ext_bytes):
            count += 1
            if count > FIELDS_MAX:
                raise TooManyFields(f"the binary header has more than {FIELDS_MAX} fields")
            name, position = _take(ext_bytes, position, _SHORT)
            value, position = _take(ext_bytes, position)
            if name and value:  # Java reads an empty string as null
                ext[name.decode()] = value.decode()
        if ext_end != len(header):
            raise ProtocolError(f"{len(header) - ext_end} bytes are left over after the binary header")
        text = remark.decode() if remark else None
    except struct.error:
        raise ProtocolError(f"the binary header of {len(header)} bytes ends too early") from None
    except UnicodeDecodeError as error:
        raise ProtocolError(f"the binary header contains text that is not UTF-8: {error}") from None
    return Frame(
        code=code,
        opaque=opaque,
        flag=flag,
        remark=text,
        ext=ext,
        language=language if language in _LANGUAGE_NAMES else Language.OTHER,
        version=version,
        binary=True,
    )


def _take(data: bytes, position: int, length: struct.Struct = _LENGTH) -> tuple[bytes, int]:
    """Return the bytes after a length field at `position`, and where they end."""
    (count,) = length.unpack_from(data, position)
    start = position + length.size
    if not 0 <= count <= len(data) - start:
        raise ProtocolError(f"the binary header announces {count} bytes, but {len(data) - start} follow")
    return data[start : start + count], start + count
