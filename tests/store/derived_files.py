"""What tests of a rebuild compare: the queue and index files of a store, byte by byte."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

DERIVED = ("consumequeue", "index")


def derived(root: Path) -> dict[str, bytes]:
    """The files by name below `root`; empty ones and empty folders do not count."""
    found = {}
    for folder in DERIVED:
        for path in sorted((root / folder).rglob("*")):
            if path.is_file() and path.stat().st_size:
                found[str(path.relative_to(root))] = path.read_bytes()
    return found


def without_derived(root: Path, copy: Path, folders: Sequence[str] = DERIVED) -> Path:
    """A copy of a stopped store that has lost these folders."""
    shutil.copytree(root, copy, symlinks=True)
    for folder in folders:
        shutil.rmtree(copy / folder, ignore_errors=True)
    return copy


def assert_same(one: dict[str, bytes], other: dict[str, bytes]) -> None:
    assert sorted(one) == sorted(other)
    for name, data in one.items():
        assert data == other[name], f"{name} differs"
