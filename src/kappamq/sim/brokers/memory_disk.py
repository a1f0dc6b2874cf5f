"""A disk in memory: neither its files nor its descriptors exist for the operating system.

So whatever bypasses `Files`, including C code, fails on it: the system reports that there is no such path, or EBADF.
"""

from __future__ import annotations

import errno
import itertools
import os
import re
import time
from dataclasses import dataclass, field
from pathlib import Path

from kappamq.native.interface import Flusher, KernelModule
from kappamq.store.files import FileMap, Files, NotAFile

_FIRST_FD = 1_000_000_000  # more than a process can have open
_DISK_BYTES = 1 << 40
_USED = re.compile(rb"[^\0]")
_devices = itertools.count(-1, -1)  # real ones are not negative
_DIRECTORY_MODE = 0o040755


class Content(bytearray):
    """The bytes of a file, which also serve as its map."""

    lost_count = 0

    def lost(self) -> list[tuple[int, int]]:
        return []

    def enter(self, at: int, size: int, /) -> None:
        assert 0 <= at <= at + size <= len(self)

    def is_lost(self, at: int, size: int, /) -> bool:
        return False

    def restore(self, start: int, stop: int, fd: int, /) -> None:
        raise AssertionError("nothing was ever lost")

    def close(self) -> None:
        pass


@dataclass(eq=False)
class MemoryFile:
    number: int
    data: Content = field(default_factory=Content)
    mtime_ns: int = 0


class MemoryFlusher:
    """A flusher for which everything is durable at once; it reports as the real one does."""

    def __init__(self, disk: MemoryDisk) -> None:
        self._disk = disk
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._durable = 0
        self._error = 0

    def request(self, fd: int, offset: int, /) -> None:
        try:
            self._disk.sync(fd)
            self._durable = max(self._durable, offset)
        except OSError as error:
            self._error = error.errno or errno.EIO
        os.eventfd_write(self._event, 1)

    def take(self) -> tuple[int, int]:
        if self._event >= 0:
            try:
                os.eventfd_read(self._event)
            except BlockingIOError:
                pass
        return self._durable, self._error

    def cut(self, offset: int, /) -> None:
        self._durable = min(self._durable, offset)

    def fileno(self) -> int:
        return self._event

    def close(self) -> None:
        if self._event >= 0:
            os.close(self._event)
            self._event = -1


class MemoryDisk(Files):
    def __init__(self) -> None:
        self._device = next(_devices)
        self._numbers = itertools.count(1)
        self._fds = itertools.count(_FIRST_FD)
        self._names: dict[str, MemoryFile] = {}
        self._folders: set[str] = {"/"}
        self._opened: dict[int, MemoryFile] = {}

    @property
    def opened(self) -> int:
        """Number of open descriptors."""
        return len(self._opened)

    def tree(self, root: Path) -> dict[str, bytes | None]:
        """Everything below a folder, by relative name; None for a folder."""
        below = f"{root}/"
        found: dict[str, bytes | None] = {
            name.removeprefix(below): None for name in self._folders if name.startswith(below)
        }
        return found | {
            name.removeprefix(below): bytes(file.data) for name, file in self._names.items() if name.startswith(below)
        }

    # -- names -------------------------------------------------------------------------------------------------------------

    def list(self, folder: Path | str) -> list[str]:
        if str(folder) in self._names:
            raise _error(errno.ENOTDIR, folder)
        below = f"{folder}/"
        return sorted(
            name.removeprefix(below)
            for name in [*self._names, *self._folders]
            if name.startswith(below) and "/" not in name.removeprefix(below)
        )

    def exists(self, path: Path) -> bool:
        return str(path) in self._names or str(path) in self._folders

    def make_folder(self, path: Path | str) -> None:
        self._folders |= {str(path), *map(str, Path(path).parents)}

    def open(self, path: Path | str, create: bool = False, writable: bool = True) -> int:
        if str(path) in self._folders:
            raise NotAFile(path, _DIRECTORY_MODE)
        if str(path) not in self._names:
            if not create or str(Path(path).parent) not in self._folders:
                raise _error(errno.ENOENT, path)
            self._names[str(path)] = MemoryFile(next(self._numbers), mtime_ns=time.time_ns())
        fd = next(self._fds)
        self._opened[fd] = self._names[str(path)]
        return fd

    def close(self, fd: int) -> None:
        del self._opened[fd]

    def size_of(self, path: Path) -> int:
        return len(self._named(path).data)

    def identity(self, path: Path) -> tuple[int, int] | None:
        file = self._names.get(str(path))
        return None if file is None else (self._device, file.number)

    def mtime_ms(self, path: Path) -> int:
        return self._named(path).mtime_ns // 1_000_000

    def resize(self, path: Path, size: int) -> None:
        _resize(self._named(path), size)

    def remove(self, path: Path | str) -> None:
        self._names.pop(str(path), None)

    def rename(self, old: Path, new: Path) -> None:
        self.remove_tree(new)
        self._move(old, new)

    def exchange(self, one: Path, other: Path) -> None:
        between = one.with_name(one.name + ".swap")
        self._move(other, between)
        self._move(one, other)
        self._move(between, one)

    def link(self, old: Path, new: Path) -> None:
        self._names[str(new)] = self._named(old)

    def remove_tree(self, folder: Path, *, ignore_errors: bool = False) -> None:
        self._names = {name: file for name, file in self._names.items() if not is_within(name, folder)}
        self._folders = {name for name in self._folders if not is_within(name, folder)}

    def sync_folder(self, path: Path) -> None:
        if str(path) not in self._folders:
            raise _error(errno.ENOENT, path)

    def sync_file_system(self, path: Path) -> None:
        self.sync_folder(path)

    def usage(self, path: Path) -> tuple[int, int]:
        return _DISK_BYTES, _DISK_BYTES

    # -- bytes -------------------------------------------------------------------------------------------------------------

    def size(self, fd: int) -> int:
        return len(self._opened[fd].data)

    def truncate(self, fd: int, size: int) -> None:
        _resize(self._opened[fd], size)

    def allocate(self, fd: int, size: int) -> None:
        _resize(self._opened[fd], max(size, self.size(fd)))

    def zero(self, fd: int, start: int, end: int) -> None:
        self.pwrite(fd, bytes(end - start), start)

    def next_data(self, fd: int, at: int) -> int | None:
        found = _USED.search(self._opened[fd].data, at)
        return None if found is None else found.start()

    def pread(self, fd: int, count: int, at: int) -> bytes:
        return bytes(self._opened[fd].data[at : at + count])

    def pread_once(self, fd: int, count: int, at: int) -> bytes:
        return self.pread(fd, count, at)

    def pread_if_resident(self, fd: int, count: int, at: int) -> bytes | None:
        data = self.pread(fd, count, at)
        return data if len(data) == count else None

    def read_exactly(self, fd: int) -> None:
        assert fd in self._opened

    def warm(self, fd: int, count: int, at: int) -> None:
        assert fd in self._opened

    def pwrite(self, fd: int, data: bytes | memoryview, at: int) -> None:
        file = self._opened[fd]
        if at + len(data) > len(file.data):
            _resize(file, at + len(data))
        file.data[at : at + len(data)] = data
        file.mtime_ns = time.time_ns()

    def sync(self, fd: int) -> None:
        assert fd in self._opened

    def lock(self, fd: int) -> None:
        assert fd in self._opened  # there is only one process

    def lock_holder(self, fd: int) -> int | None:
        assert fd in self._opened
        return None

    def map(self, fd: int, size: int) -> FileMap:
        data = self._opened[fd].data
        assert len(data) == size
        return data

    def flusher(self, kernel: KernelModule) -> Flusher:
        return MemoryFlusher(self)

    # ----------------------------------------------------------------------------------------------------------------------

    def _named(self, path: Path) -> MemoryFile:
        try:
            return self._names[str(path)]
        except KeyError:
            raise _error(errno.ENOENT, path) from None

    def _move(self, old: Path, new: Path) -> None:
        if not self.exists(old):
            raise _error(errno.ENOENT, old)

        def moved(name: str) -> str:
            return str(new) + name.removeprefix(str(old)) if is_within(name, old) else name

        self._names = {moved(name): file for name, file in self._names.items()}
        self._folders = {moved(name) for name in self._folders}


def is_within(name: str, folder: Path) -> bool:
    return name == str(folder) or name.startswith(f"{folder}/")


def _resize(file: MemoryFile, size: int) -> None:
    if size < len(file.data):
        del file.data[size:]
    elif size > len(file.data):
        file.data.extend(bytes(size - len(file.data)))
    file.mtime_ns = time.time_ns()


def _error(code: int, path: Path | str) -> OSError:
    return OSError(code, os.strerror(code), str(path))
