"""Who may use a data directory, and whether the last one left it in good order.

`lock`: an OS lock on its first byte, the same kind that a Java broker takes, so neither opens a store the other has
open. Such a lock belongs to a process, not to a descriptor: within one process it excludes nobody, and closing *any*
descriptor of the file gives it up. Hence the table of directories this process holds, asked before the file is opened.

`abort`: exists while a broker runs and holds its process id; found at the start, it says that the last one just died.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from pathlib import Path
from typing import ClassVar, Final, Self

from kappamq.errors import StoreError, StoreLocked
from kappamq.store.files import Files

LOCK_NAME: Final = "lock"
ABORT_NAME: Final = "abort"
_CONTENT = b"lock"
_FLOCK = struct.Struct("@hhqqi4x")  # struct flock of 64-bit Linux: type, whence, start, length, pid
_PID_DIGITS_MAX = 10


class AbortFile:
    def __init__(self, root: Path, files: Files | None = None) -> None:
        self._root = root
        self._path = root / ABORT_NAME
        self._files = files or Files()

    def exists(self) -> bool:
        return self._files.exists(self._path)

    def pid(self) -> int | None:
        """The process that wrote it, None if that cannot be read."""
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
        """Durable when it returns: a power cut must not make a crash look like a clean stop."""
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
    """Held from `acquire` to `release`, or in a `with` block; given up by the system when the process ends."""

    _held: ClassVar[set[tuple[int, int]]] = set()  # (device, inode) of lock files this process has locked

    def __init__(self, root: Path, files: Files | None = None) -> None:
        self._root = root
        self._path = root / LOCK_NAME
        self._files = files or Files()
        self._fd = -1
        self._identity = (0, 0)

    def acquire(self) -> None:
        """Raises StoreLocked if another process, or another store in this one, has the directory."""
        assert self._fd < 0, "locked already"
        if self._identify() in StoreLock._held:
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
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
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
        identity = self._identify()
        assert identity is not None
        self._identity = identity
        StoreLock._held.add(identity)

    def release(self) -> None:
        """Give the directory back; nothing if it is not held."""
        if self._fd >= 0:
            StoreLock._held.discard(self._identity)
            self._files.close(self._fd)
            self._fd = -1

    @classmethod
    def holder(cls, root: Path) -> int | None:
        """The process that has the directory open, 0 if it cannot be named, None if nobody has it. Changes nothing."""
        lock = cls(root)
        if lock._identify() in cls._held:
            return os.getpid()  # and the file must not be opened: closing it would give the lock up
        try:
            fd = lock._files.open(lock._path, writable=False)
        except OSError:
            return None
        try:
            kind, pid = _locked_by(fd)
        except (OSError, struct.error):
            return None
        finally:
            lock._files.close(fd)
        return None if kind == fcntl.F_UNLCK else max(pid, 0)

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def _identify(self) -> tuple[int, int] | None:
        try:
            stat = os.stat(self._path)
        except OSError:
            return None
        return stat.st_dev, stat.st_ino

    def _holder(self, fd: int) -> str:
        """Who has it, as well as can be known: the system's word, else what the running broker wrote into `abort`."""
        pid = 0
        try:
            kind, pid = _locked_by(fd)
            if kind == fcntl.F_UNLCK:
                pid = 0  # gone in this very moment
        except (OSError, struct.error):
            pass
        # The system says 0 or -1 for a holder it cannot name here (another container, another machine).
        known = pid if pid > 0 else AbortFile(self._root, self._files).pid()
        return f"process {known}" if known else "another process (it left no readable process id)"


def _locked_by(fd: int) -> tuple[int, int]:
    """(kind of lock, process) as the system knows them."""
    asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
    kind, _whence, _start, _length, pid = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_GETLK, asked))
    return kind, pid
