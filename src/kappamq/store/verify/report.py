"""What `verify` found: counts, and the first problems in words."""

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
    """The entry of a message as the log says it should be."""

    topic: str
    queue_id: int
    number: int
    entry: bytes


@dataclass(frozen=True, slots=True)
class BytesFix:
    """Bytes of a file that follow from something else: what is there, and what should be."""

    path: Path
    position: int
    wrong: bytes
    right: bytes


@dataclass(frozen=True, slots=True)
class WriteAgain:
    """A file that a running broker has in memory."""

    name: str


Fix = EntryFix | BytesFix | WriteAgain


@dataclass(frozen=True, slots=True)
class Problem:
    kind: Kind
    place: str  # a file, or topic/queue
    offset: int  # in the log; in the queue for a queue's problem
    meaning: str
    fix: Fix | None = None  # how a running broker repairs it

    def __str__(self) -> str:
        return f"{self.kind} {self.place} at {self.offset}: {self.meaning}"


@dataclass(slots=True)
class Report:
    root: Path
    problems_max: int
    log_min: int = 0
    log_end: int = 0  # one past the last good record
    records: int = 0
    record_bytes: int = 0
    damaged_bytes: int = 0
    torn_tail: str = ""  # what lies behind the last good record, if anything: recovery cuts it off
    queues: int = 0
    queue_entries: int = 0
    undispatched: int = 0  # good records that queues do not know yet, and need not: recovery enters them
    forgotten: int = 0  # records whose queue is gone: their topic was deleted
    index_files: int = 0
    index_entries: int = 0
    unindexed: int = 0  # the same for records with keys and the index
    first_ms: int = 0
    last_ms: int = 0
    problem_count: int = 0
    problems: list[Problem] = field(default_factory=list)  # the first `problems_max` of them
    left_out: int = 0  # of the others, those that could be repaired

    @property
    def ok(self) -> bool:
        return self.problem_count == 0

    def add_damage(self, damage: Damage) -> None:
        """Bytes of the log that are no records."""
        self.damaged_bytes += damage.stop - damage.start
        self.add(
            Kind.LOG,
            "commitlog",
            damage.start,
            f"{damage.stop - damage.start} bytes are no records: {damage.why}",
            None if damage.end_mark is None else BytesFix(*damage.end_mark),
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
