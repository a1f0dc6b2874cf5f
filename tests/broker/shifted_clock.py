"""A wall clock that can be set, for processes that are started with it; see `shifted_clock.c`."""

from __future__ import annotations

import os
import struct
import subprocess
from pathlib import Path

SOURCE = Path(__file__).parent / "shifted_clock.c"


class ShiftedClock:
    """Needs a C compiler. Processes that have `environment` go by it; the test itself keeps the real clock."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file, library = folder / "shift", folder / "shifted_clock.so"
        compiler = os.environ.get("CC", "cc")
        subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(SOURCE)], check=True, timeout=60)
        self.environment = {"LD_PRELOAD": str(library), "SHIFTED_CLOCK": str(self._file)}
        self.set(0)

    def set(self, ms: int) -> None:
        """So much ahead of the real one."""
        fd = os.open(self._file, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.pwrite(fd, struct.pack("=q", ms), 0)
        finally:
            os.close(fd)
