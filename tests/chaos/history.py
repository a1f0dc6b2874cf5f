"""What clients know of a group, and whether what the group holds agrees with it. No I/O.

Every message carries an id of its own in its body. So a log can be judged directly: an acknowledged message is there (lost), nothing is
there that nobody sent (invented), nothing is there twice unless its client may have sent it twice (duplicate), what was answered before
another one was begun comes before it (order), a batch is whole, an offset never holds another message than before (changed), a timer
comes and not early, and a transaction ends as it was decided, once.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import count

from tests.crash.books import Outcome
from tests.crash.checker import Violation

Place = tuple[str, int, int]
"""Topic, queue, offset."""

CALM_S = 10.0
"""A client may still be trying again what it began while something was broken, for so long behind its repair."""


@dataclass(slots=True, eq=False)
class Sent:
    """A message, and what is known of it. `began` and `ended`: monotonic seconds around the whole send, retries included."""

    id: str
    topic: str
    began: float
    ended: float = float("inf")
    outcome: Outcome = Outcome.UNKNOWN
    place: tuple[int, int] | None = None  # queue and offset, as the answer said; None for what is delivered later
    batch: str = ""
    due_ms: int = 0  # not to be delivered before this
    wanted: bool = True  # False: a transaction that was rolled back
    late: bool = False  # it comes some time after its acknowledgement (timers, transactions)


@dataclass(frozen=True, slots=True)
class Found:
    """A message in a queue."""

    id: str
    offset: int
    stored_ms: int


@dataclass(slots=True)
class History:
    sent: dict[str, Sent] = field(default_factory=dict)
    at: dict[tuple[str, int], dict[int, str]] = field(default_factory=dict)
    places: dict[str, list[Place]] = field(default_factory=dict)
    ends: dict[tuple[str, int], int] = field(default_factory=dict)  # of queues, as far as answers have told
    acks: list[float] = field(default_factory=list)  # wall-clock seconds
    troubles: list[list[float]] = field(default_factory=list)  # from, to; monotonic seconds
    commits: dict[tuple[str, int], list[tuple[float, int]]] = field(default_factory=dict)  # acknowledged: when, offset
    asked: dict[tuple[str, int], int] = field(default_factory=dict)  # the largest offset that anybody asked to commit
    problems: list[Violation] = field(default_factory=list)  # seen by clients at once
    _numbers: count[int] = field(default_factory=count)

    # -- what clients enter ------------------------------------------------------------------------------------------------

    def begin(self, kind: str, topic: str, batch: str = "", **more: object) -> Sent:
        """Entered before the request leaves: whatever turns up later has been asked for."""
        sent = Sent(f"{kind}:{next(self._numbers)}", topic, time.monotonic(), batch=batch, **more)  # type: ignore[arg-type]
        self.sent[sent.id] = sent
        return sent

    def acked(self, sent: Sent, queue: int = -1, offset: int = -1) -> None:
        sent.ended, sent.outcome = time.monotonic(), Outcome.ACKED
        if not sent.late:
            sent.place = (queue, offset)
            self.ends[sent.topic, queue] = max(self.ends.get((sent.topic, queue), 0), offset + 1)
        self.acks.append(time.time())

    def trouble_begins(self) -> None:
        self.troubles.append([time.monotonic(), float("inf")])

    def trouble_ends(self) -> None:
        self.troubles[-1][1] = time.monotonic() + CALM_S

    def commit_asked(self, queue: tuple[str, int], offset: int) -> None:
        self.asked[queue] = max(self.asked.get(queue, 0), offset)

    def committed(self, queue: tuple[str, int], offset: int) -> None:
        self.commits.setdefault(queue, []).append((time.monotonic(), offset))

    @property
    def count_acked(self) -> int:
        return sum(sent.outcome is Outcome.ACKED for sent in self.sent.values())

    # -- what is read ------------------------------------------------------------------------------------------------------

    def note(self, topic: str, queue: int, found: Iterable[Found]) -> list[Violation]:
        """Enter what was read from one queue, in order."""
        wrong: list[Violation] = []
        known = self.at.setdefault((topic, queue), {})
        expected: int | None = None
        for one in found:
            where = f"{topic}/{queue} {one.offset}"
            if expected is not None and one.offset != expected:
                wrong.append(Violation("gap", f"{where}: offset {expected} should come first"))
            expected = one.offset + 1
            before = known.get(one.offset)
            if before is not None:
                if before != one.id:
                    wrong.append(Violation("changed", f"{where} was {before} and is {one.id}"))
                continue
            known[one.offset] = one.id
            sent = self.sent.get(one.id)
            if sent is None or sent.topic != topic:
                wrong.append(Violation("invented", f"{where} is {one.id!r}, which nobody sent to it"))
                continue
            self.places.setdefault(one.id, []).append((topic, queue, one.offset))
            if one.stored_ms < sent.due_ms:
                wrong.append(Violation("early", f"{where}: {one.id} came {sent.due_ms - one.stored_ms} ms early"))
        return wrong

    def judge(self, *, last: bool = False, read: float = float("inf")) -> list[Violation]:
        """`last`: whatever takes its time has had it. `read`: when reading began; what was answered later need not be there."""
        wrong = self.problems[:]
        for sent in self.sent.values():
            places = self.places.get(sent.id, [])
            acked = sent.outcome is Outcome.ACKED and sent.ended < read
            if acked and sent.wanted and not places and (last or not sent.late):
                wrong.append(Violation("lost", f"{sent.id} of {sent.topic} was acknowledged and is not there"))
            if not sent.wanted and places:
                wrong.append(Violation("decided twice", f"{sent.id} was rolled back and is at {places}"))
            if len(places) > 1 and not self._may_be_twice(sent):
                wrong.append(Violation("duplicate", f"{sent.id} is at {places}"))
            if acked and sent.place is not None and places and (sent.topic, *sent.place) not in places:
                wrong.append(Violation("moved", f"{sent.id} was acknowledged at {sent.place} and is at {places}"))
        return wrong + self._order() + self._torn()

    def missing(self) -> list[Sent]:
        """What was promised for later and has not come yet."""
        return [
            sent for sent in self.sent.values()
            if sent.late and sent.wanted and sent.outcome is Outcome.ACKED and sent.id not in self.places
        ]  # fmt: skip

    def _may_be_twice(self, sent: Sent) -> bool:
        # What the broker itself copies (timers, transactions) notes its source: only a client that sends again makes two.
        return any(sent.began < end and begin < sent.ended for begin, end in self.troubles)

    def _order(self) -> list[Violation]:
        wrong: list[Violation] = []
        for queue, at in self.at.items():
            latest: Sent | None = None  # of all with a lower offset, the one that began last
            for offset in sorted(at):
                sent = self.sent.get(at[offset])
                if sent is None or sent.late:
                    continue
                if latest is not None and latest.began > sent.ended:
                    wrong.append(
                        Violation("order", f"{queue}: {latest.id} began after {sent.id} was answered and is before it")
                    )
                if latest is None or sent.began > latest.began:
                    latest = sent
        return wrong

    def _torn(self) -> list[Violation]:
        """Members of a batch lie one behind the other, each as often as the others."""
        batches: dict[str, list[Sent]] = {}
        for sent in self.sent.values():
            if sent.batch:
                batches.setdefault(sent.batch, []).append(sent)
        wrong: list[Violation] = []
        for name, members in batches.items():
            firsts = self.places.get(members[0].id, [])
            for number, member in enumerate(members):
                expected = [(topic, queue, offset + number) for topic, queue, offset in firsts]
                if self.places.get(member.id, []) != expected:
                    wrong.append(Violation("torn", f"{name}: {member.id} is at {self.places.get(member.id)}"))
        return wrong

    def judge_offset(self, queue: tuple[str, int], now: int, broke: float, kept_s: float) -> list[Violation]:
        """The committed offset of the consumers' group, read behind a fault at `broke`."""
        # Offsets go to the log about once a second; what was committed just before a death may go back by that much.
        kept = [offset for when, offset in self.commits.get(queue, []) if when < broke - kept_s]
        wrong: list[Violation] = []
        if kept and now < max(kept):
            wrong.append(Violation("offset went back", f"{queue}: {now} after {max(kept)} had been committed"))
        if now > self.asked.get(queue, 0):
            wrong.append(Violation("offset invented", f"{queue}: {now}, asked for was {self.asked.get(queue, 0)}"))
        return wrong
