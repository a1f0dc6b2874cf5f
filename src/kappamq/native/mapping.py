"""A log file in memory, where the compiled kernel is missing: the system's own mapping.

The compiled `MappedFile` survives pages that cannot be read (mapping.c): they read as zeros and are told by `lost`. Without it
nothing can be done about SIGBUS from Python, and a file that is cut under the broker ends the process, as it would end any other
program that maps files. What was acknowledged stays as safe as the disk is; a supervisor starts the broker again.
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
        """Any thread: have the system enter the pages of [at, at + size) into the address space, so that whoever reads them does not
        wait for that. They should be in the page cache. A hint: nobody is told if some of them are not entered."""
        if not self.closed and (at < 0 or size < 0 or at > len(self) - size):
            raise ValueError(f"[{at}, {at + size}) is not within the mapping")

    @property
    def lost_count(self) -> int:
        """Pages that could not be read so far."""
        return 0

    def lost(self) -> list[tuple[int, int]]:
        """The stretches [start, stop) of pages that could not be read and are shown as zeros."""
        return []

    def is_lost(self, at: int, size: int) -> bool:
        """Read a byte of every page of [at, at + size): whether one of them is shown as zeros."""
        return False

    def restore(self, start: int, stop: int, fd: int) -> None:
        """Show the file again in pages that `lost` has told, a whole stretch or a part of it. Raises OSError if they fail again; then
        they stay lost."""
