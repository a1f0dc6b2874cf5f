"""Ranges and tasks: nothing is read twice, nothing is left out, and what is gone is told."""

from __future__ import annotations

import os
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kappamq.errors import ConfigError, DataLoss
from kappamq.message import MessageQueue
from kappamq.spark.dividing import task_count
from kappamq.spark.topic.options import EARLIEST, LATEST, OnDataLoss, Position
from kappamq.spark.topic.planning import (
    RETENTION,
    SHORTER,
    TASK_ROWS_MAX,
    TASK_ROWS_MIN,
    Bounds,
    Gap,
    QueueRange,
    ranges_between,
    refuse_gaps,
    resolve,
    tasks,
)

A, B = MessageQueue("orders", "broker-a", 0), MessageQueue("orders", "broker-a", 1)
BOUNDS = {A: Bounds(10, 20), B: Bounds(0, 5)}


def no_search(queue: MessageQueue, time_ms: int) -> int:
    raise AssertionError


def test_positions_of_all_queues() -> None:
    assert resolve(Position(EARLIEST), BOUNDS, no_search) == {A: 10, B: 0}
    assert resolve(Position(LATEST), BOUNDS, no_search) == {A: 20, B: 5}
    assert resolve(Position(time_ms=7), BOUNDS, lambda queue, ms: queue.queue_id + ms) == {A: 7, B: 8}
    named = {"orders": {"broker-a/0": 12, "broker-a/1": LATEST}}
    assert resolve(Position(by_queue=named), BOUNDS, no_search) == {A: 12, B: 5}
    zero = {"orders": {"broker-a/0": 0, "broker-a/1": 0}}
    assert resolve(Position(by_queue=zero), BOUNDS, no_search) == {A: 0, B: 0}


@pytest.mark.parametrize(
    ("queues", "told"),
    [
        ({"broker-a/0": 1, "broker-a/1": 1, "broker-a/7": 1}, "unknown queue orders broker-a/7"),
        ({"broker-a/0": 1}, "queue orders broker-a/1 is missing"),
        ({"broker-a/0": 20, "broker-a/1": 6}, "queue orders broker-a/1 ends at 5, and offset 6 is beyond that"),
    ],
)
def test_queues_must_be_named_as_they_are(queues: dict[str, int], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        resolve(Position(by_queue={"orders": queues}), BOUNDS, no_search)


def test_what_is_gone_becomes_a_gap() -> None:
    ranges, gaps = ranges_between({A: 5, B: 0}, {A: 25, B: 5}, BOUNDS)
    assert ranges == [QueueRange(A, 10, 20), QueueRange(B, 0, 5)]
    assert [(gap.start, gap.stop) for gap in gaps] == [(5, 10), (20, 25)]
    assert ranges_between({A: 1}, {A: 4}, BOUNDS) == ([], [Gap(A, 1, 4, RETENTION)])
    assert ranges_between({A: 30}, {A: 40}, BOUNDS) == ([], [Gap(A, 30, 40, SHORTER)])


def test_gaps_end_the_query_unless_told_otherwise() -> None:
    gaps = [Gap(A, number, number + 1, "deleted by retention") for number in range(5)]
    with pytest.raises(
        DataLoss, match=r"messages 0 to 0 are gone .* and 2 more\. Start at a later offset, or set .* skip"
    ):
        refuse_gaps(gaps, OnDataLoss.FAIL)
    refuse_gaps(gaps, OnDataLoss.SKIP)
    refuse_gaps([], OnDataLoss.FAIL)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 2_000_000)), max_size=12), st.integers(1, 40))
def test_tasks_cover_every_message_once(sizes: list[tuple[int, int]], at_least: int) -> None:
    ranges = [
        QueueRange(MessageQueue("t", "b", number), start, start + size) for number, (start, size) in enumerate(sizes)
    ]
    made = tasks(ranges, at_least)
    pieces = [piece for task in made for piece in task]
    for one in ranges:
        mine = sorted(piece for piece in pieces if piece.queue == one.queue)
        assert sum(piece.count for piece in mine) == one.count
        assert all(earlier.stop == later.start for earlier, later in pairwise(mine))
        assert not one.count or (mine[0].start, mine[-1].stop) == (one.start, one.stop)
    assert tasks(ranges, at_least) == made, "Spark may ask again"
    counts = [sum(piece.count for piece in task) for task in made]
    total = sum(counts)
    assert all(counts)
    assert len(made) >= min(at_least, total)
    assert all(abs(count - total / len(made)) <= total / len(made) / 4 + 1 for count in counts), "as long as each other"
    assert all(count <= 1.25 * TASK_ROWS_MAX + 1 for count in counts)
    if total:
        assert len(made) == min(total, task_count(total, least=TASK_ROWS_MIN, most=TASK_ROWS_MAX, at_least=at_least))


def test_a_queue_that_nearly_fills_a_task_is_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    sizes = (100_100, 99_900, 100_050, 99_950)
    ranges = [QueueRange(MessageQueue("t", "b", number), 0, size) for number, size in enumerate(sizes)]
    assert tasks(ranges) == [(one,) for one in ranges]


def test_no_fewer_tasks_than_wanted() -> None:
    assert len(tasks([QueueRange(A, 0, 1000)], 8)) == 8
    assert len(tasks([QueueRange(A, 0, 3)], 8)) == 3
    assert tasks([QueueRange(A, 5, 5)], 8) == []
