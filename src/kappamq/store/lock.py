"""Which process may use a data directory, and whether the last one stopped cleanly.

`lock`: an OS lock on its first byte, the same kind that a Java broker takes, so neither opens a store the other has
open. Such a lock belongs to a process, not to a descriptor: within one process it excludes nothing, and closing *any*
descriptor of the file releases it. Hence the table of directories that this process holds, checked before the file is opened.

`abort`: exists while a broker runs and holds its process id; if it exists at the start, the last one crashed.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import ClassVar, Final, Self

from kappamq.errors import DiskFull, StoreError, StoreLocked
from kappamq.store.files import Files

LOCK_NAME: Final = "lock"
ABORT_NAME: Final = "abort"
RAFT_PREFIX: Final = "dledger-"
_CONTENT = b"lock"
_PID_DIGITS_MAX = 10


class AbortFile:
    def __init__(self, root: Path, files: Files | None = None) -> None:
        self._root = root
        self._path = root / ABORT_NAME
        self._files = files or Files()

    def exists(self) -> bool:
        return self._files.exists(self._path)

    def pid(self) -> int | None:
        """The process that wrote the file; None if that cannot be read."""
        try:
            fd = self._files.open(self._path, writable=False)
        except OSError:
            return None
        try:
            text = self._files.pread(fd, _PID_DIGITS_MAX + 1, 0).strip()
        except OSError:
            return None
        finally:
            self._files.close(fd)
        return int(text) if text.isdigit() and len(text) <= _PID_DIGITS_MAX else None

    def create(self, pid: int | None = None) -> None:
        """Durable when it returns: after a power cut a crash must not look like a clean stop."""
        fd = self._files.open(self._path, create=True)
        try:
            self._files.truncate(fd, 0)
            self._files.pwrite(fd, str(os.getpid() if pid is None else pid).encode(), 0)
            self._files.sync(fd)
        finally:
            self._files.close(fd)
        self._files.sync_folder(self._root)

    def remove(self) -> None:
        self._files.remove(self._path)
        self._files.sync_folder(self._root)


class StoreLock:
    """Held from `acquire` to `release`, or in a `with` block; the system releases it when the process ends."""

    _held: ClassVar[set[tuple[int, int]]] = set()  # (device, inode) of lock files this process has locked

    def __init__(self, root: Path, files: Files | None = None) -> None:
        self._root = root
        self._path = root / LOCK_NAME
        self._files = files or Files()
        self._fd = -1
        self._identity = (0, 0)

    def acquire(self) -> None:
        """Raises StoreLocked if another process, or another store in this process, holds the directory."""
        assert self._fd < 0, "locked already"
        if self._files.identity(self._path) in StoreLock._held:
            raise StoreLocked(
                f"{self._root} is open in this process already: close that broker first, or use another directory"
            )
        try:
            fd = self._files.open(self._path, create=True)
        except OSError as error:
            raise StoreError(
                f"cannot open {self._path}: {error.strerror}. The broker needs a data directory that it may read "
                f"and write: check its owner and rights, or choose another one"
            ) from error
        try:
            self._files.lock(fd)
            if self._files.pread(fd, len(_CONTENT) + 1, 0) != _CONTENT:
                self._files.truncate(fd, 0)
                self._files.pwrite(fd, _CONTENT, 0)
        except OSError as error:
            holder = self._holder(fd) if error.errno in (errno.EACCES, errno.EAGAIN) else None
            self._files.close(fd)
            if holder is None:
                raise StoreError(
                    f"cannot lock {self._path}: {error.strerror}. Is it on a file system without locks?"
                ) from error
            raise StoreLocked(
                f"{self._root} is in use by {holder}: stop that broker first, or give this one another data directory"
            ) from error
        self._fd = fd
        identity = self._files.identity(self._path)
        assert identity is not None
        self._identity = identity
        StoreLock._held.add(identity)

    def release(self) -> None:
        """Release the directory, if it is held."""
        if self._fd >= 0:
            StoreLock._held.discard(self._identity)
            self._files.close(self._fd)
            self._fd = -1

    @classmethod
    def holder(cls, root: Path, files: Files | None = None) -> int | None:
        """The process that has the directory open; 0 if it is unknown, None if there is none. Changes nothing."""
        files = files or Files()
        path = root / LOCK_NAME
        if files.identity(path) in cls._held:
            return os.getpid()  # do not open the file: closing it would release the lock
        try:
            fd = files.open(path, writable=False)
        except OSError:
            return None
        try:
            return files.lock_holder(fd)
        except OSError:
            return None
        finally:
            files.close(fd)

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def _holder(self, fd: int) -> str:
        """The process that holds the lock, as the system reports it, else from `abort`."""
        try:
            pid = self._files.lock_holder(fd)  # None: released meanwhile
        except OSError:
            pid = None
        known = pid or AbortFile(self._root, self._files).pid()
        return f"process {known}" if known else "another process (it left no readable process id)"


def refuse_raft_store(root: Path, files: Files) -> None:
    """Raise StoreError for the directory of a Java broker in DLedger mode: its log has a format of its own."""
    for name in files.list(root):
        if name.startswith(RAFT_PREFIX):
            raise StoreError(
                f"{root / name} is the log of a Java broker in DLedger mode, whose format is another one. To move its messages: start that "
                f"group once more, let consumers of the old brokers read to the end while producers send to new ones, and stop it when "
                f"its queues are empty. To start here with an empty store, or with the commitlog folder beside it alone, move {name} away"
            )


def unusable(root: Path, error: OSError) -> StoreError:
    """The error for a data directory that cannot be used."""
    place = error.filename or root
    if error.errno == errno.ENOSPC:
        return DiskFull(f"{place} cannot be made: the disk is full. Free some space, or use another data directory")
    if error.errno == errno.ENOENT:
        return StoreError(f"{place} cannot be created ({error.strerror}): choose another data directory")
    if error.errno == errno.EROFS:
        return StoreError(f"{place} is on a read-only file system: choose another data directory")
    return StoreError(
        f"{place} cannot be used: {error.strerror or error}. The broker needs a data directory that it may read and write, "
        f"with nothing in it but its own files: check owner and rights, move away what is not ours, or choose another one"
    )
