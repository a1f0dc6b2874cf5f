"""Reading a file whose disk has bad spots: what cannot be read comes as zeros, and is counted."""

from __future__ import annotations

from kappamq.store.files import Files

_PAGE_BYTES = 4096


class PreadAround:
    """`pread` for one thread. Leaves the page cache as it found it, as far as that can be told."""

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
