"""The bytes of our log that go into one message to another member: whole groups of records."""

from __future__ import annotations

from kappamq.errors import StoreError
from kappamq.raft import Append
from kappamq.replication.frames import PIECE_BYTES_MAX
from kappamq.store.message_store import MessageStore


def whole_end(store: MessageStore, append: Append) -> int:
    """Where the last whole group of records ends that `append` may bring; the first one, however long it is. Raises StoreError."""
    if append.end == store.log.end:
        return append.end
    stop = append.end
    while True:
        end = store.log.whole_until(store.kernel_module, append.start, stop)
        if end > append.start:
            return end
        if stop == store.log.end:
            raise StoreError(f"the log cannot be read at {append.start}")
        stop = min(store.log.end, stop + PIECE_BYTES_MAX)


def read(store: MessageStore, start: int, end: int) -> bytes:
    """Raises StoreError."""
    pieces = []
    while start < end:
        piece = bytes(store.log.slice(start, end - start))
        if not piece:
            raise StoreError(f"the log cannot be read at {start}")
        pieces.append(piece)
        start += len(piece)
    return b"".join(pieces)
