"""A log file in memory without the compiled kernel: a plain mmap.

The compiled `MappedFile` survives pages that cannot be read (mapping.c): they read as zeros, and `lost` returns them. Python alone
cannot handle SIGBUS: a file that is truncated while the broker has it mapped ends the process, as it would end any other program
that maps files. What was acknowledged remains as safe as the disk is; a supervisor restarts the broker.
"""

from __future__ import annotations

import mmap
from typing import Final, Self

SURVIVES_FAILED_READS: Final = False


class MappedFile(mmap.mmap):
    """The first `size` bytes of a file, for reading; they follow what is written to it."""

    def __new__(cls, fd: int, size: int) -> Self:
        return super().__new__(cls, fd, size, mmap.MAP_SHARED, mmap.PROT_READ)

    def enter(self, at: int, size: int) -> None:
        """Any thread: map the pages of [at, at + size) into the address space, so that a later read does not wait for a page fault.
        They should be in the page cache. Only a hint: failures are not reported."""
        if not self.closed and (at < 0 or size < 0 or at > len(self) - size):
            raise ValueError(f"[{at}, {at + size}) is not within the mapping")

    @property
    def lost_count(self) -> int:
        """Pages that could not be read so far."""
        return 0

    def lost(self) -> list[tuple[int, int]]:
        """The ranges [start, stop) of pages that could not be read and appear as zeros."""
        return []

    def is_lost(self, at: int, size: int) -> bool:
        """Read a byte of every page of [at, at + size); return whether one of them appears as zeros."""
        return False

    def restore(self, start: int, stop: int, fd: int) -> None:
        """Map the file again in pages that `lost` returned, a whole range or a part of it. Raises OSError if they fail again; then
        they stay lost."""
