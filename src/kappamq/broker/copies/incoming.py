"""Shared by both protocols of a slave: a connection to the master, and its bytes on their way into the log."""

from __future__ import annotations

import asyncio
from typing import Final

from kappamq.errors import KappaError
from kappamq.protocol import address
from kappamq.protocol.records.view import Front
from kappamq.replication.frames import BadStream

_CONNECT_S: Final = 3.0
_READ_BYTES: Final = 1 << 20
_REST_BYTES_MAX: Final = 64 << 20  # of an incomplete record or batch


class NotKnown(KappaError):
    """There is no master to follow at the moment."""


async def connected(place: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = address.split(place)
    try:
        async with asyncio.timeout(_CONNECT_S):
            return await asyncio.open_connection(host, port, limit=_READ_BYTES)
    except TimeoutError:
        raise NotKnown(f"the master at {place} cannot be reached within {_CONNECT_S:g} s") from None
    except OSError as error:
        raise NotKnown(f"the master at {place} cannot be reached: {error.strerror or error}") from error


async def some(reader: asyncio.StreamReader) -> bytes:
    data = await reader.read(_READ_BYTES)
    if not data:
        raise NotKnown("the master has closed the connection")
    return data


class Incoming:
    """Bytes of the master's log that are not stored yet: the beginning of a record or batch whose end is still to come."""

    def __init__(self, start: int) -> None:
        self.start = start  # where `data` begins
        self._next = start  # where the next bytes begin
        self._data: bytes | memoryview = b""
        self._rest = bytearray()  # after `_data`, while its first record is incomplete

    @property
    def data(self) -> memoryview:
        """The bytes to examine: none, while a record that was examined is still incomplete."""
        return memoryview(b"" if self._rest else self._data)

    def add(self, offset: int, data: memoryview) -> None:
        """Raise BadStream if these bytes are not the next ones."""
        if offset != self._next:
            raise BadStream(f"the master sends from {offset}, what came before ends at {self._next}")
        size = len(self._data) + len(self._rest) + len(data)
        if size > _REST_BYTES_MAX:
            raise BadStream(f"{size} bytes from {self.start} on hold no whole record")
        self._next += len(data)
        data = data[max(0, self.start - offset) :]  # the bytes after the end mark of a file are stored already
        if not self._data:
            self._data = data
            return
        self._rest += data
        front = Front(self._data)
        if not front.is_record or len(self._data) + len(self._rest) >= front.size:
            self._data = b"".join((self._data, self._rest))
            self._rest = bytearray()

    def stored(self, end: int) -> None:
        """The log ends at `end` now: after the end mark of a file that may be beyond the bytes received."""
        self._data = bytes(self.data[end - self.start :])
        self.start = end
