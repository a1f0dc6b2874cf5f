"""The rules of an audit: each with its meaning, and the shape of its findings. docs/PIPELINE.md has the same in a table.

A *fault* should not exist: it decides the verdict. A *note* is worth a look, but may be intended, or may rest on
weak evidence (traces may be dropped, clocks differ).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Final

from kappamq.store.reader import QueueRange


class Kind(StrEnum):
    LOST = "lost"
    DUPLICATED = "duplicated"
    REORDERED = "reordered"
    LATE = "late"


@dataclass(frozen=True, slots=True)
class Rule:
    name: str
    kind: Kind
    fault: bool
    meaning: str


_RULES: Final = (
    Rule("missing", Kind.LOST, True, "Offsets of a queue that no record of the log has, though retention has not come that far."),
    Rule("damaged", Kind.LOST, True, "Bytes of the log that are no good record. The messages that lay there count as missing."),
    Rule("sent", Kind.LOST, True, "A trace says that the message was stored here, but the log has another one or none in its place."),
    Rule("undelivered", Kind.LOST, True, "A delayed message whose level has passed it, without a copy in the topic it was sent to."),
    Rule("expired", Kind.LOST, False, "Retention deleted messages that the group had not read."),
    Rule("beyond", Kind.LOST, False, "The group's offset lies beyond the end of the queue: the next messages will be passed over."),
    Rule("unseen", Kind.LOST, False, "The group traces and has committed past the message, but no trace shows that it got it."),
    Rule("id", Kind.DUPLICATED, True, "A topic holds several messages with the same id of their producer."),
    Rule("offset", Kind.DUPLICATED, True, "A queue holds several messages with the same offset."),
    Rule("consumed", Kind.DUPLICATED, True, "Traces show that a group consumed the message with success more than once."),
    Rule("born", Kind.REORDERED, True, "A message was born before the one of its producer that is in front of it in its queue."),
    Rule("split-key", Kind.REORDERED, False, "Messages of one sharding key lie in several queues: nobody keeps their order."),
    Rule("stored", Kind.LATE, False, "The message was stored long after it was born."),
    Rule("clock", Kind.LATE, False, "The message was stored before it was born: the producer's clock is ahead, or the broker's behind."),
    Rule("delivered", Kind.LATE, False, "A delayed or timed message was delivered long after it was due."),
    Rule("read", Kind.LATE, False, "By the trace, a group got the message long after it was stored."),
)  # fmt: skip
RULES: Final[Mapping[str, Rule]] = {rule.name: rule for rule in _RULES}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One finding, and its place, so that a person can look (`kappamq store inspect --log 1 --at LOG_OFFSET`)."""

    rule: str
    topic: str | None = None
    queue: int | None = None
    offset: int | None = None  # the first message that it is about
    last_offset: int | None = None  # and the last one
    log_offset: int | None = None
    message_id: str | None = None
    group: str | None = None
    messages: int = 1  # affected by it; 0: other findings count them
    ms: int | None = None  # how late, or how far back in time
    text: str = ""


FINDING_TYPES: Final = {
    "rule": "string", "topic": "string", "queue": "int", "offset": "bigint", "last_offset": "bigint", "log_offset": "bigint",
    "message_id": "string", "group": "string", "messages": "bigint", "ms": "bigint", "text": "string",
}  # fmt: skip
"""The fields of a finding as a Spark schema."""


@dataclass(slots=True)
class Tally:
    """The findings of a rule, in total and by topic."""

    rule: str
    findings: int = 0
    messages: int = 0
    by_topic: dict[str, int] = field(default_factory=dict)  # findings

    def add(self, topic: str | None, findings: int, messages: int) -> None:
        self.findings += findings
        self.messages += messages
        name = topic or ""
        self.by_topic[name] = self.by_topic.get(name, 0) + findings


@dataclass(slots=True)
class Found:
    """All findings of an audit: how many, and the first ones of each rule and topic."""

    tallies: dict[str, Tally] = field(default_factory=lambda: {name: Tally(name) for name in RULES})
    examples: list[Finding] = field(default_factory=list)

    def add(self, findings: Iterable[Finding], examples_max: int) -> None:
        """Add findings made by plain code: all of them."""
        kept: dict[tuple[str, str | None], int] = {}
        for finding in findings:
            self.tallies[finding.rule].add(finding.topic, 1, finding.messages)
            key = finding.rule, finding.topic
            kept[key] = kept.get(key, 0) + 1
            if kept[key] <= examples_max:
                self.examples.append(finding)

    def add_counted(self, rows: Iterable[tuple[Finding, int, int]]) -> None:
        """Add examples made by Spark, each with the number of findings, and of messages affected, of its rule in its topic."""
        seen: set[tuple[str, str | None]] = set()
        for finding, findings, messages in rows:
            key = finding.rule, finding.topic
            if key not in seen:
                seen.add(key)
                self.tallies[finding.rule].add(finding.topic, findings, messages)
            self.examples.append(finding)

    def count(self, kind: Kind, *, faults_only: bool = False) -> int:
        """Return the number of messages that findings of this kind affect."""
        return sum(
            tally.messages
            for tally in self.tallies.values()
            if RULES[tally.rule].kind is kind and (RULES[tally.rule].fault or not faults_only)
        )

    def has_faults(self, kind: Kind) -> bool:
        return any(
            tally.findings and RULES[name].fault and RULES[name].kind is kind for name, tally in self.tallies.items()
        )

    @property
    def faults(self) -> int:
        return sum(tally.findings for tally in self.tallies.values() if RULES[tally.rule].fault)

    @property
    def notes(self) -> int:
        return sum(tally.findings for tally in self.tallies.values() if not RULES[tally.rule].fault)

    def rows(self) -> list[dict[str, Any]]:
        """Return the examples as rows of a table: faults before notes, rule by rule, in the order of the log."""
        order = {name: number for number, name in enumerate(RULES)}
        ranked = sorted(
            self.examples,
            key=lambda one: (not RULES[one.rule].fault, order[one.rule], one.topic or "", one.log_offset or 0),
        )
        return [
            {"kind": str(RULES[one.rule].kind), "severity": "fault" if RULES[one.rule].fault else "note"} | asdict(one)
            for one in ranked
        ]


def missing_ends(expected: Iterable[QueueRange], seen: Mapping[tuple[str, int], tuple[int, int]]) -> list[Finding]:
    """Return messages that queue entries promise before the first or after the last one in the log.

    `seen`: (topic, queue) -> first offset, and the one after the last. The caller checks the offsets between these."""
    found = []
    for queue in expected:
        first, end = seen.get((queue.topic, queue.queue_id), (queue.max, queue.max))
        for start, stop in ((queue.min, min(first, queue.max)), (max(end, queue.min), queue.max)):
            if start < stop:
                place: dict[str, Any] = {"topic": queue.topic, "queue": queue.queue_id}
                text = "the queue has entries for them, the log has no record"
                found.append(
                    Finding(
                        rule="missing", offset=start, last_offset=stop - 1, messages=stop - start, text=text, **place
                    )
                )
    return found


def offset_findings(
    offsets: Mapping[tuple[str, str, int], int], ranges: Mapping[tuple[str, int], tuple[int, int]]
) -> list[Finding]:
    """Return what groups have lost to retention, or will skip. `ranges`: (topic, queue) -> [min, end) that can be read."""
    found = []
    for (group, topic, queue), at in sorted(offsets.items()):
        if (topic, queue) not in ranges or at < 0:
            continue
        low, end = ranges[topic, queue]
        place: dict[str, Any] = {"topic": topic, "queue": queue, "group": group}
        if at < low:
            text = f"the group had read up to {at}, the queue begins at {low}"
            found.append(Finding(rule="expired", offset=at, last_offset=low - 1, messages=low - at, text=text, **place))
        elif at > end:
            text = f"the group is at {at}, the queue ends at {end}"
            found.append(Finding(rule="beyond", offset=end, last_offset=at - 1, messages=at - end, text=text, **place))
    return found
