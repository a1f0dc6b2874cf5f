"""What clients know: every attempt to send, how it ended and when; every committed offset. Kept outside the broker."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from enum import Enum
from itertools import count

Queue = tuple[str, int]


class Outcome(Enum):
    ACKED = "acknowledged"
    UNKNOWN = "unknown"  # no answer, or one that leaves it open (flush timeout): stored or not, both are right
    REFUSED = "refused"  # the answer says that it is not stored


@dataclass(slots=True, eq=False)
class Attempt:
    """One message, sent once. `began` and `ended` are monotonic seconds around the request."""

    id: str
    queue: Queue
    began: float
    ended: float = float("inf")
    outcome: Outcome = Outcome.UNKNOWN
    offset: int = -1  # in its queue, if acknowledged
    log_offset: int = -1
    batch: str = ""  # members of one batch share it
    given_up: bool = False  # lost in a power cut that may lose it; its offset may be used again


@dataclass(slots=True)
class Commit:
    """A consumer group's offset of a queue, by time. `acked` only where the broker has answered."""

    at: float
    offset: int
    acked: bool


@dataclass(slots=True)
class Books:
    """Shared by all client threads of a run."""

    attempts: dict[str, Attempt] = field(default_factory=dict)
    commits: dict[Queue, list[Commit]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _numbers: count[int] = field(default_factory=count)

    def new_id(self, who: str) -> str:
        return f"{who}:{next(self._numbers)}"

    def open(self, attempts: list[Attempt]) -> None:
        """Entered before the request leaves: whatever turns up later has been asked for."""
        with self._lock:
            for attempt in attempts:
                self.attempts[attempt.id] = attempt

    def commit(self, queue: Queue, commit: Commit) -> None:
        with self._lock:
            self.commits.setdefault(queue, []).append(commit)

    def acked(self) -> list[Attempt]:
        with self._lock:
            return [attempt for attempt in self.attempts.values() if attempt.outcome is Outcome.ACKED]

    def forget_what_came_after(self, moment: float) -> int:
        """The world ended at `moment`: answers that came later are not promises any more. How many there were."""
        late = 0
        for attempt in self.acked():
            if attempt.ended > moment:
                attempt.outcome = Outcome.UNKNOWN
                late += 1
        return late
