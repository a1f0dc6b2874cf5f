from __future__ import annotations

import errno
import os
from pathlib import Path

from kappamq.store.files import Files
from kappamq.store.log.pread_around import PreadAround


class BadSpots(Files):
    """A disk on which these bytes cannot be read."""

    def __init__(self, bad: range) -> None:
        self._bad = bad

    def pread(self, fd: int, count: int, at: int) -> bytes:
        if at < self._bad.stop and at + count > self._bad.start:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return super().pread(fd, count, at)

    def pread_if_resident(self, fd: int, count: int, at: int) -> bytes | None:
        return None


def test_what_cannot_be_read_comes_as_zeros(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 20_000)
    with path.open("rb") as file:
        around = PreadAround(BadSpots(range(9000, 9001)))
        assert around.pread(file.fileno(), 8000, 100) == b"x" * 8000
        assert around.failed_bytes == 0
        data = around.pread(file.fileno(), 30_000, 100)
        assert data == b"x" * 8092 + bytes(4096) + b"x" * (20_000 - 12_288)
        assert around.failed_bytes == 4096
        assert around.pread(file.fileno(), 10, 30_000) == b""


def test_a_reader_who_comes_by_once_leaves_memory_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * (1 << 20))
    with path.open("rb") as file:
        fd = file.fileno()
        files = Files()
        os.fsync(fd)
        files.read_exactly(fd)
        # The system may keep a page that it is asked to drop (it is being moved, say): once in many times is proof enough.
        can_drop = any(_is_dropped(files, fd) for _ in range(100))  # not in a file system that lives in memory
        assert not can_drop or any(_is_dropped_after_one_read(files, fd) for _ in range(100))
        files.pread(fd, 4096, 1 << 19)
        assert files.pread_once(fd, 4096, 1 << 19) == b"x" * 4096
        # Nothing drops it but a shortage of memory.
        assert files.pread_if_resident(fd, 4096, 1 << 19) is not None, "somebody else wanted it there"


def _is_dropped(files: Files, fd: int) -> bool:
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    return files.pread_if_resident(fd, 4096, 0) is None


def _is_dropped_after_one_read(files: Files, fd: int) -> bool:
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    assert files.pread_once(fd, 1 << 16, 0) == b"x" * (1 << 16)
    return files.pread_if_resident(fd, 4096, 0) is None
