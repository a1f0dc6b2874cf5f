"""What scenarios share: how big a run is, where it may write, rounds that interleave, and figures with their goals."""

from __future__ import annotations

import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from benchmarks.servers import Broker, broker, nameserver

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

GIB = 1 << 30
MEMORY = Path("/dev/shm")
WARM = "warm pages (tmpfs)"
COLD = "cold pages (disk)"
NOISY = 0.30
"""A server that waited for its core longer than this part of its time was disturbed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much is done. Ratios are medians over `runs` rounds; each counts `seconds` behind `warmup`."""

    runs: int
    seconds: float
    warmup: float
    queues: int
    queue_topics: int
    backlog: int  # messages
    idle_s: float
    groups: int
    group_messages: int  # that each of them reads
    timers: int  # that wait
    table_rows: int  # of 100 B, that Spark reads; larger ones: fewer
    hostile: str = ""  # part of the names of the hostile requests that are sent
    segment_bytes: int = 2_000_000_000  # so large that preparing the next log file falls behind the measured window


# Toy: the test run, which only shows that every scenario still works. Quick: under two minutes, for a first look.
TOY = Size(
    runs=1,
    seconds=0.2,
    warmup=0.05,
    queues=160,
    queue_topics=20,
    backlog=40_000,
    idle_s=0.5,
    groups=20,
    group_messages=640,
    timers=2_000,
    table_rows=4_000,
    hostile="UNLOCK_BATCH_MQ",
    segment_bytes=64 << 20,
)
QUICK = Size(
    runs=1,
    seconds=1.0,
    warmup=0.2,
    queues=4_000,
    queue_topics=500,
    backlog=1_000_000,
    idle_s=2.0,
    groups=200,
    group_messages=1_000,
    timers=100_000,
    table_rows=500_000,
)
FULL = Size(
    runs=5,
    seconds=2.0,
    warmup=0.3,
    queues=20_000,
    queue_topics=2_500,
    backlog=50_000_000,
    idle_s=5.0,
    groups=1_000,
    group_messages=2_000,
    timers=1_000_000,
    table_rows=2_000_000,
)
SIZES = {"toy": TOY, "quick": QUICK, "full": FULL}


@dataclass(slots=True)
class Figure:
    """One number, the samples it is the median of, and what the issue asks of it."""

    scenario: str
    what: str
    value: float | None  # None: could not be measured here, `note` says why
    unit: str = ""
    at_least: float | None = None
    at_most: float | None = None
    samples: list[float] = field(default_factory=list)
    note: str = ""

    @classmethod
    def median(cls, scenario: str, what: str, samples: list[float], unit: str = "", **rest: object) -> Figure:
        return cls(scenario, what, statistics.median(samples), unit, samples=samples, **rest)  # type: ignore[arg-type]

    @property
    def goal(self) -> str:
        if self.at_least is not None:
            return f">= {self.at_least:g}"
        return f"<= {self.at_most:g}" if self.at_most is not None else ""

    @property
    def holds(self) -> bool | None:
        """None where there is no goal or no number."""
        if self.value is None or (self.at_least is None and self.at_most is None):
            return None
        if self.at_least is not None:
            return self.value >= self.at_least
        assert self.at_most is not None
        return self.value <= self.at_most


class Bench:
    """Handed to every scenario."""

    def __init__(
        self,
        size: Size,
        *,
        disk: Path | None = None,
        memory: Path | None = None,
        quiet: bool = False,
        kernel: str = "auto",
    ) -> None:
        self.size = size
        self.kernel = kernel
        self.disk = disk or Path(tempfile.gettempdir())
        self.memory = memory or (MEMORY if MEMORY.is_dir() else self.disk)
        self._quiet = quiet

    def say(self, text: str) -> None:
        if not self._quiet:
            print(f"  {text}", file=sys.stderr, flush=True)

    @contextmanager
    def folder(self, *, on_disk: bool) -> Iterator[Path]:
        """A folder that is gone afterwards, in memory (its pages are resident before the first write) or on disk."""
        path = Path(tempfile.mkdtemp(prefix="kappamq-bench-", dir=self.disk if on_disk else self.memory))
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)

    @contextmanager
    def nameserver(self) -> Iterator[str]:
        with self.folder(on_disk=True) as home, nameserver(home) as address:
            yield address

    @contextmanager
    def broker(
        self,
        names: str,
        *,
        on_disk: bool = False,
        kernel: str | None = None,
        properties: Mapping[str, object] | None = None,
    ) -> Iterator[Broker]:
        """A fresh broker on a fresh folder; both are gone afterwards."""
        with (
            self.folder(on_disk=on_disk) as home,
            broker(home, names, kernel=kernel or self.kernel, properties=properties) as server,
        ):
            yield server

    def rounds(self, what: Sequence[K], measure: Callable[[K], T], times: int | None = None) -> list[dict[K, T]]:
        """Measure each in turn, again and again; every other round backwards, so that order favours nobody."""
        results: list[dict[K, T]] = []
        for number in range(times or self.size.runs):
            results.append({one: measure(one) for one in (what if number % 2 == 0 else what[::-1])})
        return results


def native_is_built() -> bool:
    from kappamq import native

    try:
        native.load("native")
    except ImportError:
        return False
    return True


def noise_note(parts: list[float]) -> str:
    """A remark where others used the server's core during the measurement."""
    noisy = sum(part >= NOISY for part in parts)
    return f"noisy: {noisy} of {len(parts)} runs" if noisy else ""
