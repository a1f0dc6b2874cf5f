"""The checkers hold brokers to what they say: here they are told what must not be."""

from __future__ import annotations

from typing import cast

import pytest

from kappamq.protocol.records.record import Record
from kappamq.sim.brokers.checkers import Checker
from kappamq.sim.checkers import Violation


def record(number: int, body: bytes, at: int) -> Record:
    values = {"topic": "tea", "queue_id": 0, "queue_offset": number, "body": body, "log_offset": at}
    return cast(Record, type("Some", (), values))


def test_what_is_acknowledged_is_confirmed() -> None:
    checker = Checker(1 << 16)
    checker.sends("tea", [b"a", b"b"])
    checker._note(record(0, b"a", 100))
    checker.acknowledged("tea", 0, 0, [b"a"], [100])
    for body, at in ((b"a", 101), (b"b", 200)):
        with pytest.raises(Violation, match="was acknowledged at"):
            checker.acknowledged("tea", 0, 1, [body], [at])
    checker.all_is_there()


def test_a_message_is_there_once_and_nobody_invents_one() -> None:
    checker = Checker(1 << 16)
    checker.sends("tea", [b"a"])
    checker._note(record(0, b"a", 100))
    with pytest.raises(Violation, match="there twice"):
        checker._note(record(1, b"a", 200))
    with pytest.raises(Violation, match="two messages have number 0"):
        checker._note(record(0, b"c", 300))
    checker = Checker(1 << 16)
    checker._note(record(0, b"who?", 100))
    with pytest.raises(Violation, match="nobody has sent"):
        checker.all_is_there()
    checker = Checker(1 << 16)
    checker.sends("tea", [b"a"])
    checker._note(record(1, b"a", 100))
    with pytest.raises(Violation, match="are missing"):
        checker.all_is_there()


def test_a_lock_has_one_owner() -> None:
    checker = Checker(1 << 16)
    checker.locked("q", "x", asked_at=0, until=100, now=1)
    checker.locked("q", "x", asked_at=50, until=150, now=60)
    with pytest.raises(Violation, match="relies on it"):
        checker.locked("q", "y", asked_at=100, until=200, now=120)
    checker.unlocked("q", "x", now=130)
    checker.locked("q", "x", asked_at=120, until=220, now=140)  # asked before it was given back: it does not count
    checker.locked("q", "y", asked_at=135, until=235, now=145)
