"""A checker that finds nothing proves nothing: each kind of fault is planted here, and only that fault is reported."""

from __future__ import annotations

import pytest

from tests.crash import checker
from tests.crash.books import Attempt, Books, Commit, Outcome
from tests.crash.checker import Found, Seen

QUEUE = ("t", 0)


def attempt(name: str, offset: int, **given: object) -> Attempt:
    """Acknowledged at `offset`, sent one second after the one before."""
    values: dict[str, object] = {"began": float(offset), "ended": offset + 0.5, "outcome": Outcome.ACKED}
    return Attempt(name, QUEUE, offset=offset, log_offset=100 * offset, **{**values, **given})  # type: ignore[arg-type]


def world(count: int = 6) -> tuple[Seen, dict[str, Attempt], list[Found]]:
    attempts = {f"m{n}": attempt(f"m{n}", n) for n in range(count)}
    return Seen(), attempts, [Found(f"m{n}", n, 100 * n) for n in range(count)]


def kinds(violations: list[checker.Violation]) -> set[str]:
    return {violation.kind for violation in violations}


def judge(seen: Seen, attempts: dict[str, Attempt], found: list[Found]) -> set[str]:
    wrong = checker.note(seen, attempts, QUEUE, found)
    wrong += checker.lost(checker.missing(seen, attempts.values()), 10.0)
    wrong += checker.order(seen, attempts)
    return kinds(wrong + checker.torn(seen, attempts.values()))


def test_a_good_log_passes_however_often_it_is_read() -> None:
    seen, attempts, found = world()
    assert judge(seen, attempts, found) == set()
    assert judge(seen, attempts, found[3:]) == set()


def test_a_message_without_an_answer_may_be_there_or_not() -> None:
    seen, attempts, found = world()
    attempts["m5"].outcome = Outcome.UNKNOWN
    attempts["away"] = attempt("away", 6, outcome=Outcome.UNKNOWN)
    assert judge(seen, attempts, found) == set()


def test_lost() -> None:
    seen, attempts, found = world()
    assert judge(seen, attempts, found[:5]) == {"lost"}


def test_invented() -> None:
    seen, attempts, found = world()
    assert judge(seen, attempts, [*found, Found("who?", 6, 600)]) == {"invented"}


def test_refused_but_there() -> None:
    seen, attempts, found = world()
    attempts["m5"].outcome = Outcome.REFUSED
    assert judge(seen, attempts, found) == {"ghost"}


def test_twice() -> None:
    seen, attempts, found = world()
    attempts["m5"].outcome, attempts["m5"].ended = Outcome.UNKNOWN, float("inf")
    assert judge(seen, attempts, [*found, Found("m5", 6, 600)]) == {"duplicate"}


def test_at_another_offset_than_the_answer_said() -> None:
    seen, attempts, found = world()
    attempts["m5"].offset = 4
    assert judge(seen, attempts, found) == {"moved"}


def test_in_another_queue() -> None:
    seen, attempts, found = world()
    attempts["m5"].queue = ("t", 1)
    assert judge(seen, attempts, found) == {"misplaced"}


def test_a_gap() -> None:
    seen, attempts, found = world()
    attempts["m3"].outcome = Outcome.UNKNOWN
    del found[3]
    assert judge(seen, attempts, found) == {"gap"}


def test_an_offset_that_changes_its_message() -> None:
    seen, attempts, found = world()
    attempts["other"] = attempt("other", 5, outcome=Outcome.UNKNOWN)
    assert judge(seen, attempts, found) == set()
    assert "changed" in judge(seen, attempts, [*found[:5], Found("other", 5, 500)])


@pytest.mark.parametrize("overlapping", [False, True])
def test_order_follows_real_time(overlapping: bool) -> None:
    """m4 and m1 change places: allowed only if m4 was still under way when m1 began."""
    seen, attempts, found = world()
    early, late = attempts["m1"], attempts["m4"]
    early.began, early.ended, late.began, late.ended = 4.0, 4.5, 1.0, 9.0 if overlapping else 1.5
    if overlapping:
        for name in ("m2", "m3", "m5"):
            attempts[name].began, attempts[name].ended = 0.0, 10.0
    assert judge(seen, attempts, found) == (set() if overlapping else {"order"})


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ("012", set()),
        ("", set()),
        ("01", {"torn"}),
        ("12", {"torn"}),
        ("102", {"torn"}),
        ("01-2", {"torn"}),
    ],
)
def test_batches_are_whole_or_absent(members: str, expected: set[str]) -> None:
    seen, attempts, found = world(2)
    for name in "012-":
        batch = "" if name == "-" else "b"
        attempts[name] = attempt(name, 2, outcome=Outcome.UNKNOWN, ended=float("inf"), batch=batch)
    found += [Found(name, 2 + place, 0) for place, name in enumerate(members)]
    assert judge(seen, attempts, found) == expected


def test_a_power_cut_takes_the_end_of_the_log_and_nothing_else() -> None:
    seen, attempts, found = world()
    checker.note(seen, attempts, QUEUE, found[:4])
    gone = checker.missing(seen, attempts.values())
    assert [one.id for one in gone] == ["m4", "m5"]
    assert checker.not_a_suffix(seen, gone) == []
    seen, attempts, found = world()
    checker.note(seen, attempts, QUEUE, [*found[:3], *found[4:]])
    assert kinds(checker.not_a_suffix(seen, checker.missing(seen, attempts.values()))) == {"hole"}


def test_what_a_power_cut_took_may_be_numbered_again() -> None:
    seen, attempts, found = world()
    judge(seen, attempts, found)
    seen.forget(QUEUE, 4)
    for name in ("m4", "m5"):
        attempts[name].given_up = True
    attempts["new"] = attempt("new", 4, began=7.0, ended=8.0)
    assert judge(seen, attempts, [*found[:4], Found("new", 4, 400)]) == set()


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        (30, set()),
        (20, set()),
        (19, {"offset regressed"}),
        (None, {"offset regressed"}),
        (31, {"offset invented"}),
        (41, {"offset invented", "offset beyond the end"}),
    ],
)
def test_consumer_offsets(now: int | None, expected: set[str]) -> None:
    """20 was committed long ago, 30 just before the end; 10 was read after the restart before."""
    commits = [Commit(1.0, 20, acked=True), Commit(9.0, 30, acked=True)]
    wrong = checker.regressed(QUEUE, now, commits, floor=10, kept_before=5.0, known=10, end=40)
    assert kinds(wrong) == expected


def test_answers_behind_the_end_of_the_world_promise_nothing() -> None:
    books = Books()
    books.open([attempt("before", 0), attempt("after", 5)])
    assert books.forget_what_came_after(3.0) == 1
    assert [one.id for one in books.acked()] == ["before"]
