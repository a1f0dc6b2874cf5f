"""Read a file on a disk with bad sectors: unreadable pages are returned as zeros, and counted."""

from __future__ import annotations

from kappamq.store.files import Files

_PAGE_BYTES = 4096


class PreadAround:
    """`pread` for one thread. Avoids filling the page cache where possible."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self.failed_bytes = 0

    def pread(self, fd: int, count: int, at: int) -> bytes:
        try:
            return self._files.pread_once(fd, count, at)
        except OSError:
            if count > _PAGE_BYTES:
                return b"".join(self._pages(fd, count, at))
            self.failed_bytes += count
            return bytes(count)

    def _pages(self, fd: int, count: int, at: int) -> list[bytes]:
        parts: list[bytes] = []
        while count > 0:
            step = min(count, _PAGE_BYTES - at % _PAGE_BYTES)
            part = self.pread(fd, step, at)
            parts.append(part)
            if len(part) < step:
                break
            at, count = at + step, count - step
        return parts
