"""Stored records to columns: the twin, numpy and the compiled kernel, CPU per row inside the process; no Spark, no sockets, no disk.

    python -m benchmarks.columns [--rows 20000] [--runs 5]

Each run finds the records and checks their checksums, then gathers the columns, as a task of Spark does with each batch.
"""

from __future__ import annotations

import argparse
import random
import time
import zlib
from dataclasses import dataclass
from types import ModuleType

from kappamq.native import load
from kappamq.native.layout import COLUMN_BODY, COLUMN_ID, COLUMN_PROPERTIES
from kappamq.protocol.records.record import Record
from kappamq.spark.columns import numpy_columns

SCENARIOS = {
    "body, queueId, queueOffset": COLUMN_BODY,
    "with msgId": COLUMN_BODY | COLUMN_ID,
    "with properties": COLUMN_BODY | COLUMN_PROPERTIES,
}


@dataclass(frozen=True)
class Measured:
    scenario: str
    kind: str
    nanoseconds: float  # CPU per row
    fingerprint: int  # of places and columns: the same work, or the number means nothing


def make_records(rows: int) -> bytes:
    """Bodies of 100 random bytes, a key, a tag, a unique id and three more properties."""
    dice = random.Random(1)
    return b"".join(
        Record(
            topic="orders",
            body=dice.randbytes(100),
            properties=f"KEYS\1key-{n}\2TAGS\1{dice.choice(('red', 'green', 'blue'))}\2UNIQ_KEY\1{dice.randbytes(16).hex().upper()}\2"
            f"CLUSTER\1DefaultCluster\2colour\1blue{n % 7}\2size\1{n % 100}\2",
            queue_id=n % 8,
            queue_offset=n,
            tail_crc=True,
        ).encode()
        for n in range(rows)
    )


def kinds() -> dict[str, ModuleType]:
    """Who can do it here; the compiled kernel only where it is built."""
    found = {"twin": load("twin"), "numpy": numpy_columns}
    try:
        found["native"] = load("native")
    except ImportError:
        pass
    return found


def measure(rows: int, runs: int) -> list[Measured]:
    """The best of `runs` interleaved runs of each scenario with each of them."""
    data = make_records(rows)
    results = []
    for scenario, wanted in SCENARIOS.items():
        best: dict[str, tuple[float, int]] = {}
        for _ in range(runs):
            for kind, module in kinds().items():
                start = time.process_time()
                places, count, _consumed, _why = module.locate(data, -1, True, len(data))
                made = module.columns(data, b"", places, wanted)
                seconds = time.process_time() - start
                assert count == rows
                fingerprint = zlib.crc32(repr(sorted(made.items())).encode(), zlib.crc32(places))
                best[kind] = min(best.get(kind, (float("inf"), 0)), (seconds, fingerprint))
        results += [Measured(scenario, kind, seconds / rows * 1e9, mark) for kind, (seconds, mark) in best.items()]
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    results = measure(options.rows, options.runs)
    print("CPU nanoseconds per row: places, checksums, columns; best of", options.runs)
    for scenario in SCENARIOS:
        found = [result for result in results if result.scenario == scenario]
        figures = "  ".join(f"{result.kind} {result.nanoseconds:7.0f}" for result in found)
        same = "" if len({result.fingerprint for result in found}) == 1 else "  NOT THE SAME WORK"
        print(f"{scenario:28} {figures}{same}")


if __name__ == "__main__":
    main()
