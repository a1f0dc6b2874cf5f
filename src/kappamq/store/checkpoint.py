"""The checkpoint: up to which store time the parts of the store are on disk. Java's file: 4096 bytes, 40 used.

Our recovery uses our own, exact position file. This one is for a Java broker that opens the store after us, and shows us
whether one has used it meanwhile.
"""

from __future__ import annotations

import struct
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Final, Self

from kappamq.store.files import Files

CHECKPOINT: Final = struct.Struct(">qqqqq")
USED_BYTES: Final = 40
FILE_BYTES: Final = 4096
assert CHECKPOINT.size == USED_BYTES
_AHEAD_MS = 24 * 3600 * 1000  # after a crash it may cover records that never reached the disk
_MARGIN_MS = 3000  # RocketMQ's: times are recorded shortly before the flush


@dataclass(slots=True)
class Checkpoint:
    physic_ms: int = 0  # the log is on disk up to the record with this store time
    logics_ms: int = 0  # the queues
    index_ms: int = 0  # the key index: end time of what its files hold completely
    master_flushed: int = 0  # log offset; slaves and controller mode
    confirmed: int = 0  # log offset; controller mode

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read the first 40 bytes; missing ones count as zero."""
        return cls(*CHECKPOINT.unpack(data[:USED_BYTES].ljust(USED_BYTES, b"\0")))

    def encode(self) -> bytes:
        """The 40 bytes that are used."""
        return CHECKPOINT.pack(*astuple(self))

    @classmethod
    def load(cls, path: Path, files: Files | None = None) -> Self:
        """Read the file; a missing or short one counts as zeros, so recovery begins too early rather than too late."""
        files = files or Files()
        try:
            fd = files.open(path, writable=False)
        except FileNotFoundError:
            return cls()
        try:
            return cls.decode(files.pread(fd, USED_BYTES, 0))
        except OSError as error:
            error.filename = str(path)
            raise
        finally:
            files.close(fd)

    def write(self, path: Path, files: Files | None = None, *, sync: bool = False) -> None:
        """Overwrite the 40 bytes in place: they are in one sector, so a crash leaves either the old or the new ones.

        With `sync` they are on disk when it returns. Whatever the checkpoint covers must be on disk before."""
        files = files or Files()
        fd = files.open(path, create=True)
        try:
            if files.size(fd) != FILE_BYTES:
                files.truncate(fd, FILE_BYTES)
            files.pwrite(fd, self.encode(), 0)
            if sync:
                files.sync(fd)
        finally:
            files.close(fd)

    def times(self) -> tuple[int, int, int]:
        return self.physic_ms, self.logics_ms, self.index_ms

    def is_damaged_copy_of(self, written: bytes) -> bool:
        """Whether it differs from what was written by one bit. Another broker would change several fields."""
        return (int.from_bytes(self.encode(), "big") ^ int.from_bytes(written, "big")).bit_count() == 1

    def is_possible(self, newest_ms: int) -> bool:
        """Whether a broker can have written this: its times are store times of records, and the newest record has `newest_ms`."""
        return (
            all(0 <= ms <= newest_ms + _AHEAD_MS for ms in self.times())
            and min(self.master_flushed, self.confirmed) >= 0
        )

    def min_timestamp(self) -> int:
        """After a crash a Java broker's queues are complete for records stored before this."""
        return max(0, min(self.physic_ms, self.logics_ms) - _MARGIN_MS)
