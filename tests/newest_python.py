"""The newest Python of this machine that KappaMQ can be tested with: `python -m tests.newest_python` prints where it is.

Looked for are python3.N on the PATH and what pyenv and uv have installed. Each is asked who it is: a file may be a shim of
pyenv that leads nowhere, an alpha, or lack what a virtual environment and a C extension need.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

OLDEST = (3, 11)
_NAME = re.compile(r"python3\.(\d+)")
_QUESTION = """
import ensurepip, os, sys, sysconfig, venv
header = os.path.join(sysconfig.get_path("include"), "Python.h")
if sys.version_info.releaselevel == "final" and os.path.exists(header) and not sysconfig.get_config_var("Py_GIL_DISABLED"):
    print(*sys.version_info[:3])
"""

Version = tuple[int, ...]


def version_of(python: Path) -> Version | None:
    """None if it does not run or cannot be used."""
    try:
        done = subprocess.run([python, "-c", _QUESTION], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return tuple(map(int, done.stdout.split())) if done.returncode == 0 and done.stdout.strip() else None


def folders(environment: Mapping[str, str]) -> Iterator[Path]:
    yield from map(Path, filter(None, environment.get("PATH", "").split(os.pathsep)))
    home = Path(environment.get("HOME", "/"))
    pyenv = Path(environment.get("PYENV_ROOT") or home / ".pyenv")
    uv = Path(environment.get("UV_PYTHON_INSTALL_DIR") or home / ".local/share/uv/python")
    for versions in (pyenv / "versions", uv):
        yield from versions.glob("*/bin")


def candidates(environment: Mapping[str, str]) -> list[Path]:
    """Those that are newest by their names come first."""
    found = {
        path: int(named[1])
        for folder in folders(environment)
        for path in folder.glob("python3.*")
        if (named := _NAME.fullmatch(path.name)) and int(named[1]) >= OLDEST[1]
    }
    return sorted(found, key=lambda path: -found[path])


def newest(environment: Mapping[str, str]) -> tuple[Path, Version] | None:
    best: tuple[Path, Version] | None = None
    for path in candidates(environment):
        named = _NAME.fullmatch(path.name)
        if best is not None and named is not None and int(named[1]) < best[1][1]:
            break  # only older ones follow
        version = version_of(path)
        if version is not None and version >= OLDEST and (best is None or version > best[1]):
            best = path, version
    return best


def main() -> None:
    found = newest(os.environ)
    print(found[0] if found is not None and found[1] > sys.version_info[:3] else sys.executable)


if __name__ == "__main__":
    main()
