"""What our client costs while it does nothing: its CPU with many idle queues, and the memory of messages that wait to be processed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from benchmarks.bench import Bench, Figure
from benchmarks.process import LOAD_CORE
from kappamq import Admin, Message, Producer

HERE = Path(__file__).resolve().parents[2]
TIMEOUT_S = 120.0
BODIES = (100, 1000)
BATCH = 500
PULLS_HELD = 8
"""So many times the usual: a pull that finds nothing is held for 15 s, and all are asked again then."""
TIMES_ITS_BYTES, MORE_BYTES = 1.3, 200
"""What a message that waits may take: so many times the bytes of its record, and so many bytes more."""


def run(bench: Bench) -> list[Figure]:
    queues = min(1_000, bench.size.queues)
    count = min(100_000, bench.size.backlog // 10)
    figures: list[Figure] = []
    with bench.nameserver() as names, bench.broker(names), Admin(names) as admin:
        admin.create_topic("idle", queues=queues)
        busy = [
            _take("idle", names, "idle", PULLS_HELD * bench.size.idle_s)["busy"] * 100 for _ in range(bench.size.runs)
        ]
        what = f"client with {queues:,} idle queues, CPU"
        figures.append(Figure.median("holding", what, busy, "% of a core", at_most=1.0))
        for body in BODIES:
            topic = f"held-{body}"
            admin.create_topic(topic, queues=4)
            admin.create_topic(f"{topic}-none", queues=1)
            with Producer(names) as producer:
                for _ in range(0, count, BATCH):
                    producer.send_batch([Message(topic, os.urandom(body)) for _ in range(BATCH)])
            found = [_take("held", names, topic, count) for _ in range(bench.size.runs)]
            stored = found[0]["stored_bytes"]
            figures.append(
                Figure.median(
                    "holding",
                    f"a message of {body} B that waits",
                    [one["bytes_each"] for one in found],
                    "B",
                    at_most=round(TIMES_ITS_BYTES * stored + MORE_BYTES),
                    note=f"{count:,} of them, {stored:.0f} B stored",
                )
            )
    return figures


def _take(way: str, names: str, topic: str, number: float) -> dict[str, float]:
    done = subprocess.run(
        [
            *("taskset", "-c", ",".join(map(str, LOAD_CORE))),
            *(sys.executable, "-m", "benchmarks.clients.holder", way, names, topic, str(number)),
        ],
        env={**os.environ, "PYTHONPATH": f"{HERE / 'src'}:{HERE}"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, f"{way}: {done.stderr[-1500:]}"
    found: dict[str, float] = json.loads(done.stdout)
    return found
