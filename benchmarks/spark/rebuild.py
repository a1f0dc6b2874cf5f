"""Rebuilding consume queues and key index from the log with Spark: messages a second for each core."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final

from benchmarks.bench import Figure
from benchmarks.spark.lab import BODIES, Lab, cpu_of, load, used_s
from kappamq.spark import jobs

WHAT: Final = f"messages/s per core, {BODIES[0]} B"
GOAL: Final = 800_000
THREADS: Final = 2
"""Of Spark, in `make bench-spark`."""


def run(lab: Lab) -> list[Figure]:
    rebuild: Callable[..., Any] | None = getattr(jobs, "rebuild", None)
    if rebuild is None:
        return [Figure("rebuild", WHAT, None, at_least=GOAL, note="there is no kappamq.spark.jobs.rebuild yet")]
    cores = min(THREADS, len(os.sched_getaffinity(0)))
    with lab.filled(BODIES[0]) as filled:
        filled.broker.stop()

        def one(_what: str) -> tuple[float, float]:
            done: list[Any] = []
            before = cpu_of(os.getpid())  # Spark's processes are below this one, which works, too
            took = lab.take(lambda: done.append(rebuild(lab.spark, filled.broker.data)))
            used = used_s(before, cpu_of(os.getpid()))
            assert done[0].records >= filled.count, f"{done[0].records} records of {filled.count} were rebuilt"
            return done[0].records / took.seconds / cores, done[0].records / max(used, 0.01)

        rounds = [each["rebuild"] for each in lab.rounds(("rebuild",), one)]
    by_cpu = sorted(cpu for _rate, cpu in rounds)[len(rounds) // 2]
    note = f"wall time on {cores} cores; by CPU {by_cpu:,.0f}; two keys a message; {load()}"
    return [Figure.median("rebuild", WHAT, [rate for rate, _cpu in rounds], "messages/s", at_least=GOAL, note=note)]
