"""`make bench-spark`: the pipeline on Spark against its goals.

python -m benchmarks.spark                   everything (about 20 minutes)
python -m benchmarks.spark --quick           a first look, some minutes
python -m benchmarks.spark store stream      some scenarios
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import report, spark
from benchmarks.bench import SIZES, Bench, Figure
from benchmarks.loader import LoadFailed
from benchmarks.process import ProcessFailed
from tests.interop.jars import Missing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def main(arguments: list[str]) -> int:
    options = _parser().parse_args(arguments)
    size = SIZES["quick" if options.quick else options.size]
    changes = {"runs": options.runs, "table_rows": options.rows}
    size = replace(size, **{name: value for name, value in changes.items() if value is not None})
    names = options.scenario or list(spark.ALL)
    figures: list[Figure] = []
    session = _session("kafka" in names)
    try:
        figures, failed = _run(names, Bench(size, disk=options.disk), session, toy=options.size == "toy")
    finally:
        session.stop()
    missed = report.publish(figures, "benchmarks.spark", arguments, options, "make bench-spark")
    return 1 if failed or (missed and options.strict) else 0


def _run(names: list[str], bench: Bench, session: SparkSession, *, toy: bool) -> tuple[list[Figure], bool]:
    from benchmarks.spark.lab import Lab

    figures: list[Figure] = []
    failed = False
    lab = Lab(bench, session, toy=toy)
    for name in names:
        print(f"{name} ...", file=sys.stderr, flush=True)
        try:
            found = spark.load(name)(lab)
        except (LoadFailed, ProcessFailed, AssertionError, OSError, Missing) as error:
            why = str(error).strip() or type(error).__name__
            print(f"{name} failed: {why}", file=sys.stderr, flush=True)
            found = [Figure(name, "FAILED", None, note=why.splitlines()[0][:200])]
            failed = True
        figures += found
        print(report.text(found), file=sys.stderr, flush=True)
    return figures, failed


def _session(with_kafka: bool) -> SparkSession:
    """Two threads, as the goals say nothing of larger machines; with Kafka's connector where it can be had."""
    from benchmarks.spark import kafka
    from kappamq.spark import engine

    config = {"spark.driver.memory": "2g"}
    if with_kafka:
        try:
            config["spark.jars"] = kafka.connector_jars()
        except Missing as error:
            print(f"Kafka is left out: {error}", file=sys.stderr)
    session = engine.session("local[2]", "bench-spark", config)
    session.sparkContext.setLogLevel("OFF")  # a read that is cancelled is no error
    return session


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.spark", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("scenario", nargs="*", choices=[[], *spark.ALL], help="default: all")
    parser.add_argument("--size", choices=list(SIZES), default="full")
    parser.add_argument("--quick", action="store_true", help="the same as --size quick")
    parser.add_argument("--runs", type=int, help="rounds that the medians are taken over")
    parser.add_argument("--rows", type=int, help="rows of 100 B; of 1 KiB there are a quarter as many")
    parser.add_argument("--disk", type=Path, help="a folder on the disk to write to; default: the temporary folder")
    parser.add_argument("--json", type=Path, help="write all figures and samples there")
    parser.add_argument("--update-readme", action="store_true", help="put the table into benchmarks/README.md")
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a goal is missed")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
