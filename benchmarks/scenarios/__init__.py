"""One file per question; each has `run(bench) -> list[Figure]`. ALL names them in the order of `make bench`."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from benchmarks.bench import Bench, Figure

ALL = (
    *("echo", "kernel", "variants", "flush", "queues", "groups", "transactions", "backlog", "idle", "holding", "push"),
    *("rebalance", "timers", "hostile", "shapes", "raft", "filling"),
)


def load(name: str) -> Callable[[Bench], list[Figure]]:
    run: Callable[[Bench], list[Figure]] = import_module(f"benchmarks.scenarios.{name}").run
    return run
