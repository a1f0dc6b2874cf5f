"""The disk of one simulated broker: slow, sometimes full, and without unsynced data after a power cut."""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from kappamq.native.interface import Flusher, KernelModule
from kappamq.sim.brokers.crash_disk import CrashDisk
from kappamq.sim.brokers.memory_disk import MemoryFile
from kappamq.sim.world import World

if TYPE_CHECKING:
    from kappamq.sim.brokers.loop import Loop


class SimDisk(CrashDisk):
    def __init__(self, world: World, sync_ms: Callable[[], float]) -> None:
        """`sync_ms`: how long the next sync of the flusher takes."""
        super().__init__()
        self.world = world
        self.sync_ms = sync_ms
        self.full = False
        self.loop: Loop | None = None  # of the process that uses the disk
        self._removing: Callable[[str], None] = lambda path: None
        self._renamed: Callable[[str], None] = lambda path: None

    def tell(self, removing: Callable[[str], None], renamed: Callable[[str], None]) -> None:
        """Call `removing` before a file or folder is removed, and `renamed` after a file got another name."""
        self._removing, self._renamed = removing, renamed

    def allocate(self, fd: int, size: int) -> None:
        self._demand_room()
        super().allocate(fd, size)

    def pwrite(self, fd: int, data: bytes | memoryview, at: int) -> None:
        if at + len(data) > self.size(fd):
            self._demand_room()
        super().pwrite(fd, data, at)

    def _demand_room(self) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def remove(self, path: Path | str) -> None:
        self._removing(str(path))
        super().remove(path)

    def remove_tree(self, folder: Path, *, ignore_errors: bool = False) -> None:
        self._removing(str(folder))
        super().remove_tree(folder, ignore_errors=ignore_errors)

    def rename(self, old: Path, new: Path) -> None:
        super().rename(old, new)
        self._renamed(str(new))

    def sync_begun(self, fd: int) -> tuple[MemoryFile, int]:
        return self.begin_sync(fd)

    def sync_done(self, begun: tuple[MemoryFile, int]) -> None:
        """Finish a request to the flusher."""
        self.before_each()
        self.end_sync(begun)

    def flusher(self, kernel: KernelModule) -> Flusher:
        return SimFlusher(self)


class SimFlusher:
    """Group commit: one sync at a time for all requests that arrived meanwhile."""

    def __init__(self, disk: SimDisk) -> None:
        assert disk.loop is not None
        self._disk, self._loop = disk, disk.loop
        self._fd = disk.world.dice.getrandbits(40)
        self._asked: deque[tuple[int, int]] = deque()  # (fd, offset)
        self._running: list[tuple[tuple[MemoryFile, int], int]] = []  # (what it covers, offset)
        self._run = 0
        self._durable = 0

    def fileno(self) -> int:
        return self._fd

    def request(self, fd: int, offset: int, /) -> None:
        self._asked.append((fd, offset))
        self._begin()

    def _begin(self) -> None:
        if self._running or not self._asked:
            return
        self._running = [(self._disk.sync_begun(fd), offset) for fd, offset in self._asked]
        self._asked.clear()
        self._run += 1
        self._disk.world.after(self._disk.sync_ms(), self._done, self._run)

    def _done(self, run: int) -> None:
        if run == self._run and self._running and self._loop.alive:
            self._finish()
            self._loop.readable(self._fd)
            self._begin()

    def _finish(self) -> None:
        for begun, offset in self._running:
            self._disk.sync_done(begun)
            self._durable = max(self._durable, offset)
        self._running = []

    def take(self) -> tuple[int, int]:
        return self._durable, 0

    def cut(self, offset: int, /) -> None:
        """Finish earlier requests first."""
        self.close()
        self._durable = min(self._durable, offset)

    def close(self) -> None:
        self._finish()
        self._begin()
        self._finish()
