"""What a stream remembers: it comes back as it was, and what a queue lost is noticed even after it has grown again."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kappamq.errors import ConfigError
from kappamq.message import MessageQueue
from kappamq.spark.topic.checkpoints import (
    Checkpoint,
    Mark,
    Progress,
    check_filter,
    filter_name,
    lost,
    mean_bytes,
    other_topics,
    shares,
)
from kappamq.spark.topic.options import ReadOptions
from kappamq.spark.topic.planning import Bounds, Gap

A, B = MessageQueue("orders", "broker/a", 0), MessageQueue("orders", "b", 1)
MARK = Mark(1000, 77, 300)
START = Checkpoint({A: Progress(10, MARK), B: Progress(5)}, "f")


def test_a_checkpoint_comes_back_through_json() -> None:
    whole = Checkpoint({A: Progress(10, MARK, 3), B: Progress(0)}, "f", (Gap(B, 2, 4, "deleted by retention"),))
    text = json.dumps(whole.encode())
    assert Checkpoint.decode(json.loads(text)) == whole
    assert text == json.dumps(Checkpoint.decode(json.loads(text)).encode()), "Spark compares offsets as text"


@pytest.mark.parametrize(
    "data",
    [{}, {"version": 2, "filter": "", "queues": {}}, {"version": 1, "filter": "", "queues": {"x": {"next": 1}}},
     {"version": 1, "filter": "", "queues": {"t/b/0": {}}}, {"version": 1, "filter": "", "queues": []}],
)  # fmt: skip
def test_what_is_no_checkpoint_is_refused(data: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="the checkpoint"):
        Checkpoint.decode(data)


def test_another_filter_is_refused() -> None:
    def named(**options: str) -> str:
        return filter_name(ReadOptions.parse({"nameservers": "x:1", "topic": "t", **options}))

    assert named() == ""
    assert named(keys="a,b") == named(keys="b,a")
    assert len({named(), named(tags="a"), named(keys="a"), named(filter="a = 1"), named(tags="b")}) == 5
    check_filter(START, "f")
    with pytest.raises(ConfigError, match="not those that this checkpoint was written with"):
        check_filter(START, "")


@pytest.mark.parametrize(
    ("bounds", "mark", "reason"),
    [
        (Bounds(0, 10), MARK, None),
        (Bounds(0, 99), MARK, None),
        (Bounds(0, 99), Mark(1000, 78, 300), "truncated or recreated"),
        (Bounds(0, 99), None, None),
        (Bounds(12, 99), MARK, "deleted by retention"),
        (Bounds(0, 8), MARK, "shorter than it was"),
    ],
)
def test_what_a_queue_lost(bounds: Bounds, mark: Mark | None, reason: str | None) -> None:
    gaps = lost(START, {A: bounds, B: Bounds(0, 5)}, {A: mark} if mark is not None else {})
    assert [gap.queue for gap in gaps] == ([A] if reason else [])
    assert not reason or reason in gaps[0].reason


def test_a_queue_whose_broker_is_away_lost_nothing() -> None:
    assert lost(START, {B: Bounds(0, 5)}, {}) == []


@given(st.dictionaries(st.integers(0, 30), st.integers(-5, 1000), max_size=20), st.integers(0, 3000))
def test_shares(lag: dict[int, int], rows: int) -> None:
    lags = {MessageQueue("t", "b", number): behind for number, behind in lag.items()}
    given_rows = shares(lags, rows)
    lagging = {queue: behind for queue, behind in lags.items() if behind > 0}
    assert set(given_rows) == set(lagging)
    assert all(1 <= given_rows[queue] <= lagging[queue] for queue in lagging)
    assert sum(given_rows.values()) == min(sum(lagging.values()), max(rows, len(lagging)))
    total = sum(lagging.values())
    fair = {queue: behind * min(rows, total) / total for queue, behind in lagging.items()}
    assert all(abs(given_rows[queue] - fair[queue]) <= len(lagging) + 1 for queue in lagging)


def test_the_mean_of_what_messages_take() -> None:
    assert mean_bytes([Mark(0, 0, 100), Mark(0, 0, 200)]) == 150
    assert mean_bytes([]) == 1024


def test_topics_that_are_not_those_of_the_checkpoint() -> None:
    queues = {MessageQueue(topic, "a", 0): Progress(1) for topic in ("tea", "milk")}

    def other(**options: str) -> tuple[list[str], list[str]]:
        return other_topics(Checkpoint(queues), ReadOptions.parse({"nameservers": "h:1", **options}))

    assert other(topic="milk,tea") == ([], [])
    assert other(topic="tea,salt") == (["milk"], ["salt"])
    assert other(topicPattern="t.*") == (["milk"], [])
