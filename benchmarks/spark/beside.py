"""What producers feel of a Spark job that reads from the same broker: p99 of sends alone, beside a paced read, beside one that is not."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from benchmarks.bench import Figure
from benchmarks.loader import SEND, Load
from benchmarks.process import BROKER_CORE, CORES, LOAD_CORE
from benchmarks.scenarios.sending import create_topic, measure
from benchmarks.servers import settle
from benchmarks.spark.lab import BODIES, BODY, Filled, Lab, load, tree

SENDS_PER_S: Final = 1_000
PACE_BYTES: Final = 10_000_000
"""maxBytesPerSecond of each of the two tasks."""
ALONE, PACED, FREE = "alone", "beside a paced read", "beside a read that is not paced"
GOAL: Final = 2.0


def run(lab: Lab) -> list[Figure]:
    # The broker has a core, as in the other benchmarks; Spark and those who send share the other one.
    with lab.filled(BODIES[0], cores=BROKER_CORE) as filled, _confined(lab, LOAD_CORE):
        sends = Load(
            mode=SEND,
            connections=8,
            topic="tail",
            rate=SENDS_PER_S,
            seconds=max(1.0, lab.bench.size.seconds) * 1.5,
            warmup=lab.bench.size.warmup,
        )
        create_topic(filled.broker, sends)
        measure(filled.broker, sends)

        def p99(how: str) -> float:
            settle(filled.broker.process)
            with _reading(lab, filled, how):
                return measure(filled.broker, sends, policy=policy()).loaded.p99_us / 1000

        rounds = lab.bench.rounds((ALONE, PACED, FREE), p99)
    figures = [
        Figure.median("beside", f"p99 of sends {how}", [each[how] for each in rounds], "ms") for how in rounds[0]
    ]
    pace = f"{SENDS_PER_S} sends/s; maxBytesPerSecond={PACE_BYTES} in each of 2 tasks; {load()}"
    paced = [each[PACED] / each[ALONE] for each in rounds]
    free = [each[FREE] / each[ALONE] for each in rounds]
    return [
        *figures,
        Figure.median("beside", "paced / alone", paced, "x", at_most=GOAL, note=pace),
        Figure.median("beside", "not paced / alone", free, "x", note=load()),
    ]


def policy() -> int:
    """Whoever takes the times does not wait for Spark, which shares its core: what is measured is the broker."""
    return os.SCHED_FIFO if os.geteuid() == 0 else os.SCHED_OTHER


@contextmanager
def _reading(lab: Lab, filled: Filled, how: str) -> Iterator[None]:
    """Spark reads the topic again and again until the block ends."""
    if how == ALONE:
        yield
        return
    options = {**filled.source, "minPartitions": "2"}
    if how == PACED:
        options["maxBytesPerSecond"] = str(PACE_BYTES)
    frame = lab.table("kappamq", options, BODY)
    done = threading.Event()
    failed: list[BaseException] = []

    def again_and_again() -> None:
        try:
            while not done.is_set():
                lab.read(frame)
        except BaseException as error:
            if not done.is_set():
                failed.append(error)

    reader = threading.Thread(target=again_and_again)
    before = filled.broker.process.cpu().run_ns
    reader.start()
    try:
        while filled.broker.process.cpu().run_ns - before < 20_000_000 and reader.is_alive():
            done.wait(0.05)  # until the broker is being read
        yield
    finally:
        done.set()
        lab.spark.sparkContext.cancelAllJobs()
        reader.join()
    if failed:
        raise failed[0]


@contextmanager
def _confined(lab: Lab, cores: set[int]) -> Iterator[None]:
    """Keep Spark, its Python workers included, to some cores meanwhile."""
    _pin(lab.spark_pid, cores)
    try:
        yield
    finally:
        _pin(lab.spark_pid, set(CORES))


def _pin(pid: int, cores: set[int]) -> None:
    for process in tree(pid):
        for thread in _threads(process):
            try:
                os.sched_setaffinity(thread, cores)
            except ProcessLookupError:
                continue  # it has just ended


def _threads(pid: int) -> list[int]:
    try:
        return [int(place.name) for place in Path(f"/proc/{pid}/task").iterdir()]
    except OSError:
        return []
