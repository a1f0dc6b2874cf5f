"""Which log files may be deleted, and when writes must stop. Decisions only; the caller deletes.

A log file is deleted when it has expired (no write for `retention_hours`), nothing needs it, and either the hour of deletion has
come or the disk is getting full. A file that has not expired is deleted only with `delete_unexpired_ratio`: by default a full disk
makes producers wait and consumers lose nothing. The last file always stays.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from kappamq.config.store import StoreConfig

HOUR_MS: Final = 3_600_000
RESUME_RATIO_BELOW: Final = 0.02
RESUME_FREE_FACTOR: Final = 1.25
"""Hysteresis: writing resumes when the disk is this much less full than where it stopped."""


@dataclass(frozen=True, slots=True)
class LogFile:
    start: int  # log offset of its first byte
    mtime_ms: int


@dataclass(frozen=True, slots=True)
class Usage:
    """Usage of the file system that holds the log, see `Files.usage`."""

    total_bytes: int  # used or available; without what is reserved for root
    free_bytes: int

    @property
    def ratio(self) -> float:
        """0 empty to 1 full; 0 if unknown."""
        return 1 - self.free_bytes / self.total_bytes if self.total_bytes > 0 else 0.0

    def __str__(self) -> str:
        return f"the disk is {self.ratio:.1%} full ({self.free_bytes >> 20} MiB free)"


@dataclass(frozen=True, slots=True)
class Deletion:
    start: int
    why: str


@dataclass(frozen=True, slots=True)
class Plan:
    """The files to delete, oldest first, and why not more (for an operator who waits for space)."""

    delete: list[Deletion] = field(default_factory=list)
    stopped: str = ""


def plan(
    files: Sequence[LogFile],
    now_ms: int,
    config: StoreConfig,
    usage: Usage,
    needed_from: int,
    *,
    asked: bool = False,
) -> Plan:
    """Which of the log's `files` (oldest first) to delete now.

    `needed_from` is the smallest log offset that a snapshot, an open half message, a pending timer... still needs: files that
    reach it stay, however full the disk is. `asked`: the operator wants expired files deleted at any hour.
    """
    hour = datetime.datetime.fromtimestamp(now_ms // 1000).hour
    ratio = usage.ratio
    unexpired_too = config.delete_unexpired_ratio is not None and ratio > config.delete_unexpired_ratio
    if hour in config.delete_hours:
        occasion = f"expired; hour {hour} is for deleting"
    elif ratio > config.disk_clean_ratio:
        occasion = f"expired; {usage}"
    elif asked:
        occasion = "expired; requested by the operator"
    elif unexpired_too:
        occasion = ""
    else:
        return Plan(stopped="it is not the hour of deletion, and the disk has space")
    result = Plan()
    for file, after in pairwise(believable(files, now_ms)):
        if len(result.delete) == config.delete_files_max:
            return Plan(result.delete, f"{config.delete_files_max} files are the maximum of one round")
        if after.start > needed_from:
            return Plan(result.delete, f"the log is still needed from {needed_from} on")
        if file.mtime_ms + config.retention_hours * HOUR_MS <= now_ms and occasion:
            result.delete.append(Deletion(file.start, occasion))
        elif unexpired_too:
            result.delete.append(Deletion(file.start, f"not expired, but {usage}"))
        else:
            return Plan(result.delete, "the next file has not expired")
    return Plan(result.delete, "the last file always stays")


def believable(files: Sequence[LogFile], now_ms: int) -> list[LogFile]:
    """The same files (oldest first) with consistent times: the clock may have been wrong when one was written.

    No file was written after now, nor before the previous one: otherwise the neighbour's time is used. In doubt a file counts as
    new, because old ones are deleted."""
    found: list[LogFile] = []
    before_ms = 0
    for number, file in enumerate(files):
        written_ms = file.mtime_ms
        if written_ms > now_ms:
            later = [other.mtime_ms for other in files[number + 1 :] if before_ms <= other.mtime_ms <= now_ms]
            written_ms = min(later, default=now_ms)
        before_ms = max(before_ms, written_ms)
        found.append(LogFile(file.start, before_ms))
    return found


class DiskGuard:
    """Whether user writes are refused: only if the disk is full by ratio *and* by bytes; 10 % of 20 TB is enough space."""

    def __init__(self, config: StoreConfig) -> None:
        self._config = config  # read each time: limits may change at run time
        self.refusing = False
        self.why = ""  # for the refused producer; empty while writing is allowed

    def check(self, usage: Usage) -> bool:
        """Look at the disk; True if the decision changed."""
        before = self.refusing
        if not self.refusing:
            self.refusing = (
                usage.ratio > self._config.disk_refuse_ratio and usage.free_bytes < self._config.disk_refuse_free_bytes
            )
        elif (
            usage.ratio <= self._config.disk_refuse_ratio - RESUME_RATIO_BELOW or usage.free_bytes >= self._resume_bytes
        ):
            self.refusing = False
        self.why = f"{usage}: free some space, add a disk or shorten the retention" if self.refusing else ""
        return self.refusing != before

    @property
    def _resume_bytes(self) -> int:
        return int(self._config.disk_refuse_free_bytes * RESUME_FREE_FACTOR)
