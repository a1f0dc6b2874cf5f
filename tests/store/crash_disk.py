"""A disk in memory that remembers what was synced: what a power cut may leave of it.

What was written since the last sync of a file is there or not, all of it or some of it, in any order, and torn; so are changes of
names since the last sync of their folder, but each of them as a whole. As with file systems that have a journal, a sync of a file makes its
name durable, too, and a file's size is not older than what was written to it later.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

from tests.store.memory_disk import Content, MemoryDisk, MemoryFile

_PAGE = 4096


class CrashDisk(MemoryDisk):
    def __init__(self) -> None:
        super().__init__()
        self._synced: dict[int, bytes] = {}  # by number of the file
        self._unsynced: dict[int, list[tuple[int, bytes]]] = {}  # writes; (-1, ...) sets the size
        self._names_synced: dict[str, MemoryFile] = {}
        self._names_unsynced: list[tuple[str, str, MemoryFile | None]] = []  # (folder, name, file; None: removed)
        self.before_each: Callable[[], None] = lambda: None
        """Called before each change, also of what is durable."""

    @classmethod
    def holding(cls, found: MemoryDisk) -> CrashDisk:
        """A disk after a crash, on which everything that is there is durable."""
        disk = cls()
        disk._names, disk._folders = found._names, found._folders
        disk._numbers = found._numbers
        disk._names_synced = dict(found._names)
        disk._synced = {file.number: bytes(file.data) for file in found._names.values()}
        return disk

    # -- changes -----------------------------------------------------------------------------------------------------------

    def open(self, path: Path | str, create: bool = False, writable: bool = True) -> int:
        is_new = str(path) not in self._names
        fd = super().open(path, create, writable)
        if is_new:
            self.before_each()
            self._rename_to(str(path), self._names[str(path)])
        return fd

    def remove(self, path: Path | str) -> None:
        self.before_each()
        if str(path) in self._names:
            self._rename_to(str(path), None)
        super().remove(path)

    def rename(self, old: Path, new: Path) -> None:
        self.before_each()
        file = self._named(old)
        super().rename(old, new)
        # One step: whoever has the new name has lost the old one.
        self._names_unsynced.append((str(new.parent), f"{old}\0{new}", file))

    def pwrite(self, fd: int, data: bytes | memoryview, at: int) -> None:
        self.before_each()
        super().pwrite(fd, data, at)
        self._unsynced.setdefault(self._opened[fd].number, []).append((at, bytes(data)))

    def truncate(self, fd: int, size: int) -> None:
        self.before_each()
        super().truncate(fd, size)
        self._unsynced.setdefault(self._opened[fd].number, []).append((-1, size.to_bytes(8, "big")))

    def allocate(self, fd: int, size: int) -> None:
        size = max(size, self.size(fd))
        super().allocate(fd, size)
        self._unsynced.setdefault(self._opened[fd].number, []).append((-1, size.to_bytes(8, "big")))

    def sync(self, fd: int) -> None:
        self.before_each()
        super().sync(fd)
        file = self._opened[fd]
        self._synced[file.number] = bytes(file.data)
        self._unsynced.pop(file.number, None)
        self._sync_names(lambda folder, entry: entry is file)

    def sync_folder(self, path: Path) -> None:
        self.before_each()
        super().sync_folder(path)
        self._sync_names(lambda folder, entry: folder == str(path))

    def _rename_to(self, name: str, file: MemoryFile | None) -> None:
        self._names_unsynced.append((str(Path(name).parent), name, file))

    def _sync_names(self, chosen: Callable[[str, MemoryFile | None], bool]) -> None:
        left = []
        for folder, name, file in self._names_unsynced:
            if chosen(folder, file):
                _apply_name(self._names_synced, name, file)
            else:
                left.append((folder, name, file))
        self._names_unsynced = left

    # -- crashes -----------------------------------------------------------------------------------------------------------

    def after_crash(self, random: Random, kept: float) -> MemoryDisk:
        """One of the disks that may be found. `kept`: how likely each unsynced change is to be there; 0 and 1: none and all."""
        disk = MemoryDisk()
        disk._folders = set(self._folders)
        names = dict(self._names_synced)
        for _folder, name, file in self._names_unsynced:
            if random.random() < kept:
                _apply_name(names, name, file)
        for name, file in names.items():
            found = bytearray(self._synced.get(file.number, b""))
            size: int | None = None  # not kept so far
            for at, data in self._unsynced.get(file.number, []):
                if at < 0:
                    size = int.from_bytes(data, "big")
                    if random.random() < kept:
                        found, size = _resized(found, size), None
                    continue
                for begin, end in _pages(at, len(data)):
                    if random.random() < kept:
                        if size is not None:
                            found, size = _resized(found, size), None
                        found += bytes(max(0, end - len(found)))
                        found[begin:end] = data[begin - at : end - at]
            disk._names[name] = MemoryFile(next(disk._numbers), Content(found), file.mtime_ns)
        return disk


def crashes(disk: CrashDisk, seed: int, count: int) -> Iterator[MemoryDisk]:
    """Nothing of what is unsynced, all of it, and something in between."""
    random = Random(seed)
    for kept in itertools.islice(itertools.chain([0.0, 1.0], itertools.cycle([0.1, 0.5, 0.9])), count):
        yield disk.after_crash(random, kept)


def _resized(data: bytearray, size: int) -> bytearray:
    return data[:size] + bytes(max(0, size - len(data)))


def _apply_name(names: dict[str, MemoryFile], name: str, file: MemoryFile | None) -> None:
    old, separator, new = name.partition("\0")
    if separator:
        names.pop(old, None)
        name = new
    if file is None:
        names.pop(name, None)
    else:
        names[name] = file


def _pages(at: int, size: int) -> Iterator[tuple[int, int]]:
    """A write is not one thing to a disk: its pages arrive each on its own."""
    end = at + size
    while at < end:
        stop = min(end, at - at % _PAGE + _PAGE)
        yield at, stop
        at = stop
