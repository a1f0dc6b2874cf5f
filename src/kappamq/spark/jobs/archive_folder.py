"""A folder of Parquet files that grows by whole rounds: all files of a round become visible, or none. Knows no Spark.

    archive/day=2026-11-16/topic=orders/00000001-part-00000-....parquet      what readers see
    archive/_kappamq/round-00000001.json                                     what round 1 added, and how far the queues are read
    .archive.staging/00000001-5f3a/day=.../topic=.../part-00000-....parquet  a round that is being written

A round is written into the staging folder, beside the archive, where no reader looks. Its manifest is the commit: once that is on disk
the round is valid, and the next process that opens the archive finishes moving its files to their places. Without
a manifest the staged files are removed. So a process can be killed at any moment, and no reader sees a message twice.

A staging folder that the user names may hold other files, even the rounds of other archives: each archive has its own folder in it,
and only files with a round's name are removed there.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from kappamq.errors import StoreError, StoreFormatError, StoreLocked

VERSION: Final = 1
_PRIVATE: Final = "_kappamq"  # readers of Parquet folders skip names that begin with an underscore
_SUFFIX: Final = ".parquet"
_ROUND: Final = re.compile(r"\d{8}-[0-9a-f]{8}")
"""The names that only `begin` creates."""


@dataclass(frozen=True, slots=True)
class QueueRows:
    """A queue's part of a round: messages [start, stop), `rows` of them; fewer than that only if some were gone."""

    topic: str
    broker: str
    queue: int
    start: int
    stop: int
    rows: int


@dataclass(frozen=True, slots=True)
class ArchiveFile:
    path: str  # below the archive
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One round."""

    round: int
    made_ms: int
    staged: str  # the name of its folder in the staging folder
    queues: tuple[QueueRows, ...]
    files: tuple[ArchiveFile, ...]
    position: Mapping[str, Any] = field(default_factory=dict)  # of all queues, where the next round goes on
    gaps: tuple[str, ...] = ()

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    def encode(self) -> bytes:
        return json.dumps({"version": VERSION, **asdict(self)}, indent=1, ensure_ascii=False).encode()

    @classmethod
    def decode(cls, data: bytes, where: Path) -> Manifest:
        """Raises StoreFormatError."""
        try:
            found = json.loads(data)
            if found.pop("version") != VERSION:
                raise ValueError("it was written by another version of KappaMQ")
            queues = tuple(QueueRows(**queue) for queue in found.pop("queues"))
            files = tuple(ArchiveFile(**file) for file in found.pop("files"))
            return cls(queues=queues, files=files, gaps=tuple(found.pop("gaps")), **found)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise StoreFormatError(f"{where} is not a manifest of an archive: {error}") from None


class ArchiveFolder:
    """An archive that this process has opened exclusively for writing; a context manager."""

    def __init__(self, root: Path, staging: Path | None = None) -> None:
        self.root = root.absolute()
        self.staging = _staging(self.root, staging)
        self._private = self.root / _PRIVATE
        self._lock = -1

    def check(self) -> None:
        """Raises StoreError if an archive cannot be there. Changes nothing."""
        for place in (self.root, *self.root.parents):
            if place.exists() and not place.is_dir():
                raise StoreError(f"the archive cannot be {self.root}: {place} is a file")
        if not self._private.is_dir() and self.root.is_dir() and any(self.root.iterdir()):
            raise StoreError(
                f"{self.root} contains files that are not an archive of KappaMQ, and an archive has a folder for itself: choose "
                "another one, or an empty one"
            )
        if self.staging.resolve().is_relative_to(self.root.resolve()):
            raise StoreError(
                f"the staging folder {self.staging.parent} is inside the archive {self.root}, whose readers would see unfinished "
                "files: choose one outside of it, on the same disk"
            )

    def __enter__(self) -> Self:
        self.check()
        self._private.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self._private / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise StoreLocked(
                f"another process is writing to the archive {self.root}: wait until it has finished"
            ) from None
        try:
            self._make_staging()
            self.last = self._recover()
        except BaseException:
            self._leave()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._leave()

    def _make_staging(self) -> None:
        """Only under the lock, since its previous holder may just have removed the folder."""
        self.staging.mkdir(parents=True, exist_ok=True)
        if self.staging.stat().st_dev != self.root.stat().st_dev:
            raise StoreError(
                f"{self.staging} is on another disk than {self.root}, so files cannot be moved in one step: "
                "choose a staging folder on the same disk, outside of the archive"
            )

    def _leave(self) -> None:
        with contextlib.suppress(OSError):  # a round that failed is in it: the next run removes that
            self.staging.rmdir()
        os.close(self._lock)

    def begin(self) -> Path:
        """Return the path of a folder, which does not exist yet, for the files of the next round."""
        return self.staging / f"{self._next:08}-{secrets.token_hex(4)}"

    def staged(self, folder: Path) -> list[Path]:
        """Return the Parquet files of a written round, below its folder."""
        return sorted(
            path.relative_to(folder) for path in folder.rglob(f"*{_SUFFIX}") if not path.name.startswith((".", "_"))
        )

    def place(self, staged: Path) -> Path:
        """Return where a file of the next round will be, below the archive."""
        return staged.with_name(f"{self._next:08}-{staged.name}")

    def commit(self, manifest: Manifest) -> None:
        """Make a round visible, durably: from then on it is valid, whatever happens to this process."""
        assert manifest.round == self._next
        folder = self.staging / manifest.staged
        for file in folder.rglob(f"*{_SUFFIX}"):
            _sync(file)
        if folder.exists():  # a round that only records losses has no files
            for place in (folder, *(place for place in folder.rglob("*") if place.is_dir())):
                _sync(place)
        _sync(self.staging)
        temporary = self._private / f".round-{manifest.round:08}.json"
        temporary.write_bytes(manifest.encode())
        _sync(temporary)
        temporary.rename(self._manifest(manifest.round))
        _sync(self._private)
        self.last = manifest
        self._move(manifest)

    def manifests(self) -> Iterable[Manifest]:
        """Return all rounds, oldest first."""
        for path in sorted(self._private.glob("round-*.json")):
            yield Manifest.decode(path.read_bytes(), path)

    def last_manifest(self) -> Manifest | None:
        """Return the newest round on disk; None for a new archive."""
        paths = sorted(self._private.glob("round-*.json"))
        return Manifest.decode(paths[-1].read_bytes(), paths[-1]) if paths else None

    @property
    def _next(self) -> int:
        return 1 if self.last is None else self.last.round + 1

    def _manifest(self, number: int) -> Path:
        return self._private / f"round-{number:08}.json"

    def _recover(self) -> Manifest | None:
        """Finish the last round, which may not have been moved as a whole, and remove what was never committed."""
        last = self.last_manifest()
        if last is not None:
            self._move(last)
        for leftover in self.staging.iterdir():
            if _ROUND.fullmatch(leftover.name):
                shutil.rmtree(leftover, ignore_errors=True)
        return last

    def _move(self, manifest: Manifest) -> None:
        folder = self.staging / manifest.staged
        changed: set[Path] = set()
        for file in manifest.files:
            place = self.root / file.path
            staged = folder / place.relative_to(self.root).with_name(place.name.partition("-")[2])
            if staged.exists():
                place.parent.mkdir(parents=True, exist_ok=True)
                staged.rename(place)
                changed |= {place.parent, *place.parent.parents} - {*self.root.parents}
            elif not place.exists():
                raise StoreError(
                    f"{place} is missing, though round {manifest.round} wrote it, and it is not in {folder} either: name the staging "
                    "folder of the run before, put the file back, or begin a new archive"
                )
        for place in changed:
            _sync(place)
        shutil.rmtree(folder, ignore_errors=True)


def _staging(root: Path, given: Path | None) -> Path:
    """Return where rounds of the archive are written: beside it, or in its own folder below the given one."""
    if given is None:
        return root.with_name(f".{root.name}.staging")
    owner = hashlib.sha256(os.fsencode(root.resolve())).hexdigest()[:16]
    return given.absolute() / f"{owner}.kappamq-staging"


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
