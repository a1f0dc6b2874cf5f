"""The state of open transactions by itself: places, positions, times, and what is remembered."""

from __future__ import annotations

import random

import pytest

from kappamq.broker.transactions import open_transactions as module
from kappamq.broker.transactions.open_transactions import Half, Halves, Op, Outcome, Positions


def half(root: int, place: int, *, due: int = 0, topic: str = "t") -> Half:
    return Half(root, root, place, 10, "g", topic, since_ms=0, due_ms=due)


def op(place: int, settled: int, outcome: Outcome = Outcome.COMMITTED, root: int = 0, end: int = 0) -> Op:
    return Op(place, (settled,), root, outcome, end)


def test_positions_stop_at_the_oldest_open_half() -> None:
    state = Halves()
    assert state.positions(7, 3, 900) == Positions(7, 3, 900), "nothing is open: everything may go"
    first, second, third = (half(100 * (n + 1), n) for n in range(3))
    for each in (first, second, third):
        state.open(each)
    assert state.positions(3, 0, 900) == Positions(0, 0, 100)
    state.end(second, op(0, 1))
    assert state.positions(3, 1, 900) == Positions(0, 0, 100), "its op record is needed as long as an older one is open"
    state.move(first, op(1, 0, Outcome.MOVED), 400, 3, 10, due_ms=5)
    assert state.positions(4, 2, 900) == Positions(2, 2, 300)
    assert (state.oldest, len(state)) == (third, 2)
    state.end(third, op(2, 2))
    assert state.positions(4, 3, 900) == Positions(3, 3, 400)
    assert state.below(400, 9) == []
    assert state.below(401, 9) == [first]
    state.end(first, op(3, 3))
    assert state.positions(4, 4, 900) == Positions(4, 4, 900)


def test_a_transaction_is_known_by_its_root_wherever_it_lies() -> None:
    state = Halves()
    one = half(100, 0)
    state.open(one)
    state.move(one, op(0, 0, Outcome.MOVED, 100), 500, 1, 20, due_ms=0)
    assert state.get(100) is one
    assert state.get(500) is None
    assert (one.log_offset, one.queue_offset, one.size) == (500, 1, 20)
    assert state.ended(100) is None, "moved is not ended"
    state.end(one, op(1, 1, Outcome.ROLLED_BACK, 100, end=600))
    assert state.get(100) is None
    assert state.ended(100) == (Outcome.ROLLED_BACK, 600)
    state.open(half(100, 2))
    assert state.ended(100) is None, "an operator has opened it again"
    again = half(100, 3)
    state.open(again)
    assert (len(state), state.oldest) == (1, again), "one live place each"


def test_copies_of_a_java_broker_are_known_by_their_id() -> None:
    state = Halves()
    copy = half(100, 0)
    state.open(copy)
    state.name(copy, "U1", 77)
    assert state.copy_of("U1", "g", 77) is copy
    for other in (("U2", "g", 77), ("U1", "h", 77), ("U1", "g", 78)):
        assert state.copy_of(*other) is None
    state.end(copy, op(0, 0))
    assert state.copy_of("U1", "g", 77) is None


def test_times() -> None:
    state = Halves()
    assert (state.due_ms(), state.take_due(1 << 60)) == (None, None)
    late, early, ended = half(1, 0, due=30), half(2, 1, due=20), half(3, 2, due=10)
    for each in (late, early, ended):
        state.open(each)
    assert state.due_ms() == 10
    state.end(ended, op(0, 2))
    assert state.due_ms() == 20
    assert state.take_due(19) is None
    assert state.take_due(20) is early
    assert state.due_ms() == 30, "it is somebody's business now"
    state.postpone(early, 40)
    state.move(late, op(1, 0, Outcome.MOVED), 50, 3, 10, due_ms=50)
    assert state.due_ms() == 40
    assert [state.take_due(99), state.take_due(99), state.take_due(99)] == [early, late, None]


def test_times_of_what_has_ended_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Producers that ask for hours and end it at once."""
    monkeypatch.setattr(module, "_STALE_TIMES_MAX", 100)
    state = Halves()
    kept = half(1, 0, due=3)
    state.open(kept)
    for number in range(1, 2000):
        one = half(number + 1, number, due=1_000_000 + number)
        state.open(one)
        state.end(one, op(number, number))
    assert len(state._times) <= 110
    assert state.due_ms() == 3


def test_little_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REMEMBERED_MAX", 10)
    state = Halves()
    for number in range(30):
        one = half(number + 1, number)
        state.open(one)
        state.end(one, op(number, number, root=number + 1, end=number))
    assert state.ended(20) is None
    assert state.ended(30) == (Outcome.COMMITTED, 29)


def test_counts_by_topic() -> None:
    state = Halves()
    for number, topic in enumerate(("a", "b", "a")):
        state.open(half(number + 1, number, topic=topic))
    assert state.counts == {"a": 2, "b": 1}
    for root in (1, 2):
        one = state.get(root)
        assert one is not None
        state.end(one, op(root, one.queue_offset))
    state.open(half(3, 9, topic="a"))
    assert state.counts == {"a": 1}, "the same one, in another place"


def test_whoever_reads_from_the_positions_on_finds_what_is_open() -> None:
    """The fold as a start does it, from any positions that were ever true, against the state itself."""
    dice = random.Random(4)
    state = Halves()
    queue: list[Half] = []  # what the half queue holds at each place
    ops: list[Op] = []
    open_now: list[Half] = []
    positions = [Positions(0, 0, 0)]
    for step in range(2000):
        choice = dice.random()
        if choice < 0.4 or not open_now:
            one = half(1000 + step, len(queue))
            queue.append(one)
            state.open(one)
            open_now.append(one)
        else:
            one = open_now.pop(dice.randrange(len(open_now)))
            place = len(queue)
            settled = op(len(ops), one.queue_offset, Outcome.COMMITTED if choice < 0.8 else Outcome.MOVED, one.root)
            ops.append(settled)
            if choice < 0.8:
                state.end(one, settled)
            else:
                queue.append(one)
                state.move(one, settled, 1000 + step, place, 10, due_ms=0)
                open_now.append(one)
        if dice.random() < 0.1:
            positions.append(state.positions(len(queue), len(ops), 0))
            assert positions[-2].half <= positions[-1].half
            assert positions[-2].op <= positions[-1].op
    for known in positions:
        again = Halves()
        for settled in ops[known.op :]:
            again.settle(settled)
        settled_places = {place for settled in ops[known.op :] for place in settled.settled}
        found = {place for place in range(known.half, len(queue)) if place not in settled_places}
        assert found == {one.queue_offset for one in open_now}
