"""Frames between two of our brokers, on the port for copies.

The first eight bytes of a connection identify the peer: a log offset (never negative) is the first report of an Apache slave; a
negative number is one of our brokers, and gives its version of this protocol. After that both sides send frames:

    length  u32   of the rest of the frame
    crc     u32   CRC-32 of type and content; for a piece of the log of its head only, which has a checksum of the bytes that follow
    type    u8
    content

A length is checked before anything is buffered for it.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import Any, Final, NamedTuple, Self

from kappamq.errors import KappaError

VERSION: Final = 3
OPENING: Final = struct.Struct(">q")
_HEAD: Final = struct.Struct(">IIB")
_LENGTH_AND_CRC: Final = struct.Struct(">II")
_BEHIND_LENGTH: Final = _HEAD.size - 4
_LOG_HEAD: Final = struct.Struct(">qqqqqqI")
_REPORT: Final = struct.Struct(">qqqqq")
_REPORT_FRAME_BYTES: Final = _HEAD.size + _REPORT.size
PIECE_BYTES_MAX: Final = 1 << 20
"""The most bytes of the log in one frame."""
_FRAME_BYTES_MAX: Final = PIECE_BYTES_MAX + (64 << 20)
"""A batch is sent as a whole, even if it is longer than a piece."""
_TEXT_BYTES_MAX: Final = 256 << 10  # of a greeting

Checksum = Callable[[bytes | memoryview], int]


class BadStream(KappaError):
    """The peer sent something that is not part of this protocol; the connection cannot go on."""


class Kind(IntEnum):
    HELLO = 1  # follower: who I am, what I hold
    CHALLENGE = 2  # leader: show that you know the secret
    PROOF = 3  # follower: the answer to that
    WELCOME = 4  # leader: accepted, and what comes next
    REFUSED = 5  # leader: refused, with the reason; the connection ends
    LOG = 6  # leader: bytes of the log, and its watermarks
    REPORT = 7  # follower: how much of the log it has
    SNAPSHOT = 8  # leader: a part of a snapshot file
    MEMBER = 9  # a member of a Raft group, instead of HELLO
    RAFT = 10  # what members of a Raft group say to each other
    ASK = 11  # a follower that has not opened its store yet, instead of HELLO: can it go on with what it has?
    SEED = 12  # leader of a Raft group: your log cannot be continued, restart and ASK
    FETCH = 13  # a copy whose log is damaged, instead of HELLO: asks for these bytes of your log
    BYTES = 14  # the answer to FETCH: bytes of the log, and their offset


# Each turn of a leader creates one of each: a tuple costs a third of what a frozen dataclass does.
class LogPiece(NamedTuple):
    """Bytes of the log from `offset` on, possibly none, and the leader's watermarks."""

    term: int
    offset: int
    visible: int  # the leader shows its log up to here
    confirmed: int  # bytes below this cannot be lost
    log_min: int  # the leader's log begins here
    end: int  # of the leader's log
    data: bytes | memoryview = b""

    def head(self, checksum: Checksum) -> bytes:
        return _LOG_HEAD.pack(*self[:-1], checksum(self.data))

    @classmethod
    def decode(cls, content: bytes, checksum: Checksum) -> Self:
        if len(content) < _LOG_HEAD.size:
            raise BadStream(
                f"a piece of the log has a head of {_LOG_HEAD.size} bytes; this one has {len(content)} bytes"
            )
        term, offset, visible, confirmed, log_min, end, crc = _LOG_HEAD.unpack_from(content)
        data = memoryview(content)[_LOG_HEAD.size :]
        if checksum(data) != crc:
            raise BadStream(f"the bytes of the log from {offset} on arrive damaged: their checksum does not match")
        if (
            min(term, offset, visible, confirmed, log_min) < 0
            or offset + len(data) > end
            or max(visible, confirmed) > end
            or log_min > offset
        ):
            raise BadStream(
                f"a piece of the log that cannot be: term {term}, bytes {offset} to {offset + len(data)}, visible to {visible}, "
                f"confirmed to {confirmed}, of a log from {log_min} to {end}"
            )
        return cls(term, offset, visible, confirmed, log_min, end, data)


class Report(NamedTuple):
    """How much of the log a follower has; `received` includes bytes that wait for the end of their record or batch. `generation` counts how
    often it has cut its log: a report from before a cut does not count."""

    term: int
    generation: int
    written: int
    flushed: int
    received: int = 0  # a value below `written` counts as `written`

    def encode(self) -> bytes:
        return _REPORT.pack(*self)

    @classmethod
    def decode(cls, content: bytes) -> Self:
        if len(content) != _REPORT.size:
            raise BadStream(f"a report has {_REPORT.size} bytes; this one has {len(content)}")
        report = cls(*_REPORT.unpack(content))
        if not 0 <= report.flushed <= report.written or report.received < 0:
            raise BadStream(f"a report that cannot be: written to {report.written}, flushed to {report.flushed}")
        return report


def frame(kind: Kind, content: bytes, checksum: Checksum) -> bytes:
    body = bytes((kind,)) + content
    return _LENGTH_AND_CRC.pack(len(body) + 4, checksum(body)) + body


def log_frame(piece: LogPiece, checksum: Checksum) -> tuple[bytes, bytes | memoryview]:
    """The frame of a piece of the log, in two parts, so that the bytes of the log are not copied."""
    head = bytes((Kind.LOG,)) + piece.head(checksum)
    return _LENGTH_AND_CRC.pack(len(head) + len(piece.data) + 4, checksum(head)) + head, piece.data


def text_frame(kind: Kind, values: dict[str, Any], checksum: Checksum) -> bytes:
    return frame(kind, content_of(values), checksum)


def content_of(values: dict[str, Any]) -> bytes:
    return json.dumps(values, separators=(",", ":")).encode()


def values_of(content: bytes) -> dict[str, Any]:
    """Parse the values of a greeting. Raises BadStream."""
    try:
        values = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise BadStream(f"a greeting that is no JSON text: {error}") from None
    if not isinstance(values, dict):
        raise BadStream("a greeting that is no JSON object")
    return values


class Frames:
    """Bytes in, frames out. An incomplete frame is kept; a length above the limit is refused before anything is buffered for it."""

    def __init__(self, checksum: Checksum) -> None:
        self._checksum = checksum
        self._buffer = bytearray()
        self._limit = _TEXT_BYTES_MAX

    def trust(self) -> None:
        """The peer has proved its identity: from now on its frames may be larger than greetings."""
        self._limit = _FRAME_BYTES_MAX

    @property
    def is_within(self) -> bool:
        """Whether a frame has begun that is not complete yet."""
        return bool(self._buffer)

    def report(self, data: bytes) -> Report | None:
        """Return the report if `data` is exactly one; None if it is anything else, then call `feed`. Raises BadStream."""
        if len(data) != _REPORT_FRAME_BYTES or data[8] != Kind.REPORT or self._buffer:
            return None
        length, crc = _LENGTH_AND_CRC.unpack_from(data)
        body = data[8:]
        if length != _REPORT_FRAME_BYTES - 4 or self._checksum(body) != crc:
            return None
        return Report.decode(body[1:])

    def feed(self, data: bytes | bytearray | memoryview) -> Iterator[tuple[Kind, bytes]]:
        """Yield each frame that `data` completes. Raises BadStream."""
        buffer = self._buffer
        buffer += data
        at = 0
        try:
            while len(buffer) - at >= _HEAD.size:
                length, crc, number = _HEAD.unpack_from(buffer, at)
                if not _BEHIND_LENGTH <= length <= self._limit:
                    raise BadStream(f"a frame of {length} bytes: {_BEHIND_LENGTH} to {self._limit} are possible here")
                end = at + 4 + length
                if len(buffer) < end:
                    return
                body = bytes(memoryview(buffer)[at + 8 : end])
                at = end
                checked = memoryview(body)[: 1 + _LOG_HEAD.size] if body[0] == Kind.LOG else body
                if self._checksum(checked) != crc:
                    raise BadStream("the checksum of a frame does not match: the connection damages bytes")
                try:
                    kind = Kind(number)
                except ValueError:
                    raise BadStream(f"a frame of the unknown type {number}") from None
                yield kind, body[1:]
        finally:
            del buffer[:at]
