"""Ranges of queues as options of a batch read, which have to name every queue of a topic."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kappamq.spark.topic.planning import QueueRange, name_of

if TYPE_CHECKING:
    from kappamq.spark.topic.topics import Topics


def pinned(topics: Topics, ranges: Sequence[QueueRange]) -> dict[str, str]:
    """Return the options topic, startingOffsets and endingOffsets that read exactly these ranges.

    Offsets beyond the end of a queue are left out."""
    wanted = {one.queue: one for one in ranges}
    names = sorted({queue.topic for queue in wanted})
    begin: dict[str, dict[str, int]] = {topic: {} for topic in names}
    end: dict[str, dict[str, int]] = {topic: {} for topic in names}
    for queue, at in topics.bounds_with(wanted).items():
        if queue.topic not in begin:
            continue
        one = wanted.get(queue, QueueRange(queue, at.min, at.min))
        begin[queue.topic][name_of(queue)] = min(one.start, at.max)
        end[queue.topic][name_of(queue)] = min(one.stop, at.max)
    return {"topic": ",".join(names), "startingOffsets": json.dumps(begin), "endingOffsets": json.dumps(end)}
