from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.newest_python import candidates, newest, version_of


def python(folder: Path, minor: int, says: str) -> Path:
    """A program that answers every question in the same way."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"python3.{minor}"
    path.write_text(f"#!/bin/sh\n{says}\n")
    path.chmod(0o755)
    return path


def test_the_newest_that_works_wherever_it_is(tmp_path: Path) -> None:
    environment = {"PATH": f"{tmp_path / 'a'}:{tmp_path / 'none'}", "HOME": str(tmp_path)}
    assert newest(environment) is None
    python(tmp_path / "a", 9, "echo 3 9 1")
    assert newest(environment) is None, "too old"
    old = python(tmp_path / "a", 11, "echo 3 11 2")
    assert newest(environment) == (old, (3, 11, 2))
    new = python(tmp_path / ".pyenv/versions/3.13.1/bin", 13, "echo 3 13 1")
    python(tmp_path / ".pyenv/versions/3.13.0/bin", 13, "echo 3 13 0")
    python(tmp_path / "a", 13, "echo no such version >&2; exit 127")  # a shim of pyenv
    python(tmp_path / "a", 15, "exit 0")  # an alpha, or without what is needed
    assert newest(environment) == (new, (3, 13, 1))
    newer = python(tmp_path / ".local/share/uv/python/cpython-3.14/bin", 14, "echo 3 14 0")
    assert newest(environment) == (newer, (3, 14, 0))
    assert [int(path.suffix[1:]) for path in candidates(environment)] == [15, 14, 13, 13, 13, 11]


def test_this_one_is_asked_who_it_is() -> None:
    assert version_of(Path(sys.executable)) in (tuple(sys.version_info[:3]), None), "None: without its headers"
    assert version_of(Path(os.devnull)) is None
