"""A disk with log pages that cannot be read: what mapped them sees zeros and a mark, as after a read error."""

from __future__ import annotations

import mmap
import os

from kappamq.store.files import FileMap, Files


class UnreadablePages(Files):
    """Files whose mappings lose the page that holds each of `positions`. Needs the compiled kernel."""

    def __init__(self, *positions: int) -> None:
        self._pages = [position - position % mmap.PAGESIZE for position in positions]

    def map(self, fd: int, size: int) -> FileMap:
        mapped = super().map(fd, size)
        for page in self._pages:
            # To cut the file is the way to a failed read that needs no failing disk; afterwards it is whole again.
            cut_off = os.pread(fd, size - page, page)
            os.ftruncate(fd, page)
            assert mapped.is_lost(page, 1)
            os.ftruncate(fd, size)
            os.pwrite(fd, cut_off, page)
        return mapped
