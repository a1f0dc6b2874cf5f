"""Scopes of batch transactions: a fold over the log. Live, replayed and loaded tables are equal after every change."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kappamq.protocol import fastjson
from kappamq.state import scopes
from kappamq.state.scopes import KINDS, Scopes

Change = tuple[str, list[Any]]


class Clock:
    def __init__(self) -> None:
        self.now_ms = 0

    def __call__(self) -> int:
        return self.now_ms


def folded(changes: list[Change]) -> Scopes:
    clock = Clock()
    table = Scopes(clock)
    for clock.now_ms, (kind, change) in enumerate(changes):
        table.apply(kind, change)
    return table


def loaded(table: Scopes) -> Scopes:
    """As it comes out of the file, which leaves out what is None."""
    found = Scopes(Clock())
    found.from_snapshot(fastjson.loads(fastjson.pretty(table.to_snapshot())))
    return found


def state(table: Scopes) -> dict[str, tuple[Any, ...]]:
    """With the order of what is published; scopes have none."""
    return {name: (one, list(one.decided), list(one.publishing)) for name, one in table.table.items()}


LIFE: list[Change] = [
    ("scope", ["s", "o", "x"]),
    ("scope", ["other", "o", "y"]),
    ("batch-begun", ["s", "t0", 0]),
    ("batch-aborted", ["s", "t0"]),
    ("batch-begun", ["s", "t1", 0]),
    ("batch-begun", ["s", "t2", 0]),
    ("batch-decided", ["s", "t2", 0, 5, 77, {"x": [[1, 11], [0, 10]], "y": [[4, 14]]}]),
    ("batch-begun", ["s", "t3", 3, "attempt"]),
    ("batch-finished", ["s", "t2", "x", {"gone": 2}]),
    ("batch-finished", ["s", "t2", "x", {"gone": 2}]),  # repeated: nothing is counted twice
    ("batch-decided", ["s", "t3", 3, 0, 0, {}]),
    ("batch-finished", ["s", "t2", "y", {"gone": 1}]),
    ("batch-finished", ["s", "unknown", "y", {"gone": 1}]),
    ("scope-removed", ["s"]),
    ("scope-removed", ["never there"]),
    ("scope-asked", ["other"]),
    ("scope-asked", ["never there"]),
]


def test_attempts_at_a_batch_are_known_while_it_is_open() -> None:
    begun: list[Change] = [
        ("scope", ["s", "o", "x"]),
        *(("batch-begun", ["s", f"t{number}", 4, f"a{number}"]) for number in range(scopes.ATTEMPTS_MAX + 2)),
    ]
    for table in (folded(begun), loaded(folded(begun))):
        opened = table.table["s"].open
        assert opened is not None
        assert opened.attempts == [f"a{number}" for number in range(2, scopes.ATTEMPTS_MAX + 2)]
    opened = folded([*begun, ("batch-begun", ["s", "next", 5, "first"])]).table["s"].open
    assert opened is not None
    assert opened.attempts == ["first"], "of another batch"


def test_a_life_in_full() -> None:
    scope = folded(LIFE[:3]).table["s"]
    assert scope.open is not None
    assert (scope.open.transaction, scope.open.number, scope.open.begun_ms, scope.last) == ("t0", 0, 2, -1)
    assert folded(LIFE[:4]).table["s"].open is None
    scope = folded(LIFE[:6]).table["s"]
    assert scope.open is not None
    assert scope.open.transaction == "t2", "the later attempt counts"
    scope = folded(LIFE[:7]).table["s"]
    assert (scope.open, scope.last) == (None, 0)
    assert scope.publishing["t2"].chunks == {"x": [[1, 11], [0, 10]], "y": [[4, 14]]}
    scope = folded(LIFE[:10]).table["s"]
    assert (list(scope.publishing["t2"].chunks), scope.decided[0].dropped) == (["y"], {"gone": 2})
    scope = folded(LIFE[:13]).table["s"]
    assert (scope.publishing, scope.decided[0].dropped, scope.last) == ({}, {"gone": 3}, 3)
    assert list(folded(LIFE).table) == ["other"]
    assert {kind for kind, _change in LIFE} == set(KINDS)


def test_live_replayed_and_loaded_are_equal_at_every_point() -> None:
    for count in range(len(LIFE) + 1):
        live = folded(LIFE[:count])
        again = loaded(live)
        assert state(again) == state(live), count
        clock = Clock()
        again._now_ms = clock
        for clock.now_ms, (kind, change) in list(enumerate(LIFE))[count:]:
            again.apply(kind, change)
        assert state(again) == state(folded(LIFE)), f"and it goes on from {count}"


def test_the_oldest_open_transaction_of_a_coordinator() -> None:
    table = folded(
        [
            *(("scope", [name, "o", "y" if name == "c" else "x"]) for name in "abc"),
            *(("batch-begun", [name, name, 0]) for name in "cba"),
        ]
    )
    for broker, expected in (("x", "b"), ("y", "c")):
        oldest = table.oldest_open(broker)
        assert oldest is not None
        assert oldest.name == expected
    assert table.oldest_open("z") is None


def test_only_the_newest_decisions_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scopes, "REMEMBERED_MAX", 3)
    changes: list[Change] = [("scope", ["s", "o", "x"])]
    for number in range(5):
        changes += [("batch-begun", ["s", f"t{number}", number])]
        changes += [("batch-decided", ["s", f"t{number}", number, 1, number, {"x": [[number, 0]]}])]
    table = folded(changes)
    assert list(table.table["s"].decided) == [2, 3, 4]
    assert len(table.table["s"].publishing) == 5, "what is not published is never forgotten"
    table.apply("batch-finished", ["s", "t0", "x", {"gone": 1}])
    assert state(loaded(table)) == state(table)


def test_topics_of_dropped_messages_are_bounded() -> None:
    """Many brokers may publish one batch, and each may say what it likes."""
    chunks = {f"x{broker}": [[0, 1]] for broker in range(5)}
    table = folded([("scope", ["s", "o", "x"]), ("batch-begun", ["s", "t", 0])])
    table.apply("batch-decided", ["s", "t", 0, 5, 7, chunks])
    for broker in chunks:
        table.apply("batch-finished", ["s", "t", broker, {f"{broker}-{topic}": 1 for topic in range(90)}])
    dropped = table.table["s"].decided[0].dropped
    assert len(dropped) == 101
    assert dropped["(others)"] == 5 * 90 - 100
    assert state(loaded(table)) == state(table)


def test_reset_forgets_everything() -> None:
    table = folded(LIFE[:8])
    table.reset()
    assert state(table) == {}


@st.composite
def lives(draw: st.DrawFn) -> list[Change]:
    """Changes in any order that can happen: what a change names is there."""
    changes: list[Change] = []
    table = Scopes(lambda: 0)
    for number in range(draw(st.integers(0, 25))):
        name = draw(st.sampled_from("ab"))
        scope = table.get(name)
        possible: list[Change] = []
        if scope is None:
            possible += [("scope", [name, "o", "x"])]
        else:
            possible += [("batch-begun", [name, f"t{number}", scope.last + draw(st.integers(1, 3))])]
            if scope.open is not None:
                brokers = draw(st.sets(st.sampled_from("xyz")))
                chunks = {broker: [[number, 7]] for broker in sorted(brokers)}
                possible += [("batch-aborted", [name, scope.open.transaction])]
                possible += [("batch-decided", [name, scope.open.transaction, scope.open.number, 1, number, chunks])]
            for one in scope.publishing.values():
                finished = draw(st.sampled_from(sorted(one.chunks)))
                possible += [("batch-finished", [name, one.transaction, finished, {"gone": number}])]
            if not scope.publishing:
                possible += [("scope-removed", [name])]
        kind, change = draw(st.sampled_from(possible))
        table.apply(kind, change)
        changes.append((kind, change))
    return changes


@given(lives())
def test_any_life(changes: list[Change]) -> None:
    live = folded(changes)
    assert state(loaded(live)) == state(live)
    for scope in live.table.values():
        assert list(scope.decided) == sorted(scope.decided)


@given(lives(), st.integers(0, 25))
def test_a_snapshot_holds_what_there_was_when_it_was_begun(changes: list[Change], first: int) -> None:
    """A worker makes it, while the table goes on."""
    live = folded(changes[:first])
    then, work = live.to_snapshot(), live.freeze()
    for kind, change in changes[first:]:
        live.apply(kind, change)
    assert work() == then
