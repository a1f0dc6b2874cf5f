"""The disk: the only file-system calls of the store and the broker (tests/test_tidy.py checks that).

Tests subclass `Files` to make a disk slow, full or broken. A simulated disk can replace it: then a descriptor is any number that
this disk returns, and it has its own `Flusher` and `FileMap`, which the kernel provides for real disks.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import shutil
import stat
import struct
from pathlib import Path
from typing import Protocol

from kappamq.native import map_file
from kappamq.native.interface import Flusher, KernelModule

_ZERO_RANGE = 0x10
_KEEP_SIZE = 0x01
_HERE = -100  # AT_FDCWD
_EXCHANGE = 2
_libc = ctypes.CDLL(None, use_errno=True)
_CHUNK = bytes(1 << 20)
_FLOCK = struct.Struct("@hhqqi4x")  # struct flock of 64-bit Linux: type, whence, start, length, pid
_KINDS = {stat.S_IFDIR: "directory", stat.S_IFIFO: "named pipe", stat.S_IFCHR: "device", stat.S_IFBLK: "device"}


class NotAFile(OSError):
    """The path is not a plain file."""

    def __init__(self, path: Path | str, mode: int) -> None:
        kind = _KINDS.get(stat.S_IFMT(mode), "special file")
        super().__init__(errno.EINVAL, f"Is a {kind}, not a plain file: move it away", str(path))


class FileMap(Protocol):
    """A file's bytes as memory, for reading (`memoryview(map)`); native/mapping.py defines its behaviour."""

    @property
    def lost_count(self) -> int:
        """Pages that could not be read so far."""

    def lost(self) -> list[tuple[int, int]]:
        """The ranges [start, stop) of pages that could not be read and appear as zeros."""

    def enter(self, at: int, size: int, /) -> None:
        """Any thread: map the pages of [at, at + size) into the address space, so that reading them does not wait for page faults."""

    def is_lost(self, at: int, size: int, /) -> bool:
        """Read a byte of every page of [at, at + size); return whether one of them appears as zeros."""

    def restore(self, start: int, stop: int, fd: int, /) -> None:
        """Map the file again in pages that `lost` returned. Raises OSError if they fail again; then they stay lost."""

    def close(self) -> None:
        """Raises BufferError while a memoryview of it exists."""

    def __buffer__(self, flags: int, /) -> memoryview: ...


class Files:
    def list(self, folder: Path | str) -> list[str]:
        """Names in a folder, sorted; none if there is no such folder."""
        try:
            return sorted(os.listdir(folder))
        except FileNotFoundError:
            return []

    def exists(self, path: Path) -> bool:
        return path.exists()

    def make_folder(self, path: Path | str) -> None:
        os.makedirs(path, exist_ok=True)

    def open(self, path: Path | str, create: bool = False, writable: bool = True) -> int:
        """Open a plain file. Raises NotAFile for anything else, and OSError with ELOOP for a link."""
        # Without O_NONBLOCK, opening a named pipe waits for its other end. For files it makes no difference.
        flags = (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            fd = os.open(path, flags | (os.O_CREAT if create else 0), 0o644)
        except IsADirectoryError:
            raise NotAFile(path, stat.S_IFDIR) from None
        mode = os.fstat(fd).st_mode
        if not stat.S_ISREG(mode):
            os.close(fd)
            raise NotAFile(path, mode)
        return fd

    def close(self, fd: int) -> None:
        os.close(fd)

    def size(self, fd: int) -> int:
        return os.fstat(fd).st_size

    def size_of(self, path: Path) -> int:
        return os.stat(path).st_size

    def resize(self, path: Path, size: int) -> None:
        os.truncate(path, size)

    def identity(self, path: Path) -> tuple[int, int] | None:
        """(device, file number) of a file, the same for all its names; None if there is no file. Each simulated disk
        needs a device number of its own."""
        try:
            found = os.stat(path)
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def mtime_ms(self, path: Path) -> int:
        return os.stat(path).st_mtime_ns // 1_000_000

    def truncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def allocate(self, fd: int, size: int) -> None:
        """Make the file `size` bytes long with disk space allocated for all of them; raises ENOSPC now rather than later."""
        os.posix_fallocate(fd, 0, size)

    def zero(self, fd: int, start: int, end: int) -> None:
        """Zero [start, end) durably."""
        if _libc.fallocate(fd, _ZERO_RANGE | _KEEP_SIZE, ctypes.c_long(start), ctypes.c_long(end - start)) == 0:
            return
        code = ctypes.get_errno()
        if code not in (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
            raise OSError(code, os.strerror(code))
        while start < end:
            start += os.pwrite(fd, _CHUNK[: end - start], start)

    def next_data(self, fd: int, at: int) -> int | None:
        """The next position at or behind `at` that was ever written; None if there is none."""
        try:
            return os.lseek(fd, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return None
            raise

    def pread(self, fd: int, count: int, at: int) -> bytes:
        return os.pread(fd, count, at)

    def pread_once(self, fd: int, count: int, at: int) -> bytes:
        """As pread, but without filling the page cache."""
        data = self.pread_if_resident(fd, count, at)
        if data is None:
            data = self.pread(fd, count, at)
            os.posix_fadvise(fd, at, count, os.POSIX_FADV_DONTNEED)
        return data

    def read_exactly(self, fd: int) -> None:
        """Disable the system's read-ahead for this file. Otherwise a thread that reaches the end of the pages read ahead, even through
        a mapping, would wait for the next megabytes, and the loop must not wait for a disk."""
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)

    def warm(self, fd: int, count: int, at: int) -> None:
        """Read these bytes into the page cache; returns when they are there. Nothing is copied to user space."""
        os.posix_fadvise(fd, at, count, os.POSIX_FADV_WILLNEED)  # request all of it, then wait
        with open(os.devnull, "wb", buffering=0) as nowhere:
            while count > 0:
                try:
                    passed = os.sendfile(nowhere.fileno(), fd, at, count)
                except OSError as error:
                    if error.errno not in (errno.EINVAL, errno.ENOSYS):
                        raise
                    passed = len(os.pread(fd, min(count, 1 << 20), at))  # not supported by this file system
                if not passed:
                    return  # the file ends here
                count, at = count - passed, at + passed

    def pread_if_resident(self, fd: int, count: int, at: int) -> bytes | None:
        """As pread, but None if that needs the disk."""
        buffer = bytearray(count)
        try:
            got = os.preadv(fd, [buffer], at, os.RWF_NOWAIT)
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:
                raise
            return os.pread(fd, count, at)
        return None if got < count else bytes(buffer)

    def pwrite(self, fd: int, data: bytes | memoryview, at: int) -> None:
        """Write all of it, or raise an error."""
        view = memoryview(data)
        while view:
            written = os.pwrite(fd, view, at)
            view, at = view[written:], at + written

    def sync(self, fd: int) -> None:
        os.fdatasync(fd)

    def sync_folder(self, path: Path) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def sync_file_system(self, path: Path) -> None:
        """Make everything durable that was written to the file system of `path`, by any process."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if _libc.syncfs(fd) != 0:
                code = ctypes.get_errno()
                raise OSError(code, os.strerror(code), str(path))
        finally:
            os.close(fd)

    def remove(self, path: Path | str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def rename(self, old: Path, new: Path) -> None:
        os.replace(old, new)

    def exchange(self, one: Path, other: Path) -> None:
        """Swap two existing names in one step; if the file system does not support that, one of them is missing for a moment."""
        if _libc.renameat2(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE) == 0:
            return
        code = ctypes.get_errno()
        if code not in (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP):
            raise OSError(code, os.strerror(code), str(other))
        between = one.with_name(one.name + ".swap")
        os.rename(other, between)
        os.rename(one, other)
        os.rename(between, one)

    def link(self, old: Path, new: Path) -> None:
        """A second name for a file."""
        os.link(old, new)

    def remove_tree(self, folder: Path, *, ignore_errors: bool = False) -> None:
        """Remove a folder with its contents, if it exists. With `ignore_errors`, as much of it as can be removed."""
        if ignore_errors or self.exists(folder):
            shutil.rmtree(folder, ignore_errors=ignore_errors)

    def lock(self, fd: int) -> None:
        """Lock a file against other processes, by its first byte, as a Java broker does. Raises OSError with EACCES or EAGAIN if another
        process has locked it.

        The lock belongs to this process: it excludes nothing within it, and ends when any descriptor of the file is closed."""
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)

    def lock_holder(self, fd: int) -> int | None:
        """The other process that has locked the file; 0 if it is unknown, None if there is none."""
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
        kind, _whence, _start, _length, pid = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_GETLK, asked))
        # The system returns 0 or -1 for a holder that is not visible here (another container, another machine).
        return None if kind == fcntl.F_UNLCK else max(pid, 0)

    def map(self, fd: int, size: int) -> FileMap:
        """The file's bytes, for reading; they follow what pwrite writes."""
        return map_file(fd, size)

    def flusher(self, kernel: KernelModule) -> Flusher:
        """A new group-commit thread; `kernel`, compiled or its twin in Python, has one for real disks."""
        return kernel.Flusher()

    def usage(self, path: Path) -> tuple[int, int]:
        """(used and available bytes, available bytes) of the file system that holds `path`.

        As `df` and RocketMQ count: blocks that are reserved for root are neither used nor available."""
        stat = os.statvfs(path)
        used = stat.f_blocks - stat.f_bfree
        return (used + stat.f_bavail) * stat.f_frsize, stat.f_bavail * stat.f_frsize
