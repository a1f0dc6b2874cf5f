"""Who asks the system for files: every call that does is watched, and which of our modules made it."""

from __future__ import annotations

import builtins
import fcntl
import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import kappamq

_SOURCE = Path(kappamq.__file__).parent
_FILES = str(_SOURCE / "store" / "files.py")
_NATIVE = str(_SOURCE / "native") + os.sep  # what Files gives out: the flusher and the maps
_CALLS: dict[ModuleType, str] = {
    os: "access chmod chown close fdatasync fstat fsync ftruncate link listdir lseek lstat makedirs mkdir open posix_fadvise "
    "posix_fallocate pread preadv pwrite pwritev read readlink remove removedirs rename renames replace rmdir scandir sendfile stat "
    "statvfs symlink truncate unlink utime write",
    fcntl: "fcntl flock ioctl lockf",
    io: "open",
    builtins: "open",
}
_readlink = os.readlink


class DiskWatch:
    def __init__(self, root: Path) -> None:
        self._root = str(root)
        self.seen: set[str] = set()  # calls of files.py for something in the folder
        self.around: list[str] = []  # those of other modules of ours

    def note(self, name: str, arguments: tuple[Any, ...]) -> None:
        frame = sys._getframe(2)
        while frame is not None and not self._is_ours(frame.f_code.co_filename):
            frame = frame.f_back  # type: ignore[assignment]
        if frame is None or not any(map(self._is_within, arguments)):
            return
        if frame.f_code.co_filename == _FILES:
            self.seen.add(name)
        else:
            self.around.append(f"{frame.f_code.co_filename}:{frame.f_lineno} calls {name}{arguments}")

    @staticmethod
    def _is_ours(file: str) -> bool:
        return file.startswith(str(_SOURCE)) and not file.startswith(_NATIVE)

    def _is_within(self, argument: object) -> bool:
        if isinstance(argument, int):
            try:
                argument = _readlink(f"/proc/self/fd/{argument}")
            except OSError:
                return False
        return isinstance(argument, (str, os.PathLike)) and os.fspath(argument).startswith(self._root)


@contextmanager
def watched_disk(root: Path) -> Iterator[DiskWatch]:
    """While this lasts, `DiskWatch` knows who touches what lies in a folder."""
    watch = DiskWatch(root)
    before: list[tuple[ModuleType, str, Any]] = []

    def watching(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            watch.note(name, (*arguments, *named.values()))
            return real(*arguments, **named)

        return call

    try:
        for module, names in _CALLS.items():
            for name in names.split():
                before.append((module, name, getattr(module, name)))
                setattr(module, name, watching(name, getattr(module, name)))
        yield watch
    finally:
        for module, name, real in before:
            setattr(module, name, real)
