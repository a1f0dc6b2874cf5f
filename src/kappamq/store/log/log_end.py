"""Find where the log of a closed store ends, by recovery's rules, and which broker wrote it last.

Below the durably flushed offset a bad record is damage; above it, the first bad record ends the log. For another broker's log
no flushed offset is known, only the store time up to which its checkpoint guarantees the log.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kappamq.errors import StoreDamaged
from kappamq.native.pure_record import Buffer
from kappamq.protocol.records.view import FRONT_BYTES, Front
from kappamq.store.checkpoint import Checkpoint
from kappamq.store.files import Files
from kappamq.store.log.log_reader import LogReader
from kappamq.store.position import Position
from kappamq.store.recovery import FINGERPRINT_BYTES

POSITION_NAME: Final = "kappamq.position"
_FOREVER: Final = 1 << 62
_LOOK_BYTES: Final = 8 << 20

Scan = Callable[[Buffer, int, bool], tuple[int, int, int, int]]
"""Kernel's scan: (bytes, log offset, whether checksums are compared) -> (good bytes, why it stopped, records, store time of the last)."""


@dataclass(frozen=True, slots=True)
class LogEnd:
    """Decides whether a bad record is damage or the end of the log."""

    flushed: int = 0  # on disk up to here
    foreign_ms: int | None = None  # another broker wrote last, and its checkpoint covers records up to this store time

    def is_end(self, at: int) -> bool:
        """Whether a bad record at `at` ends the log, whatever follows it."""
        return self.foreign_ms is None and at >= self.flushed

    def is_vouched_for(self, store_ms: int) -> bool:
        """Whether a good record behind a bad one was covered by the last checkpoint."""
        return self.foreign_ms is None or store_ms <= self.foreign_ms


def find_end(root: Path, log: LogReader, scan: Scan, files: Files) -> tuple[LogEnd, Position | None]:
    """What is known about the end, and our position if it belongs to this log."""
    checkpoint = Checkpoint.load(root / "checkpoint", files)
    position, _why = Position.load(root / POSITION_NAME, files)
    if position is not None:
        marks = ((position.dispatched, position.last_crc), (position.synced, position.synced_crc))
        if not any(at >= log.min and fingerprint(log, at) == crc for at, crc in marks):
            position = None
    if position is not None and (
        position.wrote(checkpoint.encode()) or position.is_damaged(checkpoint, lambda: _newest_ms(log, scan))
    ):
        return LogEnd(flushed=position.flushed), position
    possible = checkpoint.is_possible(_newest_ms(log, scan))
    return LogEnd(foreign_ms=checkpoint.physic_ms if possible else _FOREVER), position


def fingerprint(log: LogReader, offset: int) -> int:
    """CRC of the log's bytes just before `offset`, as the position file has it."""
    start = max(offset - FINGERPRINT_BYTES, offset - offset % log.segment_bytes) if log.segment_bytes else offset
    return zlib.crc32(log.read(start, offset - start))


def check_files(log: LogReader, files: Files, skip_damage: bool) -> None:
    """Raises StoreDamaged where a file is missing in the middle of the log, or is truncated (unless damage is skipped)."""
    starts = log.starts
    for start, expected in zip(starts, range(log.min, log.limit, log.segment_bytes or 1), strict=False):
        if start != expected:
            raise StoreDamaged(
                f"{log.folder}: expected a log file that starts at {expected}, but the next is {start:020d}: one is missing"
            )
        path = log.folder / f"{start:020d}"
        size = files.size_of(path)
        unused = start == starts[-1] and not any(log.read(start, 4096))
        if size < log.segment_bytes and not unused and not skip_damage:
            raise StoreDamaged(
                f"{path} is truncated: it has {size} of {log.segment_bytes} bytes. Restore the file from a copy; or continue without the "
                f"missing messages (skip_damage, --skip-damage)"
            )


def first_store_ms(log: LogReader, offset: int) -> int:
    """Store time of the record at `offset`."""
    return Front(log.read(offset, FRONT_BYTES)).stored_ms


def _newest_ms(log: LogReader, scan: Scan) -> int:
    """The largest store time of the first record of each file."""
    newest = 0
    for start in log.starts:
        size = min(_LOOK_BYTES, Front(log.read(start, FRONT_BYTES)).size)
        if size and scan(log.read(start, size), start, True)[2]:
            newest = max(newest, first_store_ms(log, start))
    return newest
