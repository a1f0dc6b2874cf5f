"""`python -m benchmarks [scenario ...]`: measure, print a table, say which goals are missed.

python -m benchmarks                      everything (about ten minutes; root and a disk for the backlog)
python -m benchmarks --quick              a first look, under two minutes
python -m benchmarks echo kernel          some scenarios
python -m benchmarks backlog --backlog 5000000
python -m benchmarks peer                 against Apache RocketMQ (Maven, a JDK); also `make peer`
python -m benchmarks spark                the pipeline on Spark, against Parquet and Kafka; also `make bench-spark`
python -m benchmarks clients              the Python client beside those of Kafka, Redis and NATS (Maven, Debian, Go)
python -m benchmarks versus OLD_TREE      CPU per message of another tree of this project and of this one, in turns
python -m benchmarks crash --rounds 1000  kill -9 again and again; `power` cuts the power instead (root)
python -m benchmarks failover --rounds 100  kill -9 of a Raft group's leader under load: how long producers wait
python -m benchmarks chaos --rounds 100   kills, pauses and cut connections in a Raft group; also `make chaos`
python -m benchmarks flips --count 500    bit flips under a running broker, each noticed by its scrub
python -m benchmarks spark-kills          kill -9 of a streaming query, 20 times, and count what it has read
python -m benchmarks spark-kills-once     the same of a query from topic to topic, exactly once, with two brokers
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from benchmarks import report, scenarios
from benchmarks.bench import SIZES, Bench, Figure
from benchmarks.loader import LoadFailed
from benchmarks.process import ProcessFailed

PROGRAMS = (
    "peer",
    "spark",
    "clients",
    "versus",
    "crash",
    "power",
    "flips",
    "spark-kills",
    "spark-kills-once",
    "failover",
    "chaos",
)


def main(arguments: list[str]) -> int:
    if arguments and arguments[0] in PROGRAMS:
        return _program(arguments[0], arguments[1:])
    options = _parser().parse_args(arguments)
    size = SIZES["quick" if options.quick else options.size]
    changes = {
        name: getattr(options, name) for name in ("runs", "seconds", "backlog") if getattr(options, name) is not None
    }
    bench = Bench(replace(size, **changes), disk=options.disk, memory=options.memory, kernel=options.kernel)
    figures: list[Figure] = []
    failed = False
    for name in options.scenario or scenarios.ALL:
        print(f"{name} ...", file=sys.stderr, flush=True)
        try:
            figures += scenarios.load(name)(bench)
        except (LoadFailed, ProcessFailed, AssertionError, OSError) as error:
            # Hours may hang on the others: this one is reported as what it is.
            why = str(error).strip() or type(error).__name__
            print(f"{name} failed: {why}", file=sys.stderr, flush=True)
            figures.append(Figure(name, "FAILED", None, note=why.splitlines()[0][:200]))
            failed = True
    missed = report.publish(figures, "benchmarks", arguments, options, "make bench")
    return 1 if failed or (missed and options.strict) else 0


def _program(name: str, arguments: list[str]) -> int:
    if name == "peer":
        from benchmarks.peer.__main__ import main as program
    elif name == "spark":
        from benchmarks.spark.__main__ import main as program
    elif name == "clients":
        from benchmarks.clients.compare import main as program
    elif name == "versus":
        from benchmarks.versus import main as program
    elif name == "crash":
        from tests.crash.kill import main as program
    elif name == "failover":
        from tests.chaos.failover import main as program
    elif name == "chaos":
        from tests.chaos.faults import main as program
    elif name == "flips":
        from tests.crash.flips import main as program
    elif name == "spark-kills":
        from tests.spark.kills import main as program
    elif name == "spark-kills-once":
        from tests.spark.kills_exactly_once import main as program
    else:
        from tests.crash.power import main as program
    return program(arguments)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("scenario", nargs="*", choices=[[], *scenarios.ALL], help="default: all")
    parser.add_argument("--size", choices=list(SIZES), default="full")
    parser.add_argument("--quick", action="store_true", help="the same as --size quick")
    parser.add_argument("--runs", type=int, help="rounds that the medians are taken over")
    parser.add_argument("--seconds", type=float, help="length of a measured run")
    parser.add_argument("--backlog", type=int, help="messages of the backlog")
    parser.add_argument("--kernel", choices=["auto", "native", "twin"], default="auto", help="for all but `kernel`")
    parser.add_argument("--disk", type=Path, help="a folder on the disk to measure; default: the temporary folder")
    parser.add_argument("--memory", type=Path, help="a folder whose pages are warm; default: /dev/shm")
    parser.add_argument("--json", type=Path, help="write all figures and samples there")
    parser.add_argument("--update-readme", action="store_true", help="put the table into benchmarks/README.md")
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a goal is missed")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
