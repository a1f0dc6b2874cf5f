"""Staged chunks: a fold over the log. Live, replayed and loaded tables are equal after every change."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kappamq.protocol import fastjson
from kappamq.state.staged import KINDS, Chunk, StagedChunks, row

Change = tuple[str, list[Any]]


def chunk(place: int, topic: str = "t", rows: int = 2) -> list[Any]:
    return row(Chunk(place, 1000 + place * 10, 77 + place, rows, 100 + place, topic, 1))


def staged(transaction: str, place: int, number: int = 0, scope: str = "s", **others: Any) -> Change:
    return "chunk-staged", [transaction, scope, number, chunk(place, **others)]


class Clock:
    def __init__(self) -> None:
        self.now_ms = 0

    def __call__(self) -> int:
        return self.now_ms


def folded(changes: list[Change]) -> StagedChunks:
    clock = Clock()
    table = StagedChunks(clock)
    for clock.now_ms, (kind, change) in enumerate(changes):
        table.apply(kind, change)
    return table


def loaded(table: StagedChunks) -> StagedChunks:
    """As it comes out of the file, which leaves out what is None."""
    found = StagedChunks(Clock())
    found.from_snapshot(fastjson.loads(fastjson.pretty(table.to_snapshot())))
    return found


def state(table: StagedChunks) -> tuple[Any, ...]:
    scopes = {scope: table.of_scope(scope) for scope in table.scopes()}
    undecided = {scope: table.undecided(scope) for scope in scopes}
    return list(table.table.items()), scopes, undecided, table.bytes, table.count, table.needed_from()


LIFE: list[Change] = [
    staged("a", 0),
    staged("a", 1),
    staged("b", 2, number=1),
    staged("a", 3, topic="gone"),
    ("chunks-decided", ["a", [3, 0]]),
    staged("a", 4),  # of an attempt that came too late
    ("chunk-published", ["a", 3, 2]),
    ("chunk-published", ["a", 0, 0]),
    ("chunks-dropped", ["b"]),
    staged("c", 5, number=2),
    ("chunks-decided", ["c", [5]]),
    ("chunk-part", ["c", 5, 1]),
    ("chunk-published", ["c", 5, 0]),
    ("chunks-finished", ["c"]),
    ("chunks-finished", ["a"]),
    staged("c", 5, rows=3),
    ("chunks-decided", ["c", [5], 0]),
    ("chunk-part", ["c", 5, 2]),
    ("chunk-published", ["c", 5, 0]),
    ("chunks-finished", ["c"]),
    staged("d", 6),
    staged("d", 7),
    ("chunk-copied", ["d", 6, 2000, 9]),
    ("chunk-copied", ["d", 6, 3000, 10]),
    ("chunks-dropped", ["d"]),
]


def test_a_life_in_full() -> None:
    table = folded(LIFE[:4])
    assert (table.bytes, table.needed_from()) == (100 + 101 + 102 + 103, 1000)
    assert [one.transaction for one in table.of_scope("s")] == ["a", "b"]
    assert table.get("a") is not None
    table = folded(LIFE[:5])
    a = table.table["a"]
    assert (sorted(a.chunks), a.waiting, a.is_published) == ([0, 3], [3, 0], False), "what is not listed is dropped"
    assert table.bytes == 100 + 102 + 103
    a = folded(LIFE[:7]).table["a"]
    assert (a.waiting, a.dropped) == ([0], {"gone": 2})
    a = folded(LIFE[:8]).table["a"]
    assert a.is_published
    assert list(a.chunks) == [4], "was never decided"
    assert folded(LIFE[:12]).table["c"].parts == {5: 1}
    assert folded(LIFE[:18]).table["c"].parts == {5: 2}
    assert folded(LIFE[:19]).table["c"].parts == {}
    table = folded(LIFE[:-1])
    assert (table.needed_from(), table.table["d"].chunks[6].at) == (1070, 10), "a copy counts instead of the chunk"
    table = folded(LIFE)
    assert (table.table, table.bytes, table.needed_from()) == ({}, 0, None)
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


def test_an_undecided_transaction_is_not_a_published_one() -> None:
    """None and an empty list are different things, in the file as well."""
    undecided = loaded(folded([staged("a", 0)]))
    assert undecided.table["a"].waiting is None
    published = loaded(folded([staged("a", 0), ("chunks-decided", ["a", [0]]), ("chunk-published", ["a", 0, 0])]))
    assert published.table["a"].waiting == []
    assert published.table["a"].is_published


def test_reset_forgets_everything() -> None:
    table = folded(LIFE[:5])
    table.reset()
    assert state(table) == state(StagedChunks(Clock()))


def test_batches_of_a_scope_are_published_in_their_order() -> None:
    changes = [staged(name, place, number) for place, (name, number) in enumerate([("c", 7), ("a", 5), ("b", 6)])]
    table = folded(
        [
            *changes,
            staged("z", 3, 0, scope="late"),
            *(("chunks-decided", [name, [at]]) for at, name in enumerate("cab")),
        ]
    )
    table.apply("chunks-decided", ["z", [3]])
    order = []
    while (first := table.next_to_publish()) is not None:
        order.append(first.transaction)
        table.apply("chunk-published", [first.transaction, next(iter(first.chunks)), 0])
        if first.transaction == "a":
            table.apply("chunks-finished", ["a"])
    assert order == ["a", "b", "c", "z"]
    assert [one.transaction for one in table.of_scope("s")] == ["c", "b"]


@st.composite
def lives(draw: st.DrawFn) -> list[Change]:
    """Changes in any order that can happen: what a change names is there."""
    changes: list[Change] = []
    table = StagedChunks(lambda: 0)
    for place in range(draw(st.integers(0, 25))):
        possible: list[Change] = [staged(draw(st.sampled_from("abc")), place, rows=draw(st.integers(1, 3)))]
        for name, one in table.table.items():
            if one.waiting is None:
                possible += [("chunks-dropped", [name])]
                possible += [("chunk-copied", [name, chosen, 1000 + place * 10, place]) for chosen in one.chunks]
                possible += [("chunks-decided", [name, draw(st.permutations(list(one.chunks)))])]
            elif one.waiting:
                possible += [("chunk-part", [name, one.waiting[0], draw(st.integers(1, 2))])]
                possible += [("chunk-published", [name, one.waiting[0], draw(st.integers(0, 1))])]
            else:
                possible += [("chunks-finished", [name])]
        kind, change = draw(st.sampled_from(possible))
        table.apply(kind, change)
        changes.append((kind, change))
    return changes


@given(lives())
def test_any_life(changes: list[Change]) -> None:
    live = folded(changes)
    assert state(loaded(live)) == state(live)
    everything = [one for staged_ in live.table.values() for one in staged_.chunks.values()]
    assert live.bytes == sum(one.size for one in everything)
    assert live.needed_from() == min((one.log_offset for one in everything), default=None)
    for table in (live, loaded(live)):
        assert table.undecided("s") == sum(one.waiting is None for one in live.table.values())
        publishable = [one.number for one in live.table.values() if one.waiting]
        first = table.next_to_publish()
        assert (first.number if first is not None else None) == min(publishable, default=None)


@given(lives(), st.integers(0, 25))
def test_a_snapshot_holds_what_there_was_when_it_was_begun(changes: list[Change], first: int) -> None:
    """A worker makes it, while the table goes on."""
    live = folded(changes[:first])
    then, work = live.to_snapshot(), live.freeze()
    for kind, change in changes[first:]:
        live.apply(kind, change)
    assert work() == then


def test_what_is_gone_takes_no_room_behind_a_chunk_that_stays() -> None:
    table = folded([staged("stays", 0)])
    for place in range(1, 2000):
        for kind, change in (staged("goes", place), ("chunks-dropped", ["goes"])):
            table.apply(kind, change)
    assert len(table._places) < 100
    assert table.needed_from() == 1000
    table.apply("chunks-dropped", ["stays"])
    assert table.needed_from() is None
