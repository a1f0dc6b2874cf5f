"""Rounds: together they are the plan, each message once, in the order of its queue; and the same when they are read again."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as some

from kappamq.errors import StoreError
from kappamq.message import MessageQueue
from kappamq.spark.jobs.copies.replay_plan import Plan, round_rows
from kappamq.spark.topic.planning import QueueRange

plans = some.builds(
    lambda spans, rows: Plan(
        tuple(
            QueueRange(MessageQueue("t", "b", number), start, start + count)
            for number, (start, count) in enumerate(spans)
        ),
        {},
        rows,
    ),
    some.lists(some.tuples(some.integers(0, 10**12), some.integers(1, 3000)), max_size=6),
    some.integers(1, 700),
)


@given(plans)
def test_rounds_make_up_the_plan(plan: Plan) -> None:
    at = {one.queue: one.start for one in plan.ranges}
    for number in range(plan.number_of_rounds):
        parts = plan.round(number)
        # Shares are rounded, for each queue by less than one message.
        assert (
            abs(sum(part.count for part in parts) - plan.round_rows) <= len(plan.ranges)
            or number == plan.number_of_rounds - 1
        )
        for part in parts:
            assert part.start == at[part.queue]
            at[part.queue] = part.stop
    assert at == {one.queue: one.stop for one in plan.ranges}
    assert plan.round(plan.number_of_rounds) == []


@given(plans)
def test_a_plan_is_the_same_when_it_is_read_again(plan: Plan) -> None:
    lanes = {one.queue: MessageQueue("u", "c", 0) for one in plan.ranges}
    with_lanes = Plan(plan.ranges, lanes, plan.round_rows)
    assert Plan.decode(json.loads(json.dumps(with_lanes.encode()))) == with_lanes


@pytest.mark.parametrize(
    "said", [None, {}, {"ranges": [[1]], "lanes": [], "round_rows": 1}, {"ranges": [], "lanes": [], "round_rows": "x"}]
)
def test_other_plans_are_refused(said: object) -> None:
    with pytest.raises(StoreError, match="the plan of a replay"):
        Plan.decode(said)


@pytest.mark.parametrize(
    ("limit", "per_second", "rows"),
    [(1000, None, 1000), (1000, 200, 400), (1000, 5, 100), (50, 5, 50), (1000, 1e6, 1000)],
)
def test_a_speed_makes_rounds_shorter(limit: int, per_second: float | None, rows: int) -> None:
    assert round_rows(limit, per_second) == rows
