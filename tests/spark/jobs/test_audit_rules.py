"""What counts as a finding where plain code decides, and how findings are counted."""

from __future__ import annotations

from kappamq.spark.jobs.audit_rules import RULES, Finding, Found, Kind, missing_ends, offset_findings
from kappamq.store.reader import QueueRange


def test_late_is_never_a_fault_and_the_others_have_some() -> None:
    assert not [rule for rule in RULES.values() if rule.kind is Kind.LATE and rule.fault]
    for kind in (Kind.LOST, Kind.DUPLICATED, Kind.REORDERED):
        assert [rule for rule in RULES.values() if rule.kind is kind and rule.fault]


def test_what_a_queue_promises_and_the_log_has_not() -> None:
    queue = QueueRange("tea", 0, 10, 20)
    key = ("tea", 0)
    assert missing_ends([queue], {key: (10, 20)}) == []
    assert missing_ends([queue], {key: (3, 25)}) == [], "the log may have more: deleted, or not yet entered"
    begin, end = missing_ends([queue], {key: (12, 15)})
    assert (begin.offset, begin.last_offset, begin.messages) == (10, 11, 2)
    assert (end.offset, end.last_offset, end.messages) == (15, 19, 5)
    (everything,) = missing_ends([queue], {})
    assert (everything.offset, everything.last_offset) == (10, 19)
    assert missing_ends([QueueRange("tea", 0, 7, 7)], {}) == []
    (behind,) = missing_ends([queue], {key: (0, 5)})
    assert (behind.offset, behind.last_offset, behind.messages) == (10, 19, 10), "what it has was deleted long ago"


def test_offsets_outside_of_their_queue() -> None:
    ranges = {("tea", 0): (10, 20)}
    offsets = {
        ("good", "tea", 0): 20,
        ("slow", "tea", 0): 4,
        ("ahead", "tea", 0): 23,
        ("new", "tea", 0): -1,
        ("x", "gone", 0): 5,
    }
    ahead, slow = offset_findings(offsets, ranges)
    assert (slow.rule, slow.group, slow.messages, slow.offset) == ("expired", "slow", 6, 4)
    assert (ahead.rule, ahead.group, ahead.messages, ahead.last_offset) == ("beyond", "ahead", 3, 22)


def test_counting() -> None:
    found = Found()
    found.add([Finding(rule="missing", topic="tea", offset=n, messages=5) for n in range(10)], examples_max=3)
    found.add_counted([(Finding(rule="id", topic="tea", log_offset=n), 70, 80) for n in (9, 4)])
    found.add_counted([(Finding(rule="id", topic="coffee"), 1, 1), (Finding(rule="stored", topic="tea", ms=9), 4, 4)])
    assert found.count(Kind.LOST) == 50
    assert found.tallies["missing"].by_topic == {"tea": 10}
    assert (found.tallies["id"].findings, found.tallies["id"].messages) == (71, 81)
    assert (found.faults, found.notes) == (81, 4)
    assert found.count(Kind.LATE) == 4
    assert found.count(Kind.LATE, faults_only=True) == 0
    rows = found.rows()
    assert [row["rule"] for row in rows] == ["missing"] * 3 + ["id"] * 3 + ["stored"]
    assert [row["log_offset"] for row in rows[3:6]] == [None, 4, 9]
    assert (rows[0]["kind"], rows[0]["severity"], rows[-1]["severity"]) == ("lost", "fault", "note")
