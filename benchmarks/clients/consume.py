"""`python -m benchmarks.clients.consume [--old TREE]`: CPU of our client per message of a backlog, by way of consuming.

Bodies of 100 B. The broker has one core, the client the other. With another tree of this project both are measured in turns, and
the figure that counts is the ratio within a round.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from benchmarks.bench import SIZES, Bench, Figure
from benchmarks.clients.reader import WAYS
from benchmarks.process import LOAD_CORE
from kappamq import Admin, Message, Producer

HERE = Path(__file__).resolve().parents[2]
TOPIC = "tea"
BODY_BYTES = 100
BATCH = 500
TIMEOUT_S = 120.0
COUNTS = {"toy": 2_000, "quick": 60_000, "full": 400_000}
FASTER_MIN = 5.0
"""How many times less CPU than the client that made an object with all its fields for each message."""
GOALS = {"poll": 3.0}


def measure(bench: Bench, count: int, ways: list[str], old: Path | None = None) -> list[Figure]:
    """CPU per message of each way; with an `old` tree also that of its client, and how many times less the new one needs."""
    trees = [HERE] if old is None else [old, HERE]
    with bench.nameserver() as names, bench.broker(names) as server:
        fill(names, server.address, count)
        rounds = bench.rounds(
            [(way, tree) for way in ways for tree in trees],
            lambda one: read(one[0], names, count, one[1]),
        )
    figures: list[Figure] = []
    for way in ways:
        new = [found[way, HERE]["cpu_us"] for found in rounds]
        figures.append(Figure.median("consume", way, new, "us/message", at_most=GOALS.get(way)))
        if old is not None:
            ratios = [found[way, old]["cpu_us"] / found[way, HERE]["cpu_us"] for found in rounds]
            at_least = FASTER_MIN if way in ("poll", "pull", "batch listener") else None
            figures.append(Figure.median("consume", f"{way}, old / new", ratios, at_least=at_least))
    return figures


def fill(names: str, broker: str, count: int) -> None:
    with Admin(names) as admin:
        admin.create_topic(TOPIC, queues=4)
    with Producer(names, group="bench-fill") as producer:
        batch = [
            Message(TOPIC, bytes(BODY_BYTES), tags="green", keys=(f"order-{n}",), properties={"cups": "2"})
            for n in range(BATCH)
        ]
        for _ in range(0, count, BATCH):
            producer.send_batch(batch)


def read(way: str, names: str, count: int, tree: Path) -> dict[str, float]:
    """Run a reader of its own on the load's core. Raises AssertionError if it fails."""
    program = [sys.executable, str(HERE / "benchmarks/clients/reader.py"), way, names, TOPIC, str(count)]
    done = subprocess.run(
        ["taskset", "-c", ",".join(map(str, LOAD_CORE)), *program],
        env={**os.environ, "PYTHONPATH": f"{tree / 'src'}:{HERE}"},
        cwd=tree,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, f"{way}: {done.stderr[-2000:]}"
    found: dict[str, float] = json.loads(done.stdout)
    assert found["messages"] >= count, "fewer messages than were stored"
    assert found["body_bytes"] == found["messages"] * BODY_BYTES, "bodies differ from what was sent"
    return found


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.clients.consume", description=__doc__)
    parser.add_argument("way", nargs="*", help=f"some of {', '.join(WAYS)}")
    parser.add_argument("--size", choices=COUNTS, default="quick")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--old", type=Path, help="another tree of this project, with its kernel built")
    options = parser.parse_args(arguments)
    bench = Bench(replace(SIZES[options.size], runs=options.runs), quiet=True)
    ways = options.way or list(WAYS)
    figures = measure(bench, COUNTS[options.size], ways, None if options.old is None else options.old.resolve())
    for figure in figures:
        print(f"{figure.what:32} {figure.value:10.2f} {figure.unit:12} {figure.goal:8} {figure.note}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
