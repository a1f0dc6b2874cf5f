"""A real file system of a few megabytes, in a file of its own: for full disks, read-only ones and power cuts. Needs root."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def small_disk(size: int, options: str = "") -> Iterator[Path]:
    """A mounted ext4 of about `size` bytes; gone afterwards, whatever happened."""
    with tempfile.TemporaryDirectory(prefix="kappamq-disk-") as folder:
        image, place = Path(folder) / "image", Path(folder) / "mounted"
        with image.open("wb") as file:
            file.truncate(size)
        place.mkdir()
        _run("mkfs.ext4", "-q", "-F", "-m", "0", "-O", "^has_journal", str(image))
        _run("mount", "-o", f"loop{',' + options if options else ''}", str(image), str(place))
        try:
            yield place
        finally:
            _run("umount", "-l", str(place))


def remount(place: Path, options: str) -> None:
    _run("mount", "-o", f"remount,{options}", str(place))


def fill(place: Path, leave: int) -> Path:
    """Take all space but `leave` bytes; delete the file that is returned to give it back."""
    ballast = place / "ballast"
    with ballast.open("wb") as file:
        size, step = 0, 16 << 20
        while step >= 1024:
            stat = os.statvfs(place)
            if stat.f_bavail * stat.f_frsize - leave < step:
                step //= 2
                continue
            try:
                os.posix_fallocate(file.fileno(), size, step)
                size += step
            except OSError:
                step //= 2  # the file system needs a little for itself
    return ballast


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
