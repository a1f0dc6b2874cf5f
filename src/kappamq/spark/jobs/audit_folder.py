"""The folder of a report: replaced as a whole, so that readers see the old report or the new one. Knows no Spark.

report/                      index.html, summary.json, tables/*.parquet
.report.staging/new          a report that is being made; a killed run leaves it, the next one removes it
.report.staging/old          the report before, for the moment of the exchange
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from pathlib import Path
from typing import Final, Self

from kappamq.errors import ConfigError, StoreLocked

SUMMARY: Final = "summary.json"
MARK: Final = "kappamq audit"
"""The marker of a summary: a folder without it is not a report, and is not replaced."""


class ReportFolder:
    """A report that this process makes exclusively; a context manager."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self._staging = self.root.with_name(f".{self.root.name}.staging")
        self.new = self._staging / "new"
        self._old = self._staging / "old"
        self._lock = -1

    def __enter__(self) -> Self:
        self.check()
        self._staging.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self._staging / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise StoreLocked(
                f"another process is writing the report {self.root}: wait until it has finished"
            ) from None
        try:
            if self._old.exists() and not self.root.exists():
                self._old.rename(self.root)
            self._remove()
            self.new.mkdir()
        except BaseException:
            os.close(self._lock)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._remove()
        os.close(self._lock)

    def publish(self) -> None:
        """Replace the previous report with the new one."""
        if self.root.exists():
            self.root.rename(self._old)
        self.new.rename(self.root)

    def _remove(self) -> None:
        shutil.rmtree(self.new, ignore_errors=True)
        shutil.rmtree(self._old, ignore_errors=True)

    def check(self) -> None:
        """Raise ConfigError if the folder holds something else. Changes nothing."""
        for place in (self.root, *self.root.parents):
            if place.exists() and not place.is_dir():
                raise ConfigError(f"the report cannot be {self.root}: {place} is a file")
        if self.root.exists() and any(self.root.iterdir()) and not _is_report(self.root):
            raise ConfigError(
                f"{self.root} contains files that are not an audit report, and a report replaces the whole folder: choose another one"
            )


def _is_report(folder: Path) -> bool:
    try:
        told = json.loads((folder / SUMMARY).read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(told, dict) and told.get("what") == MARK
