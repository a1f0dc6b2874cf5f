"""A disk in memory that knows what was synced, and so what a power cut may leave of it.

Writes since the last sync of a file survive or not, completely or in part, in any order, and torn; so do changes of names since the last
sync of their folder, but each of them as a whole. As with file systems that have a journal, syncing a file makes its name durable, too,
and a file's size is not older than data that was written to it later.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

from kappamq.sim.brokers.memory_disk import Content, MemoryDisk, MemoryFile, is_within

_PAGE = 4096


class CrashDisk(MemoryDisk):
    def __init__(self) -> None:
        super().__init__()
        self._synced: dict[int, bytearray] = {}  # by file number
        self._passed: dict[int, int] = {}  # by file number: how many writes were ever synced
        self._unsynced: dict[int, list[tuple[int, bytes]]] = {}  # writes; (-1, ...) sets the size
        self._names_synced: dict[str, MemoryFile] = {}
        self._names_unsynced: list[tuple[str, str, MemoryFile | None]] = []  # (folder, name, file; None: removed)
        self.before_each: Callable[[], None] = lambda: None
        """Called before each change, including durable ones."""

    def call_before_each(self, call: Callable[[], None] = lambda: None) -> None:
        """Replace the function that is called before each change."""
        self.before_each = call

    @classmethod
    def holding(cls, found: MemoryDisk) -> CrashDisk:
        """A disk after a crash, on which everything that is there is durable."""
        disk = cls()
        disk._names, disk._folders = found._names, found._folders
        disk._numbers = found._numbers
        disk._names_synced = dict(found._names)
        disk._synced = {file.number: bytearray(file.data) for file in found._names.values()}
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
        file = self._names.get(str(old))
        MemoryDisk.remove_tree(self, new)
        self._move(old, new)
        # One step: if the new name is durable, the old one is gone.
        self._names_unsynced.append((str(new.parent), f"{old}\0{new}", file))

    def exchange(self, one: Path, other: Path) -> None:
        between = one.with_name(one.name + ".swap")
        for old, new in ((other, between), (one, other), (between, one)):
            self.rename(old, new)

    def link(self, old: Path, new: Path) -> None:
        self.before_each()
        super().link(old, new)
        self._rename_to(str(new), self._names[str(new)])

    def remove_tree(self, folder: Path, *, ignore_errors: bool = False) -> None:
        self.before_each()
        for name in [name for name in self._names if is_within(name, folder)]:
            self._rename_to(name, None)
        super().remove_tree(folder, ignore_errors=ignore_errors)

    def resize(self, path: Path, size: int) -> None:
        self.before_each()
        super().resize(path, size)
        self._unsynced.setdefault(self._named(path).number, []).append((-1, size.to_bytes(8, "big")))

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
        self.end_sync(self.begin_sync(fd))

    def begin_sync(self, fd: int) -> tuple[MemoryFile, int]:
        """Begin a sync, which covers what is written by now; pass the result to `end_sync` to make it durable."""
        file = self._opened[fd]
        return file, self._passed.get(file.number, 0) + len(self._unsynced.get(file.number, ()))

    def end_sync(self, begun: tuple[MemoryFile, int]) -> None:
        file, covered = begun
        writes = self._unsynced.get(file.number, [])
        passed = self._passed.get(file.number, 0)
        count = max(0, covered - passed)
        durable = self._synced.setdefault(file.number, bytearray())
        for at, data in writes[:count]:
            _apply_write(durable, at, data)
        del writes[:count]
        self._passed[file.number] = passed + count
        self._sync_names(lambda folder, entry: entry is file)

    def durable(self, path: Path | str, start: int, end: int) -> bytes:
        """The part of these bytes that no crash can lose."""
        file = self._names_synced.get(str(path))
        return bytes(self._synced.get(file.number, b"")[start:end]) if file is not None else b""

    def sync_folder(self, path: Path) -> None:
        self.before_each()
        super().sync_folder(path)
        self._sync_names(lambda folder, entry: folder == str(path))

    def _rename_to(self, name: str, file: MemoryFile | None) -> None:
        self._names_unsynced.append((str(Path(name).parent), name, file))

    def _sync_names(self, chosen: Callable[[str, MemoryFile | None], bool]) -> None:
        left: list[tuple[str, str, MemoryFile | None]] = []
        for change in self._names_unsynced:
            if not chosen(change[0], change[2]):
                left.append(change)
                continue
            # Earlier changes of these names become durable first: a name that was removed and created again exists.
            names = set(change[1].split("\0"))
            for earlier in [earlier for earlier in left if names & set(earlier[1].split("\0"))]:
                left.remove(earlier)
                _apply_name(self._names_synced, earlier[1], earlier[2])
            _apply_name(self._names_synced, change[1], change[2])
        self._names_unsynced = left

    # -- crashes -----------------------------------------------------------------------------------------------------------

    def after_crash(self, random: Random, kept: float, disk: MemoryDisk | None = None) -> MemoryDisk:
        """One of the disks that may be found after a crash. `kept`: the probability that each unsynced change survives; 0: none, 1: all.
        `disk`: an empty disk to fill."""
        disk = MemoryDisk() if disk is None else disk
        disk._folders = set(self._folders)
        names = dict(self._names_synced)
        for _folder, name, file in self._names_unsynced:
            if random.random() < kept:
                _apply_name(names, name, file)
        for name, file in names.items():
            found = self._found_bytes(file, random, kept)
            made = disk._names[name] = MemoryFile(next(disk._numbers), Content(found), file.mtime_ns)
            if isinstance(disk, CrashDisk):  # what was found is on the disk, however it got there
                disk._names_synced[name] = made
                disk._synced[made.number] = found
        return disk

    def _found_bytes(self, file: MemoryFile, random: Random, kept: float) -> bytearray:
        found = bytearray(self._synced.get(file.number, b""))
        size: bytes | None = None  # not kept so far
        for at, data in self._unsynced.get(file.number, []):
            if at < 0:
                size = data
                if random.random() < kept:
                    _apply_write(found, at, data)
                    size = None
                continue
            for begin, end in _pages(at, len(data)):
                if random.random() < kept:
                    if size is not None:
                        _apply_write(found, -1, size)
                        size = None
                    _apply_write(found, begin, data[begin - at : end - at])
        return found


def crashes(disk: CrashDisk, seed: int, count: int) -> Iterator[MemoryDisk]:
    """Disks on which nothing unsynced survives, all of it, and something in between."""
    random = Random(seed)
    for kept in itertools.islice(itertools.chain([0.0, 1.0], itertools.cycle([0.1, 0.5, 0.9])), count):
        yield disk.after_crash(random, kept)


def _apply_name(names: dict[str, MemoryFile], name: str, file: MemoryFile | None) -> None:
    old, separator, new = name.partition("\0")
    if separator and file is None:  # a folder, with everything in it
        for inside in [inside for inside in names if is_within(inside, Path(new))]:
            del names[inside]
        for inside in [inside for inside in names if is_within(inside, Path(old))]:
            names[new + inside.removeprefix(old)] = names.pop(inside)
        return
    if separator:
        names.pop(old, None)
        name = new
    if file is None:
        names.pop(name, None)
    else:
        names[name] = file


def _apply_write(found: bytearray, at: int, data: bytes) -> None:
    if at < 0:
        size = int.from_bytes(data, "big")
        del found[size:]
        found += bytes(size - len(found))
        return
    if at > len(found):
        found += bytes(at - len(found))
    found[at : at + len(data)] = data


def _pages(at: int, size: int) -> Iterator[tuple[int, int]]:
    """The pages of a write: each reaches the disk separately."""
    end = at + size
    while at < end:
        stop = min(end, at - at % _PAGE + _PAGE)
        yield at, stop
        at = stop
