"""Message ids: the position of a record (offset id), and the id assigned by a producer (unique id)."""

from __future__ import annotations

import datetime
import string
import struct
from dataclasses import dataclass
from typing import Final

from kappamq import native
from kappamq.errors import ProtocolError

_unique_ids = native.load().unique_ids
_TAIL = struct.Struct(">iq")  # port, log offset
_UNIQUE = struct.Struct(">HIIH")  # process, process constant, milliseconds of the month, counter
ID_CHARACTERS: Final = (32, 56)  # with an IPv4 and with an IPv6 address


@dataclass(frozen=True, slots=True)
class OffsetId:
    """The parts of an offset id: broker address and log offset."""

    host: bytes  # 4 or 16 bytes
    port: int
    log_offset: int


def offset_id(host: bytes, port: int, log_offset: int) -> str:
    """Return upper-case hexadecimal digits of address, port and log offset."""
    if len(host) not in (4, 16):
        raise ProtocolError(f"an address must have 4 or 16 bytes, got {len(host)}")
    return (host + _TAIL.pack(port, log_offset)).hex().upper()


def could_be_id(text: str) -> bool:
    """Return whether `text` has the form of an offset id or a producer-assigned id."""
    return len(text) in ID_CHARACTERS and all(char in string.hexdigits for char in text)


def parse_offset_id(text: str) -> OffsetId:
    """Parse an offset id. Raises ProtocolError if `text` cannot be one; a unique id of the same length can."""
    if len(text) not in ID_CHARACTERS:
        raise ProtocolError(
            f"an offset id must have {ID_CHARACTERS[0]} or {ID_CHARACTERS[1]} characters, got {len(text)}"
        )
    try:
        data = bytes.fromhex(text)
    except ValueError:
        raise ProtocolError(f"an offset id must be hexadecimal, got {text!r}") from None
    if len(data) * 2 != len(text):  # fromhex ignores blanks
        raise ProtocolError(f"an offset id must be hexadecimal, got {text!r}")
    port, log_offset = _TAIL.unpack(data[-_TAIL.size :])
    if not 0 <= port <= 0xFFFF or log_offset < 0:
        raise ProtocolError(f"{text} is not an offset id: it would mean port {port} and log offset {log_offset}")
    return OffsetId(data[: -_TAIL.size], port, log_offset)


class UniqueIds:
    """Generates globally unique ids: address, process, a constant of it, time and a counter.

    The time is passed in with each call; not thread-safe.
    """

    def __init__(self, host: bytes, process_id: int, constant: int) -> None:
        if len(host) not in (4, 16):
            raise ProtocolError(f"an address must have 4 or 16 bytes, got {len(host)}")
        self._host = host
        self._process = process_id & 0xFFFF
        self._constant = constant & 0xFFFFFFFF
        self._counter = 0
        self._month_start_ms = 0
        self._next_month_ms = 0

    def several(self, now_ms: int, count: int) -> list[str]:
        """Return what `count` calls of `next` would, much faster."""
        if not count:
            return []
        first = self.next(now_ms)
        front, counter = first[:-4], int(first[-4:], 16)
        self._counter = (counter + count) & 0xFFFF
        found: list[str] = _unique_ids(front, counter, count)
        return found

    def next(self, now_ms: int) -> str:
        if now_ms >= self._next_month_ms or now_ms < self._month_start_ms - 1_000_000:
            self._month_start_ms, self._next_month_ms = _month_around(now_ms)
        # If the clock is set back before the start of the month the time stays at 0, and the counter keeps ids unique.
        elapsed = max(now_ms - self._month_start_ms, 0)
        counter = self._counter
        self._counter = (counter + 1) & 0xFFFF
        return (self._host + _UNIQUE.pack(self._process, self._constant, elapsed, counter)).hex().upper()


def _month_around(now_ms: int) -> tuple[int, int]:
    # Local time, as in Java: on the same machine the date can be derived from the id.
    now = datetime.datetime.fromtimestamp(now_ms / 1000)
    start = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    following = (start + datetime.timedelta(days=32)).replace(day=1)
    return int(start.timestamp() * 1000), int(following.timestamp() * 1000)
