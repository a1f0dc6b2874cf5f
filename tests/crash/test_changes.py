"""The judges of resets, remade topics and retries find what is planted, and nothing in what is right."""

from __future__ import annotations

from typing import Any

import pytest

from tests.crash import remade, resets, retries
from tests.crash.books import Attempt, Outcome
from tests.crash.checker import Violation
from tests.crash.remade import Life, Remade, Shown
from tests.crash.resets import Move


def kinds(wrong: list[Violation]) -> list[str]:
    return [violation.kind for violation in wrong]


@pytest.mark.parametrize(
    ("stored", "moves", "expected"),
    [
        (None, [], []),
        (4, [Move(4, True, acked=True)], []),
        (8, [Move(4, True, acked=True), Move(8, False)], []),
        (4, [Move(4, True, acked=True), Move(8, False, acked=True)], []),  # commits may be a second behind
        (2, [Move(4, True, acked=True), Move(2, True)], []),  # nobody knows whether the last one was heard
        (4, [Move(4, True, acked=True), Move(2, True)], []),
        (6, [Move(6, False), Move(4, True, acked=True)], ["reset lost"]),
        (None, [Move(4, True, acked=True)], ["reset lost"]),
        (6, [Move(4, True, acked=True), Move(8, True, acked=True), Move(6, False)], []),
        (4, [Move(4, True, acked=True), Move(8, True, acked=True)], ["reset lost"]),
        (9, [Move(4, True, acked=True)], ["reset undone"]),
        (9, [], ["reset undone"]),
    ],
)
def test_resets(stored: int | None, moves: list[Move], expected: list[str]) -> None:
    assert kinds(resets.judge(0, stored, moves)) == expected


def life(**changes: Any) -> Life:
    attempts = {
        name: Attempt(name, ("remade", 0), 0.0, 1.0, outcome, offset)
        for name, outcome, offset in (("a", Outcome.ACKED, 10), ("b", Outcome.UNKNOWN, -1), ("c", Outcome.ACKED, 11))
    }
    return Life(**({"number": 3, "made": True, "attempts": attempts} | changes))


def shown(**changes: Any) -> dict[int, Shown]:
    values: dict[str, Any] = {"low": 10, "end": 12, "found": {10: "a", 11: "c"}, "fresh": 10, "committed": None}
    return {0: Shown(**(values | changes))}


@pytest.mark.parametrize(
    ("exists", "now", "what", "expected"),
    [
        (True, life(), shown(), []),
        (True, life(), shown(end=13, found={10: "a", 11: "c", 12: "b"}, committed=13), []),
        (True, life(), shown(found={10: "a"}), ["lost"]),
        (True, life(), shown(found={10: "c", 11: "a"}), ["lost", "lost"]),
        (True, life(deleting=True), shown(), []),
        (True, life(deleting=True), shown(found={10: "a"}), ["lost"]),
        (True, life(deleting=True, deleted=True), shown(), ["undeleted"]),
        (False, life(deleting=True, deleted=True), {}, []),
        (False, life(deleting=True), {}, []),
        (False, life(made=False), {}, []),
        (False, life(), {}, ["topic lost"]),
        (
            True,
            life(),
            shown(low=9, fresh=9, found={9: "old", 10: "a", 11: "c"}),
            ["risen from the dead", "numbered twice"],
        ),
        (True, life(), shown(found={10: "a", 11: "c", 12: "x"}), ["invented"]),
        (True, life(), shown(fresh=None), ["first is not first"]),
        (True, life(), shown(fresh=12), ["first is not first"]),
        (True, life(), shown(committed=9), ["offset of another life"]),
        (True, life(), shown(committed=13), ["offset of another life"]),
    ],
)
def test_remade_topics(exists: bool, now: Life, what: dict[int, Shown], expected: list[str]) -> None:
    assert kinds(remade.judge(exists, now, {"old": 1}, what, {0: 10})) == expected


def test_a_life_that_has_ended_leaves_its_ids_and_its_numbers() -> None:
    book = Remade(life=life())
    book.end_life()
    assert (book.old_ids, book.floors, book.count) == ({"a": 3, "b": 3, "c": 3}, {0: 12}, 1)
    book.end_life()
    assert book.count == 1
    assert book.begin_life().number == 4


@pytest.mark.parametrize(
    ("copies", "expected"),
    [
        ([], []),
        ([("acked", 1), ("unknown", 1)], []),
        ([("acked", 1), ("acked", 1)], ["retried twice"]),
        ([("acked", 2)], ["miscounted"]),
        ([("refused", 1)], ["ghost"]),
        ([("nobody", 1)], ["invented"]),
    ],
)
def test_retries(copies: list[tuple[str, int]], expected: list[str]) -> None:
    outcomes = {"acked": Outcome.ACKED, "unknown": Outcome.UNKNOWN, "refused": Outcome.REFUSED}
    assert kinds(retries.judge(copies, outcomes)) == expected
