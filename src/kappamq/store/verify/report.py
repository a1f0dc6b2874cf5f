"""The result of `verify`: counts, and a description of the first problems."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from pathlib import Path

from kappamq.store.log.log_reader import Damage


class Kind(enum.StrEnum):
    LOG = "log"
    QUEUE = "queue"
    INDEX = "index"
    CONFIG = "config"
    TIMER = "timer"


@dataclass(frozen=True, slots=True)
class EntryFix:
    """The queue entry of a message as it should be according to the log."""

    topic: str
    queue_id: int
    number: int
    entry: bytes


@dataclass(frozen=True, slots=True)
class BytesFix:
    """Bytes of a file that can be derived from other data: the wrong ones, and the right ones."""

    path: Path
    position: int
    wrong: bytes
    right: bytes


@dataclass(frozen=True, slots=True)
class WriteAgain:
    """A file whose content a running broker has in memory and can write again."""

    name: str


@dataclass(frozen=True, slots=True)
class CopyFix:
    """Bytes of the log that only another copy of it can give."""

    start: int
    stop: int


Fix = EntryFix | BytesFix | WriteAgain | CopyFix


@dataclass(frozen=True, slots=True)
class Problem:
    kind: Kind
    place: str  # a file, or topic/queue
    offset: int  # in the log; for a queue's problem, in the queue
    meaning: str
    fix: Fix | None = None  # how a running broker repairs it

    def __str__(self) -> str:
        return f"{self.kind} {self.place} at {self.offset}: {self.meaning}"


@dataclass(slots=True)
class Report:
    root: Path
    problems_max: int
    log_min: int = 0
    log_end: int = 0  # one past the last valid record
    records: int = 0
    record_bytes: int = 0
    damaged_bytes: int = 0
    torn_tail: str = ""  # what follows the last valid record, if anything; recovery truncates it
    queues: int = 0
    queue_entries: int = 0
    undispatched: int = 0  # valid records that have no queue entry yet; recovery adds them
    forgotten: int = 0  # records of deleted topics
    index_files: int = 0
    index_entries: int = 0
    unindexed: int = 0  # valid records with keys that are not in the index yet; recovery adds them
    first_ms: int = 0
    last_ms: int = 0
    problem_count: int = 0
    problems: list[Problem] = field(default_factory=list)  # the first `problems_max` of them
    left_out: int = 0  # how many of the remaining problems could be repaired

    @property
    def ok(self) -> bool:
        return self.problem_count == 0

    def add_damage(self, damage: Damage) -> None:
        """Report a range of the log that contains no valid records."""
        self.damaged_bytes += damage.stop - damage.start
        self.add(
            Kind.LOG,
            "commitlog",
            damage.start,
            f"{damage.stop - damage.start} bytes are not valid records: {damage.why}",
            CopyFix(damage.start, damage.stop) if damage.end_mark is None else BytesFix(*damage.end_mark),
        )

    def add(self, kind: Kind, place: str, offset: int, meaning: str, fix: Fix | None = None) -> None:
        self.problem_count += 1
        if len(self.problems) < self.problems_max:
            self.problems.append(Problem(kind, place, offset, meaning, fix))
        elif fix is not None:
            self.left_out += 1

    @property
    def is_half_full(self) -> bool:
        return len(self.problems) >= self.problems_max // 2
