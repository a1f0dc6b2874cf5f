"""Ranges as options of a read."""

from __future__ import annotations

import json
from typing import Any

from kappamq.message import MessageQueue
from kappamq.spark.topic.pinned import pinned
from kappamq.spark.topic.planning import Bounds, QueueRange

QUEUES = [MessageQueue("t", "b", number) for number in range(3)]


class Topics:
    def bounds_with(self, queues: Any) -> dict[MessageQueue, Bounds]:
        assert set(queues) == {QUEUES[0], QUEUES[1]}
        return {
            QUEUES[0]: Bounds(2, 10),
            QUEUES[1]: Bounds(0, 6),
            QUEUES[2]: Bounds(5, 9),
            MessageQueue("u", "b", 0): Bounds(0, 1),
        }


def test_every_queue_of_the_topic_is_named_and_no_other_is_read() -> None:
    ranges = [QueueRange(QUEUES[0], 3, 5), QueueRange(QUEUES[1], 4, 9)]
    found = pinned(Topics(), ranges)  # type: ignore[arg-type]
    assert found["topic"] == "t"
    assert json.loads(found["startingOffsets"]) == {"t": {"b/0": 3, "b/1": 4, "b/2": 5}}
    assert json.loads(found["endingOffsets"]) == {"t": {"b/0": 5, "b/1": 6, "b/2": 5}}
