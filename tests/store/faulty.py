"""A disk that fails when it is told to: the same calls as `Files`, counted, and broken by rule."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kappamq.native.interface import Flusher, KernelModule
from kappamq.store.files import FileMap, Files

CHANGING = ("make_folder", "open", "truncate", "allocate", "zero", "pwrite", "sync", "sync_folder", "remove", "rename")
"""Calls that change the disk, or could have to."""


@dataclass
class Rule:
    operations: tuple[str, ...]
    code: int
    on: str  # part of the path; empty: anywhere
    skip: int  # so many calls go well first
    times: int  # so many fail then

    def breaks(self, operation: str, path: str) -> bool:
        if operation not in self.operations or self.on not in path or not self.times:
            return False
        if self.skip:
            self.skip -= 1
            return False
        self.times -= 1
        return True


class FaultyFiles(Files):
    def __init__(self) -> None:
        self._rules: list[Rule] = []
        self._paths: dict[int, str] = {}
        self.calls: list[tuple[str, str]] = []  # (operation, path), in order
        self.free_bytes: int | None = None  # what `usage` says; None: the truth

    def fail(self, *operations: str, code: int = errno.EIO, on: str = "", skip: int = 0, times: int = 1 << 30) -> None:
        """From now on these operations fail; by default all of them, for ever."""
        self._rules.append(Rule(operations or CHANGING, code, on, skip, times))

    def repair(self) -> None:
        self._rules.clear()
        self.free_bytes = None

    def count(self, operation: str, on: str = "") -> int:
        return sum(name == operation and on in path for name, path in self.calls)

    def _do(self, operation: str, path: str) -> None:
        self.calls.append((operation, path))
        for rule in self._rules:
            if rule.breaks(operation, path):
                raise OSError(rule.code, os.strerror(rule.code), path)

    # -- the calls ---------------------------------------------------------------------------------------------------------

    def make_folder(self, path: Path | str) -> None:
        self._do("make_folder", str(path))
        super().make_folder(path)

    def open(self, path: Path | str, create: bool = False, writable: bool = True) -> int:
        self._do("open" if create else "open_existing", str(path))
        fd = super().open(path, create, writable)
        self._paths[fd] = str(path)
        return fd

    def truncate(self, fd: int, size: int) -> None:
        self._do("truncate", self._paths[fd])
        super().truncate(fd, size)

    def allocate(self, fd: int, size: int) -> None:
        self._do("allocate", self._paths[fd])
        super().allocate(fd, size)

    def zero(self, fd: int, start: int, end: int) -> None:
        self._do("zero", self._paths[fd])
        super().zero(fd, start, end)

    def pread(self, fd: int, count: int, at: int) -> bytes:
        self._do("pread", self._paths[fd])
        return super().pread(fd, count, at)

    def warm(self, fd: int, count: int, at: int) -> None:
        self._do("warm", self._paths[fd])
        super().warm(fd, count, at)

    def pwrite(self, fd: int, data: bytes | memoryview, at: int) -> None:
        self._do("pwrite", self._paths[fd])
        super().pwrite(fd, data, at)

    def sync(self, fd: int) -> None:
        self._do("sync", self._paths[fd])
        super().sync(fd)

    def sync_folder(self, path: Path) -> None:
        self._do("sync_folder", str(path))
        super().sync_folder(path)

    def remove(self, path: Path | str) -> None:
        self._do("remove", str(path))
        super().remove(path)

    def rename(self, old: Path, new: Path) -> None:
        self._do("rename", str(new))
        super().rename(old, new)

    def map(self, fd: int, size: int) -> FileMap:
        self._do("map", self._paths[fd])
        return super().map(fd, size)

    def usage(self, path: Path) -> tuple[int, int]:
        total, free = super().usage(path)
        return total, free if self.free_bytes is None else self.free_bytes


class SlowFlusher:
    """A group-commit thread that syncs only when the test says so."""

    made: SlowFlusher

    def __init__(self) -> None:
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._asked = self._durable = self._code = 0
        self._keeps_up = False
        SlowFlusher.made = self

    def fileno(self) -> int:
        return self._event

    def request(self, fd: int, offset: int) -> None:
        self._asked = max(self._asked, offset)
        if self._keeps_up:
            self.sync()

    def take(self) -> tuple[int, int]:
        if self._event >= 0:
            try:
                os.eventfd_read(self._event)
            except BlockingIOError:
                pass
        return self._durable, self._code

    def cut(self, offset: int) -> None:
        self._asked = min(self._asked, offset)
        self._durable = min(self._durable, offset)

    def close(self) -> None:
        """Finish what was asked for. Fine to call twice."""
        if self._event >= 0:
            if not self._code:
                self._durable = self._asked
            os.close(self._event)
            self._event = -1

    @property
    def behind(self) -> int:
        return self._asked - self._durable

    def sync(self) -> None:
        """Everything asked for so far is durable."""
        self._durable = self._asked
        os.eventfd_write(self._event, 1)

    def keep_up(self) -> None:
        """From now on the disk is as fast as any: for a broker that is to stop without waiting for it."""
        self._keeps_up = True
        self.sync()

    def break_down(self, code: int = errno.EIO) -> None:
        self._code = code
        os.eventfd_write(self._event, 1)


class FilesWithFlusher(Files):
    """A disk with another group-commit thread: MessageStore(config, module, kernel, FilesWithFlusher(SlowFlusher))."""

    def __init__(self, make: Callable[[], Flusher]) -> None:
        self._make = make

    def flusher(self, kernel: KernelModule) -> Flusher:
        return self._make()
