"""The pipeline on Spark, measured: reading the store, reading from a broker, streams, exactly-once
writes, the rebuild, and Kafka beside it.

Each question is a module with `run(lab) -> list[Figure]`; ALL names them in the order in which they run.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.bench import Figure
    from benchmarks.spark.lab import Lab

ALL = ("store", "broker", "beside", "stream", "once", "scopes", "rebuild", "kafka")


def load(name: str) -> Callable[[Lab], list[Figure]]:
    run: Callable[[Lab], list[Figure]] = import_module(f"benchmarks.spark.{name}").run
    return run
