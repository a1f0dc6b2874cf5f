"""What Spark hands to a task: ranges of queues, pickled."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql.datasource import InputPartition

from kappamq.spark.topic.planning import QueueRange


@dataclass
class Task(InputPartition):
    """What one task reads."""

    ranges: tuple[QueueRange, ...]
