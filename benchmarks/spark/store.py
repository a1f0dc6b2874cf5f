"""A batch read of the log itself, against Spark's own Parquet reader on the same rows and columns, and against a source that has its
batches in memory (`ready.py`): what is faster than that no source in Python can be."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from benchmarks.bench import Figure
from benchmarks.spark import ready
from benchmarks.spark.lab import BODY, ID, MAP, Filled, Lab, Took, compared, digest

STORE, PARQUET, READY = "store", "Parquet", "batches in memory"
GOALS: Final = {"body, queue, offset": 0.75, "with msgId": 0.6, "with properties": 0.4}


def run(lab: Lab) -> list[Figure]:
    figures: list[Figure] = []
    lab.spark.dataSource.register(ready.ReadyStore)
    for body in lab.bodies:
        with lab.bench.folder(on_disk=True) as home, lab.filled(body) as filled:
            filled.broker.stop()
            write_parquet(lab, filled, home / "table")
            for what, columns in lab.kinds.items():
                figures += _compare(lab, filled, home / "table", what, columns, body)
    return figures


def write_parquet(lab: Lab, filled: Filled, path: Path) -> None:
    """The same rows as Parquet, with Spark's defaults."""
    lab.table("kappamq.store", filled.store, (*BODY, ID, MAP)).write.parquet(str(path))


def _compare(lab: Lab, filled: Filled, path: Path, what: str, columns: tuple[str, ...], body: int) -> list[Figure]:
    frames = {
        STORE: lab.table("kappamq.store", filled.store, columns),
        PARQUET: lab.spark.read.parquet(str(path)).select(*columns),
        READY: lab.table(ready.FORMAT, filled.store, columns),
    }
    digests = {name: digest(frame) for name, frame in frames.items()}
    assert len(set(digests.values())) == 1, f"the tables differ: {digests}"
    assert digests[STORE][0] == filled.count, f"{filled.count} messages were sent, {digests[STORE][0]} read"

    def one(name: str) -> Took:
        return lab.read(frames[name])

    rounds = lab.rounds((STORE, PARQUET, READY), one)
    return [
        *compared("store", f"{body} B, {what}", rounds, STORE, PARQUET, filled.count, GOALS[what]),
        *compared("store", f"{body} B, {what}", rounds, READY, PARQUET, filled.count)[::2],
    ]
