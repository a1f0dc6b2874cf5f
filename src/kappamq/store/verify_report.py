"""What `verify` found: counts, and the first problems in words."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from pathlib import Path


class Kind(enum.StrEnum):
    LOG = "log"
    QUEUE = "queue"
    INDEX = "index"
    CONFIG = "config"


@dataclass(frozen=True, slots=True)
class Problem:
    kind: Kind
    place: str  # a file, or topic/queue
    offset: int  # in the log; in the queue for a queue's problem
    meaning: str

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

    @property
    def ok(self) -> bool:
        return self.problem_count == 0

    def add(self, kind: Kind, place: str, offset: int, meaning: str) -> None:
        self.problem_count += 1
        if len(self.problems) < self.problems_max:
            self.problems.append(Problem(kind, place, offset, meaning))
