"""Reads bytes of our log for another member: whole groups of records, as they are in the files. All of it may wait for the disk."""

from __future__ import annotations

from kappamq.errors import StoreError
from kappamq.raft import Append
from kappamq.replication.frames import PIECE_BYTES_MAX
from kappamq.store.log.mending import require_whole
from kappamq.store.message_store import MessageStore


def whole_end(store: MessageStore, append: Append, wanted: int) -> int:
    """Return the end of the last whole group of records that fits into `wanted`, or of the first one, however long it is. Never beyond the
    end of `append`, even if the log has grown meanwhile."""
    if wanted == append.end:
        return append.end
    stop = wanted
    while True:
        end = store.log.whole_until(store.kernel_module, append.start, stop)
        if end > append.start:
            return end
        if stop == append.end:
            raise StoreError(f"the log cannot be read at {append.start}")
        stop = min(append.end, stop + PIECE_BYTES_MAX)


def pieces(store: MessageStore, start: int, end: int) -> list[bytes]:
    """[start, end), cut where files end."""
    found = []
    while start < end:
        piece = bytes(store.log.slice(start, end - start))
        if not piece:
            raise StoreError(f"the log cannot be read at {start}")
        found.append(piece)
        start += len(piece)
    return found


def require_good(store: MessageStore, start: int, data: bytes | memoryview) -> None:
    """Raise ForeignBytes if our own disk has damaged the bytes to send: they must not spread."""
    segment_bytes, view = store.config.segment_bytes, memoryview(data)
    while view:
        part = view[: segment_bytes - start % segment_bytes]
        require_whole(store.kernel_module, part, start, segment_bytes)
        start, view = start + len(part), view[len(part) :]
