"""What Spark hands to a task survives pickling."""

from __future__ import annotations

import pickle

from kappamq.message import MessageQueue
from kappamq.spark.topic.planning import QueueRange
from kappamq.spark.topic.tasks import Task


def test_a_task_can_be_pickled() -> None:
    task = Task((QueueRange(MessageQueue("t", "b", 1), 3, 9),))
    assert pickle.loads(pickle.dumps(task)) == task
