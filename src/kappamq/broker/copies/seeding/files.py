"""The data directory of a follower that is being seeded: marker, files moved aside, incoming snapshots. No store is open here."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from kappamq.errors import StoreError
from kappamq.protocol.records.view import FRONT_BYTES
from kappamq.replication.seeding import MARKER_BYTES_MAX, MARKER_NAME, WANTED, Marker
from kappamq.store.files import Files

log = logging.getLogger(__name__)

ASIDE_PREFIX: Final = "before-seeding-"
OWN_SETTINGS: Final = "kappamq.settings.json"
"""Settings of this node that were changed at run time: they belong to it, so they stay."""
_ASIDE_MAX = 10_000
_STORE_NAMES: Final = (
    "commitlog", "consumequeue", "index", "config", "checkpoint", "abort", "timerwheel", "timerlog", "kappamq.position",
    "kappamq.vote", "kappamq.terms", "kappamq.terms.tmp", "kappamq.scrub",
)  # fmt: skip
_DERIVED: Final = ("commitlog", "consumequeue", "index")


class SeedFiles:
    def __init__(self, root: Path, segment_bytes: int, files: Files) -> None:
        self.root = root
        self._segment_bytes = segment_bytes
        self._files = files
        self._marker_path = root / MARKER_NAME
        self._config = root / "config"

    # -- the marker --------------------------------------------------------------------------------------------------------

    def marker(self) -> Marker | None:
        try:
            fd = self._files.open(self._marker_path, writable=False)
        except FileNotFoundError:
            return None
        try:
            data = bytes(self._files.pread(fd, MARKER_BYTES_MAX, 0))
        finally:
            self._files.close(fd)
        try:
            return Marker.decode(data)
        except ValueError as error:
            log.warning("%s cannot be read (%s): this copy is seeded from the beginning", self._marker_path, error)
            return Marker(state=WANTED)

    def mark(self, marker: Marker) -> None:
        """Return when it is on disk. A reader sees the old content or the new one."""
        aside = self._marker_path.with_name(MARKER_NAME + ".tmp")
        self._write(aside, marker.encode())
        self._files.rename(aside, self._marker_path)
        self._files.sync_folder(self.root)

    def unmark(self) -> None:
        self._files.remove(self._marker_path)
        self._files.sync_folder(self.root)

    # -- earlier files -----------------------------------------------------------------------------------------------------

    def reaches(self) -> int:
        """Return the end of the used log files; 0 without any. A file that begins with zeros was prepared, and never used."""
        folder = self.root / "commitlog"
        for name in reversed(self._files.list(folder)):
            if not name.isdigit():
                continue
            fd = self._files.open(folder / name, writable=False)
            try:
                if any(self._files.pread(fd, FRONT_BYTES, 0)):
                    return int(name) + self._segment_bytes
            finally:
                self._files.close(fd)
        return 0

    def new_aside(self) -> str:
        there = set(self._files.list(self.root))
        for number in range(1, _ASIDE_MAX):
            if (name := f"{ASIDE_PREFIX}{number}") not in there:
                return name
        raise StoreError(f"{self.root} holds {_ASIDE_MAX} folders {ASIDE_PREFIX}<n>: look at them and remove some")

    def move_aside(self, name: str) -> int:
        """Move everything that belongs to the store into this folder; returns the bytes that are there now. After a crash it is called
        again: files whose names exist there already were begun since, and are removed."""
        aside = self.root / name
        self._files.make_folder(aside)
        if not self.reaches():  # only empty files
            for derived in _DERIVED:
                self._files.remove_tree(self.root / derived)
        there = set(self._files.list(self.root))
        for each in _STORE_NAMES:
            if each not in there:
                continue
            if self._files.exists(aside / each):
                self._remove(each)
            else:
                self._files.rename(self.root / each, aside / each)
        self._files.sync_folder(aside)
        self._files.sync_folder(self.root)
        return self._size(aside)

    def _remove(self, name: str) -> None:
        try:
            self._files.remove(self.root / name)
        except (IsADirectoryError, PermissionError):
            self._files.remove_tree(self.root / name)

    def _size(self, folder: Path) -> int:
        total = 0
        for name in self._files.list(folder):
            try:
                total += self._files.size_of(folder / name) if not self._is_folder(folder / name) else 0
            except FileNotFoundError:
                continue
            if self._is_folder(folder / name):
                total += self._size(folder / name)
        return total

    def _is_folder(self, path: Path) -> bool:
        try:
            self._files.list(path)
        except NotADirectoryError:
            return False
        return True

    # -- incoming snapshots ------------------------------------------------------------------------------------------------

    def require_room(self, size: int) -> None:
        """Raise StoreError if the disk has fewer bytes left."""
        free = self._files.usage(self.root)[1]
        if free < size:
            raise StoreError(
                f"{self.root} has {free} bytes free, but this copy needs {size}: make room; earlier contents of this directory in "
                f"{ASIDE_PREFIX}<n> may go once nobody needs them"
            )

    def keep_settings(self, aside: str) -> None:
        for name in (OWN_SETTINGS, OWN_SETTINGS + ".bak"):
            source = self.root / aside / "config" / name
            if self._files.exists(source):
                fd = self._files.open(source, writable=False)
                try:
                    data = bytes(self._files.pread(fd, self._files.size(fd), 0))
                finally:
                    self._files.close(fd)
                self.receive(name, 0, data)
        self.received()

    def receive(self, name: str, at: int, data: bytes | memoryview) -> None:
        """Bytes of a snapshot file."""
        self._files.make_folder(self._config)
        fd = self._files.open(self._config / name, create=True)
        try:
            self._files.pwrite(fd, data, at)
            self._files.sync(fd)
        finally:
            self._files.close(fd)

    def received(self) -> None:
        if self._files.exists(self._config):
            self._files.sync_folder(self._config)
        self._files.sync_folder(self.root)

    def _write(self, path: Path, data: bytes) -> None:
        fd = self._files.open(path, create=True)
        try:
            self._files.truncate(fd, 0)
            self._files.pwrite(fd, data, 0)
            self._files.sync(fd)
        finally:
            self._files.close(fd)
