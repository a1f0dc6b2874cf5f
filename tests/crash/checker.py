"""The queue checker: does what the broker holds agree with what it told its clients? Pure, linear in the number of messages.

With unique ids a log can be judged directly: an acknowledged message is where its answer said (lost, moved), nothing is there
that nobody sent (invented) or that was refused (ghost), nothing is there twice, offsets have no gaps, order in a queue follows
real time, a batch is whole or absent, and what was once read at an offset is there for ever (changed).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tests.crash.books import Attempt, Commit, Outcome, Queue


@dataclass(frozen=True, slots=True)
class Found:
    """A message as a consumer sees it."""

    id: str
    offset: int
    log_offset: int


@dataclass(frozen=True, slots=True)
class Violation:
    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


@dataclass(slots=True)
class Seen:
    """What was read in the course of a run, over all restarts."""

    at: dict[Queue, dict[int, str]] = field(default_factory=dict)
    where: dict[str, tuple[Queue, int]] = field(default_factory=dict)
    log_end: int = 0  # beginning of the last record seen

    def forget(self, queue: Queue, end: int) -> None:
        """A power cut that may lose messages has ended this queue at `end`: later offsets will be used again."""
        for offset in [offset for offset in self.at.get(queue, {}) if offset >= end]:
            del self.where[self.at[queue].pop(offset)]


def note(seen: Seen, attempts: Mapping[str, Attempt], queue: Queue, found: Iterable[Found]) -> list[Violation]:
    """Enter what was read from one queue, in order; what contradicts the books or what was read before is returned."""
    wrong: list[Violation] = []
    known = seen.at.setdefault(queue, {})
    expected: int | None = None
    for one in found:
        if expected is not None and one.offset != expected:
            wrong.append(Violation("gap", f"{queue} goes on with offset {one.offset} where {expected} should be"))
        expected = one.offset + 1
        attempt = attempts.get(one.id)
        if attempt is None:
            wrong.append(Violation("invented", f"{one.id!r} at {queue} {one.offset} was never sent"))
            continue
        if attempt.queue != queue:
            wrong.append(Violation("misplaced", f"{one.id} was sent to {attempt.queue} and is in {queue}"))
        if attempt.outcome is Outcome.REFUSED:
            wrong.append(Violation("ghost", f"{one.id} was refused and is at {queue} {one.offset}"))
        if attempt.outcome is Outcome.ACKED and attempt.offset != one.offset:
            wrong.append(
                Violation("moved", f"{one.id} was acknowledged at {queue} {attempt.offset} and is at {one.offset}")
            )
        before = known.get(one.offset)
        if before is not None and before != one.id:
            wrong.append(Violation("changed", f"{queue} {one.offset} was {before} and is {one.id}"))
        place = seen.where.get(one.id)
        if place is not None and place != (queue, one.offset):
            wrong.append(Violation("duplicate", f"{one.id} is at {place} and at {(queue, one.offset)}"))
        known[one.offset] = one.id
        seen.where[one.id] = (queue, one.offset)
        seen.log_end = max(seen.log_end, one.log_offset)
    return wrong


def missing(seen: Seen, attempts: Iterable[Attempt]) -> list[Attempt]:
    """Acknowledged, and not there."""
    return [
        attempt
        for attempt in attempts
        if attempt.outcome is Outcome.ACKED and not attempt.given_up and attempt.id not in seen.where
    ]


def lost(gone: Iterable[Attempt], died: float) -> list[Violation]:
    return [
        Violation(
            "lost",
            f"{attempt.id} was acknowledged at {attempt.queue} {attempt.offset}, log offset {attempt.log_offset}, "
            f"{(died - attempt.ended) * 1000:.1f} ms before the end, and is gone",
        )
        for attempt in gone
    ]


def not_a_suffix(seen: Seen, gone: Iterable[Attempt]) -> list[Violation]:
    """A power cut may take the end of the log in async mode, but nothing from its middle."""
    return [
        Violation("hole", f"{attempt.id} at log offset {attempt.log_offset} is gone, but {seen.log_end} is there")
        for attempt in gone
        if attempt.log_offset < seen.log_end
    ]


def order(seen: Seen, attempts: Mapping[str, Attempt]) -> list[Violation]:
    """Whoever was answered before another one asked comes first in the queue."""
    wrong: list[Violation] = []
    for queue, at in seen.at.items():
        latest: Attempt | None = None  # of all with a lower offset, the one that began last
        for offset in sorted(at):
            attempt = attempts.get(at[offset])
            if attempt is None:
                continue
            if latest is not None and latest.began > attempt.ended:
                wrong.append(
                    Violation("order", f"{queue}: {latest.id} began after {attempt.id} ended and is before it")
                )
            if latest is None or attempt.began > latest.began:
                latest = attempt
    return wrong


def torn(seen: Seen, attempts: Iterable[Attempt]) -> list[Violation]:
    """A batch is there as a whole, in one piece, or not at all."""
    batches: dict[str, list[Attempt]] = {}
    for attempt in attempts:
        if attempt.batch:
            batches.setdefault(attempt.batch, []).append(attempt)
    wrong: list[Violation] = []
    for name, members in batches.items():
        places = [seen.where[member.id] for member in members if member.id in seen.where]
        if not places:
            continue
        queue, first = places[0]
        if places != [(queue, first + n) for n in range(len(members))]:
            wrong.append(
                Violation("torn", f"batch {name} of {len(members)} is at {places[:3]}... ({len(places)} found)")
            )
    return wrong


def regressed(
    queue: Queue, now: int | None, commits: list[Commit], *, floor: int, kept_before: float, known: int, end: int
) -> list[Violation]:
    """A consumer offset read after a restart: at least `floor` and what was committed before `kept_before`, at most what was
    known before (`known`) or asked for since, and never behind the queue's end."""
    value = now or 0  # a group that has committed nothing begins at 0
    least = max([floor, *(commit.offset for commit in commits if commit.acked and commit.at < kept_before)])
    most = max([known, *(commit.offset for commit in commits)])
    wrong: list[Violation] = []
    if value < min(least, end):
        wrong.append(Violation("offset regressed", f"{queue}: {value} after {least} had been committed"))
    if value > most:
        wrong.append(Violation("offset invented", f"{queue}: {value}, but nobody committed more than {most}"))
    if value > end:
        wrong.append(Violation("offset beyond the end", f"{queue}: {value}, but the queue ends at {end}"))
    return wrong
