"""The stream between a master and a slave as Apache RocketMQ has spoken it since its beginnings; only for its brokers.

There is no greeting. A slave sends its log's end, as eight bytes, at first, whenever it has stored something, and every five seconds. The
master sends pieces of the log, each behind its offset and size; a size of 0 is a beat. So nobody can tell who speaks, whether the
logs belong together, or where a report was damaged: what can be checked is that offsets follow each other, and that nobody reports
what was not sent.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from kappamq.replication.frames import BadStream

REPORT: Final = struct.Struct(">q")
HEAD: Final = struct.Struct(">qi")
PIECE_BYTES_MAX: Final = 32 << 10
BEAT_S: Final = 5.0
SILENCE_S: Final = 20.0
FROM_THE_FIRST_BYTE_ON: Final = 1
"""A master takes the report 0 for "your last file will do". It sends the rest to a slave that reports this offset."""
FIRST_BYTE: Final = b"\0"
"""What a log begins with: the high byte of the first record's length."""


class Reports:
    """Bytes of a slave in, the newest report out. Reports have no frame: they count by their place, eight bytes each."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> int | None:
        """The last report that is complete, if there is one. Raises BadStream."""
        whole = self._rest + data
        end = len(whole) - len(whole) % REPORT.size
        self._rest = whole[end:]
        if not end:
            return None
        (offset,) = REPORT.unpack_from(whole, end - REPORT.size)
        if offset < 0:
            raise BadStream(f"it reports the log up to {offset}: a log offset is never negative")
        return int(offset)


def begin_at(reported: int, log_min: int, last_file: int, end: int) -> int:
    """Where the stream to a slave begins that has reported this first. Raises BadStream if there is no such place."""
    if not reported:
        return last_file
    if not log_min <= reported <= end:
        raise BadStream(
            f"it holds the log up to {reported}, this broker's log is from {log_min} to {end}: "
            + (
                "start it with an empty data directory"
                if reported < log_min
                else "it is the copy of another log, or holds what this broker has lost"
            )
        )
    return reported


def pieces(offset: int, data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Bytes of one log file as a slave wants them: (head, piece) again and again."""
    for at in range(0, len(data), PIECE_BYTES_MAX):
        piece = data[at : at + PIECE_BYTES_MAX]
        yield HEAD.pack(offset + at, len(piece)), piece


def beat(offset: int) -> bytes:
    return HEAD.pack(offset, 0)


class Pieces:
    """Bytes of a master in, pieces of its log out, as far as they have come: nothing is kept but a part of a head."""

    def __init__(self) -> None:
        self._head = b""
        self._offset = 0  # where the bytes come from that are still missing of the piece
        self._missing = 0

    def feed(self, data: bytes) -> Iterator[tuple[int, memoryview]]:
        """Each (offset, bytes); no bytes: a beat. Raises BadStream."""
        at = 0
        while at < len(data):
            if self._missing:
                part = memoryview(data)[at : at + self._missing]
                yield self._offset, part
                self._offset += len(part)
                self._missing -= len(part)
                at += len(part)
                continue
            wanted = HEAD.size - len(self._head)
            self._head += data[at : at + wanted]
            at += wanted
            if len(self._head) < HEAD.size:
                return
            self._offset, self._missing = HEAD.unpack(self._head)
            self._head = b""
            if self._offset < 0 or self._missing < 0:
                raise BadStream(f"a piece of the log that cannot be: {self._missing} bytes from {self._offset} on")
            if not self._missing:
                yield self._offset, memoryview(b"")
