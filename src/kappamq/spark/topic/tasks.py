"""The input of a task: ranges of queues, pickled by Spark."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql.datasource import InputPartition

from kappamq.spark.topic.planning import QueueRange


@dataclass
class Task(InputPartition):
    """The ranges that one task reads."""

    ranges: tuple[QueueRange, ...]
