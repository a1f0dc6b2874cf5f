"""A batch read through a broker, against the store reader on the same messages."""

from __future__ import annotations

from typing import Final

from benchmarks.bench import Figure
from benchmarks.spark.lab import Lab, Took, compared, digest

BROKER, STORE = "broker", "store"
GOAL: Final = 0.6


def run(lab: Lab) -> list[Figure]:
    figures: list[Figure] = []
    for body in lab.bodies:
        with lab.filled(body) as filled:
            for what, columns in lab.kinds.items():
                frames = {
                    BROKER: lab.table("kappamq", filled.source, columns),
                    STORE: lab.table("kappamq.store", filled.store, columns),
                }
                digests = {name: digest(frame) for name, frame in frames.items()}
                assert digests[BROKER] == digests[STORE], f"the tables differ: {digests}"

                def one(name: str, frames: dict[str, object] = frames, pid: int = filled.broker.process.pid) -> Took:
                    return lab.read(frames[name], pid)  # type: ignore[arg-type]

                rounds = lab.rounds((BROKER, STORE), one)
                figures += compared("broker", f"{body} B, {what}", rounds, BROKER, STORE, filled.count, GOAL)
    return figures
