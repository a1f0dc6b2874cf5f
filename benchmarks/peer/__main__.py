"""`make peer`: KappaMQ against Apache RocketMQ, in turns, under RocketMQ's own benchmark programs and a load of ours (features.py).

python -m benchmarks.peer                   5 runs of 6 s for each load and feature (about 40 minutes)
python -m benchmarks.peer --quick           one short run each, for a first look
python -m benchmarks.peer --only consume    the loads and features with this word in their name

The broker has one core, load and name servers the other; the broker that is not measured is stopped (SIGSTOP) meanwhile.
Both write to the same disk with RocketMQ's default settings (asynchronous flush); log pages are cold, written for the
first time. Ratios are taken within a run, figures are medians over runs.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from benchmarks import report
from benchmarks.bench import Figure
from benchmarks.peer.brokers import APACHE, KAPPAMQ, KINDS, Peer
from benchmarks.peer.copies import COPIES, compare_copies
from benchmarks.peer.features import Feature, Size, features
from benchmarks.peer.loads import Load, Measured, create_topic, fill, loads, measure
from tests.needs import require

BUSY = 0.85
"""A broker that uses more than this part of its core could not do much more, whatever the load."""
RATE_GOAL, CPU_GOAL, MEMORY_GOAL, READY_GOAL = 1.5, 0.5, 0.2, 0.2


def main(arguments: list[str]) -> int:
    options = _parser().parse_args(arguments)
    require("maven", "java", "cores:2", "disk:8G" if options.quick else "disk:30G")
    if options.quick:
        options.runs, options.seconds, options.warmup, options.backlog = 1, 2.0, 2.0, 300_000
    work = Path(tempfile.mkdtemp(prefix="kappamq-peer-", dir=options.disk))
    try:
        figures = Comparison(work, options).run()
    finally:
        shutil.rmtree(work, ignore_errors=True)
    missed = report.publish(figures, "benchmarks.peer", arguments, options, "make peer")
    return 1 if missed and options.strict else 0


class Comparison:
    def __init__(self, work: Path, options: argparse.Namespace) -> None:
        self.work, self.options = work, options
        self.runs: int = options.runs

    def run(self) -> list[Figure]:
        figures = [] if self.options.only else self.time_to_ready()
        for load in loads(self.options.backlog):
            if self.options.only in load.name:
                figures += self.compare(load)
        for feature in features():
            if self.options.only in feature.name:
                figures += self.compare_feature(feature)
        if self.options.only in COPIES:
            figures += compare_copies(self.work, self.runs, self.options.seconds, self.options.warmup, self.say)
        return figures

    def say(self, text: str) -> None:
        print(f"  {text}", file=sys.stderr, flush=True)

    def time_to_ready(self) -> list[Figure]:
        """From the start of the broker's process, on an empty folder, until clients are sent to it."""
        seconds: dict[str, list[float]] = {kind: [] for kind in KINDS}
        for number in range(self.runs):
            for kind in KINDS:
                home = self.work / f"ready-{number}-{kind.split()[0]}"
                with Peer(kind, home).running() as peer:
                    seconds[kind].append(peer.ready_s)
                shutil.rmtree(home, ignore_errors=True)
        ratios = [ours / theirs for ours, theirs in zip(seconds[KAPPAMQ], seconds[APACHE], strict=True)]
        self.say(f"ready after {seconds}")
        return [
            *(Figure.median("peer: ready", kind, seconds[kind], "s") for kind in KINDS),
            Figure.median("peer: ready", "ratio", ratios, "x", at_most=READY_GOAL),
        ]

    def compare(self, load: Load) -> list[Figure]:
        """Both brokers on fresh folders, the load against one and the other in turn."""
        home = self.work / load.name.replace(" ", "-")
        results: list[dict[str, Measured]] = []
        with ExitStack() as stack:
            peers = {kind: stack.enter_context(Peer(kind, home / kind.split()[0]).running()) for kind in KINDS}
            for peer in peers.values():
                if load.consumes:
                    fill(peer, load, home / "fill")
                else:
                    create_topic(peer, load.topic)
                # The virtual machine compiles what it finds busy: its broker gets one unmeasured run first, so does ours.
                self._measure(peer, load, home, "first")
                peer.pause()
            for number in range(self.runs):
                result: dict[str, Measured] = {}
                for kind in KINDS if number % 2 == 0 else KINDS[::-1]:
                    peers[kind].resume()
                    result[kind] = self._measure(peers[kind], load, home, f"run{number}")
                    peers[kind].pause()
                results.append(result)
                self.say(f"{load.name}: " + "; ".join(_line(kind, result[kind]) for kind in KINDS))
            for peer in peers.values():
                peer.resume()
            memory = {kind: peer.broker.rss_anon() / 1e6 for kind, peer in peers.items()}
        shutil.rmtree(home, ignore_errors=True)
        return _figures(load, results, memory)

    def compare_feature(self, feature: Feature) -> list[Figure]:
        """The same for one of the features; what is counted is what a message costs, or how long one takes."""
        home = self.work / feature.name.replace(" ", "-")
        options = self.options
        size = Size(seconds=options.seconds, warmup=options.warmup)
        if options.quick:
            size = Size(messages=5000, filtered=30_000, backlog=300_000, seconds=options.seconds, warmup=options.warmup)
        results: dict[str, list[float]] = {kind: [] for kind in KINDS}
        with ExitStack() as stack:
            peers = {kind: stack.enter_context(Peer(kind, home / kind.split()[0]).running()) for kind in KINDS}
            for kind, peer in peers.items():
                feature.prepare(peer, size, home / f"prepare-{kind.split()[0]}")
                feature.measure(peer, size, home / f"first-{kind.split()[0]}")  # as with the loads: not counted
                peer.pause()
            for number in range(self.runs):
                for kind in KINDS if number % 2 == 0 else KINDS[::-1]:
                    peers[kind].resume()
                    results[kind].append(feature.measure(peers[kind], size, home / f"run{number}-{kind.split()[0]}"))
                    peers[kind].pause()
                self.say(f"{feature.name}: " + "; ".join(f"{kind} {results[kind][-1]:.3g}" for kind in KINDS))
            for peer in peers.values():
                peer.resume()
        shutil.rmtree(home, ignore_errors=True)
        name = f"peer: {feature.name}"
        ratios = [ours / theirs for ours, theirs in zip(results[KAPPAMQ], results[APACHE], strict=True)]
        return [
            *(Figure.median(name, f"{kind}, {feature.what}", results[kind], feature.unit) for kind in KINDS),
            Figure.median(name, f"{feature.what}, ratio", ratios, "x", at_most=feature.at_most),
        ]

    def _measure(self, peer: Peer, load: Load, home: Path, number: str) -> Measured:
        options = self.options
        return measure(
            peer,
            load,
            home / f"load-{number}-{peer.kind.split()[0]}",
            warmup_s=options.warmup,
            seconds=options.seconds,
            group=f"peer_{number}",
        )


def _line(kind: str, result: Measured) -> str:
    return f"{kind} {result.rate:,.0f}/s, {result.cpu_us:.2f} us CPU, core {result.busy:.0%} busy"


def _figures(load: Load, results: list[dict[str, Measured]], memory: dict[str, float]) -> list[Figure]:
    name = f"peer: {load.name}"
    figures = []
    for kind in KINDS:
        figures.append(Figure.median(name, f"{kind}, rate", [each[kind].rate for each in results], "messages/s"))
        figures.append(
            Figure.median(name, f"{kind}, broker CPU", [each[kind].cpu_us for each in results], "us/message")
        )
    rates = Figure.median(name, "rate, ratio", [each[KAPPAMQ].rate / each[APACHE].rate for each in results], "x")
    costs = Figure.median(
        name, "broker CPU, ratio", [each[KAPPAMQ].cpu_us / each[APACHE].cpu_us for each in results], "x"
    )
    # One of the two is asked for: the rate or, where the load is the bottleneck, the CPU.
    busy = statistics.median(each[KAPPAMQ].busy for each in results)
    assert rates.value is not None
    if rates.value >= RATE_GOAL or busy > BUSY:
        rates.at_least = RATE_GOAL
    else:
        costs.at_most = CPU_GOAL
        rates.note = f"the load is the bottleneck: our broker's core was {busy:.0%} busy"
    memories = Figure(name, "RssAnon, ratio", memory[KAPPAMQ] / memory[APACHE], "x", at_most=MEMORY_GOAL)
    memories.note = ", ".join(f"{kind} {megabytes:.0f} MB" for kind, megabytes in memory.items())
    return [*figures, rates, costs, memories]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peer", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one short run of each")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=6.0, help="length of a measured run")
    parser.add_argument("--warmup", type=float, default=4.0, help="seconds for the load's program to warm up")
    parser.add_argument(
        "--backlog", type=int, default=2_000_000, help="messages of 128 B to consume; larger ones: fewer"
    )
    parser.add_argument("--only", default="", help="loads with this text in their name")
    parser.add_argument("--disk", type=Path, help="a folder on the disk to write to; default: the temporary folder")
    parser.add_argument("--json", type=Path, help="write all figures and samples there")
    parser.add_argument("--update-readme", action="store_true", help="put the table into benchmarks/README.md")
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a goal is missed")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
