"""What is installed on an executor. The function is sent to executors as code, since they may not have kappamq."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NEEDED: Final = ("kappamq", "numpy", "pyarrow", "msgspec")
TASKS_MAX: Final = 64


@dataclass(frozen=True, slots=True)
class Node:
    """One Python on one host."""

    host: str
    python: str
    missing: tuple[str, ...]
    kernel: bool


def ask(spark: SparkSession) -> list[Node]:
    """Ask the executors of a session; one answer for each different host and Python."""
    import sys

    from pyspark import cloudpickle as untyped

    cloudpickle: Any = untyped
    module = sys.modules[__name__]
    cloudpickle.register_pickle_by_value(module)
    try:
        context = spark.sparkContext
        tasks = max(2, min(TASKS_MAX, 2 * context.defaultParallelism))
        answers = context.parallelize(range(tasks), tasks).mapPartitions(look).distinct().collect()
    finally:
        cloudpickle.unregister_pickle_by_value(module)
    return [Node(*answer) for answer in sorted(answers)]


def look(_rows: Iterable[Any]) -> Iterator[tuple[str, str, tuple[str, ...], bool]]:
    """Runs on an executor."""
    import platform
    import socket
    from importlib.util import find_spec

    missing = tuple(name for name in NEEDED if find_spec(name) is None)
    kernel = False
    if "kappamq" not in missing:
        try:
            kernel = find_spec("kappamq.native._kernel") is not None
        except ImportError:
            pass
    yield socket.gethostname(), platform.python_version(), missing, kernel
