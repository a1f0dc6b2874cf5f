"""The replication stream between a master and a slave as Apache RocketMQ has always spoken it; used only with its brokers.

There is no greeting. A slave sends its log's end, as eight bytes, first and then whenever it has stored something and every five seconds.
The master sends pieces of the log, each preceded by its offset and size; size 0 is a beat. The peer's identity, whether the logs belong
together, and damage to a report cannot be checked; what can be checked is that offsets are consecutive and that a slave does not report
more than it was sent.
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
"""For a master the report 0 means "your last file will do". It sends the whole log to a slave that reports this offset."""
FIRST_BYTE: Final = b"\0"
"""The first byte of a log: the high byte of the first record's length."""


class Reports:
    """Takes bytes from a slave, returns the newest report. Reports have no frame: they are found by position, eight bytes each."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> int | None:
        """Return the last complete report, if there is one. Raises BadStream."""
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
    """Where the stream begins for a slave whose first report this is. Raises BadStream if there is no such offset."""
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
    """Split bytes of one log file into what a slave expects: yields (head, piece)."""
    for at in range(0, len(data), PIECE_BYTES_MAX):
        piece = data[at : at + PIECE_BYTES_MAX]
        yield HEAD.pack(offset + at, len(piece)), piece


def beat(offset: int) -> bytes:
    return HEAD.pack(offset, 0)


class Pieces:
    """Takes bytes from a master, yields pieces of its log as they arrive: only a partial head is buffered."""

    def __init__(self) -> None:
        self._head = b""
        self._offset = 0  # log offset of the next missing byte of the piece
        self._missing = 0

    def feed(self, data: bytes) -> Iterator[tuple[int, memoryview]]:
        """Yield (offset, bytes); empty bytes are a beat. Raises BadStream."""
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
