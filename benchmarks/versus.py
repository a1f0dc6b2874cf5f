"""`python -m benchmarks versus OLD_TREE [figure ...]`: what a message costs in another tree of this project, and in this one.

    git worktree add ../old COMMIT && make -C ../old setup SPARK=0
    python -m benchmarks versus ../old

For each figure a broker of each tree runs, and both are loaded in turns: old and new, then new and old. A ratio is taken within
such a round; a figure is the median of all rounds, with their range. What is compared is CPU time of the broker (schedstat), because
wall time on a shared machine tells what the others did. Both brokers run with the same Python and on the same core, and the one
that is not loaded has nothing to do.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks import report
from benchmarks.bench import SIZES, Bench, Figure, native_is_built
from benchmarks.loader import BATCH, PULL, Load
from benchmarks.loader import run as run_load
from benchmarks.scenarios.sending import create_topic, measure
from benchmarks.servers import Broker, broker, settle
from benchmarks.wire import Wire
from kappamq.protocol import frame
from kappamq.protocol.headers.client import GetMaxOffset

HERE = Path(__file__).resolve().parents[1]
OLD, NEW = "old", "new"
ROUNDS = 15
WINDOW_S = 0.5
STRICT, LENIENT = 1.03, 1.10
"""Goals: the loops that run once per message or turn, and what has more of the machine in it."""
PULLED_PER_QUEUE = 6_400
ASKED_AT_ONCE = 64

Window = Callable[[Broker], float]
"""One measured window of a broker: CPU microseconds per message."""


@dataclass(frozen=True, slots=True)
class Compared:
    name: str
    goal: float
    load: Load | None = None  # None: not a load of load.c
    flush: str | None = None  # else the log is in memory
    topics_of: bool = False  # as many topics as the size says


FIGURES = (
    Compared("send, 1x1", STRICT, Load(connections=1, inflight=1)),
    Compared("kernel, 32x1", STRICT, Load(connections=32, inflight=1)),
    Compared("kernel, 8x64", STRICT, Load(connections=8, inflight=64)),
    Compared("kernel, batches", STRICT, Load(connections=8, inflight=8, mode=BATCH)),
    Compared("variants, no coalescing", STRICT, Load(connections=8, inflight=64, coalesce=False)),
    Compared("variants, binary", STRICT, Load(connections=8, inflight=64, binary=True)),
    Compared("variants, 1 KiB", STRICT, Load(connections=8, inflight=64, body=1024)),
    Compared("variants, pulls", STRICT, Load(mode=PULL, connections=8, inflight=8, loop=True)),
    Compared("max offset", LENIENT),
    Compared("flush, async", LENIENT, Load(connections=32, inflight=1), flush="ASYNC_FLUSH"),
    Compared("flush, sync", LENIENT, Load(connections=32, inflight=1), flush="SYNC_FLUSH"),
    Compared("queues", LENIENT, Load(connections=8, inflight=8, topic="many"), topics_of=True),
    Compared("idle", LENIENT),
)


class NotATree(Exception):
    pass


class Versus:
    def __init__(self, bench: Bench, old: Path, rounds: int, seconds: float) -> None:
        self._bench = bench
        self._sources = {OLD: source_of(old), NEW: source_of(HERE)}
        self._kernel = "native" if native_is_built() else "twin"
        self._rounds, self._seconds = rounds, seconds
        for source in self._sources.values():
            check_source(source, self._kernel)

    def run(self, wanted: Compared) -> list[Figure]:
        """CPU of both trees and their ratio."""
        with self._bench.nameserver() as names, ExitStack() as stack:
            brokers = {
                tree: stack.enter_context(self._broker(names, source, wanted)) for tree, source in self._sources.items()
            }
            window = self._window(wanted)
            for server in brokers.values():
                self._prepare(server, wanted)
                window(server)  # code that runs for the first time, pages that are new
            for server in brokers.values():
                settle(server.process)
            rounds = self._bench.rounds((OLD, NEW), lambda tree: window(brokers[tree]), self._rounds)
        return figures(wanted, rounds)

    @contextmanager
    def _broker(self, names: str, source: Path, wanted: Compared) -> Iterator[Broker]:
        properties: dict[str, object] = {"mappedFileSizeCommitLog": self._bench.size.segment_bytes}
        if wanted.flush is not None:
            properties["flushDiskType"] = wanted.flush
        with (
            self._bench.folder(on_disk=wanted.flush is not None) as home,
            broker(home, names, kernel=self._kernel, properties=properties, env=environment(source)) as server,
        ):
            yield server

    def _load(self, wanted: Compared) -> Load:
        assert wanted.load is not None
        # Batches write more than a gigabyte a second: short windows stay inside the first log file.
        part = 0.1 if wanted.load.mode == BATCH else 1.0
        load = replace(wanted.load, seconds=self._seconds * part, warmup=self._seconds * part / 5)
        return replace(load, topics=self._bench.size.queue_topics) if wanted.topics_of else load

    def _prepare(self, server: Broker, wanted: Compared) -> None:
        load = self._load(wanted) if wanted.load is not None else Load()
        create_topic(server, load)
        if load.mode == PULL:
            filled = Load(mode=BATCH, requests=8 * PULLED_PER_QUEUE // 32, seconds=0, warmup=0)
            run_load(server.address, filled, server.home)

    def _window(self, wanted: Compared) -> Window:
        if wanted.name == "idle":
            return lambda server: _idle(server, self._seconds)
        if wanted.load is None:
            return lambda server: _max_offsets(server, self._seconds)
        load = self._load(wanted)
        if load.mode == PULL:
            load = replace(load, until=PULLED_PER_QUEUE)
        return lambda server: measure(server, load).cpu_us


def _max_offsets(server: Broker, seconds: float) -> float:
    """CPU microseconds for a request that Python decodes and answers at once."""
    header = GetMaxOffset(topic=Load().topic, queue_id=0)
    asked = b"".join(frame.request(header, opaque=n).encode() for n in range(1, ASKED_AT_ONCE + 1))
    count = 0
    with Wire(server.address) as wire:
        before, until = server.process.cpu(), time.monotonic() + seconds
        while time.monotonic() < until:
            wire.send_frames(asked)
            for _ in range(ASKED_AT_ONCE):
                answer = wire.receive()
                assert answer.code == 0, f"refused with {answer.code}: {answer.remark}"
            count += ASKED_AT_ONCE
        return (server.process.cpu() - before).run_ns / 1000 / count


def _idle(server: Broker, seconds: float) -> float:
    """CPU microseconds for a second in which nothing happens."""
    before, began = server.process.cpu(), time.monotonic()
    time.sleep(2 * seconds)
    return (server.process.cpu() - before).run_ns / 1000 / (time.monotonic() - began)


def figures(wanted: Compared, rounds: list[dict[str, float]]) -> list[Figure]:
    unit = "CPU us/s" if wanted.name == "idle" else "CPU us/message"
    ratios = [measured[NEW] / measured[OLD] for measured in rounds]
    quarters = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else [ratios[0]] * 3
    note = f"{len(rounds)} rounds, half of them {quarters[0]:.3f} - {quarters[2]:.3f}"
    old, new = ([measured[tree] for measured in rounds] for tree in (OLD, NEW))
    return [
        Figure.median("versus", f"{wanted.name}, old", old, unit),
        Figure.median("versus", f"{wanted.name}, new", new, unit),
        Figure.median("versus", f"{wanted.name}, new / old", ratios, "x", at_most=wanted.goal, note=note),
    ]


def source_of(tree: Path) -> Path:
    """The folder with the package; raises NotATree."""
    source = tree.resolve() / "src"
    if not (source / "kappamq" / "__init__.py").is_file():
        raise NotATree(f"{tree} is no tree of this project: {source / 'kappamq'} is not there")
    return source


def environment(source: Path) -> Mapping[str, str]:
    return {"PYTHONPATH": str(source)}


def check_source(source: Path, kernel: str) -> None:
    """Raise NotATree if a process that is told to use this source uses another one, or cannot load its kernel."""
    program = "import sys, kappamq; from kappamq import native; native.load(sys.argv[1]); print(kappamq.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", program, kernel],
        env={**os.environ, **environment(source)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise NotATree(f"{source} cannot be run, `make setup SPARK=0` there builds its kernel:\n{done.stderr[-1000:]}")
    if not Path(done.stdout.strip()).is_relative_to(source):
        raise NotATree(f"{sys.executable} takes {done.stdout.strip()} and not {source}")


def main(arguments: list[str]) -> int:
    options = _parser().parse_args(arguments)
    bench = Bench(SIZES[options.size], disk=options.disk, memory=options.memory)
    wanted = [one for one in FIGURES if not options.figure or any(part in one.name for part in options.figure)]
    if not wanted:
        print(f"no figure has such a name; there are: {', '.join(one.name for one in FIGURES)}", file=sys.stderr)
        return 2
    try:
        versus = Versus(bench, options.old, options.rounds, options.seconds)
    except NotATree as error:
        print(error, file=sys.stderr)
        return 2
    found: list[Figure] = []
    for one in wanted:
        found += versus.run(one)
        last = found[-1]
        print(f"{last.what}: {report.number(last.value)} ({last.note})", file=sys.stderr, flush=True)
    print(f"load average {', '.join(f'{part:.1f}' for part in os.getloadavg())}")
    missed = report.publish(found, "benchmarks", ["versus", *arguments], options, "versus")
    return 1 if missed and options.strict else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks versus", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old", type=Path, help="a work tree of this project in which `make setup` has run")
    parser.add_argument("figure", nargs="*", help="parts of the names of figures; default: all")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--seconds", type=float, default=WINDOW_S, help="length of a measured window")
    parser.add_argument("--size", choices=list(SIZES), default="quick", help="how many queues `queues` has")
    parser.add_argument("--disk", type=Path, default=Path(tempfile.gettempdir()), help="where `flush` writes")
    parser.add_argument("--memory", type=Path, help="a folder whose pages are warm; default: /dev/shm")
    parser.add_argument("--json", type=Path, help="write all figures and samples there")
    parser.add_argument("--update-readme", action="store_true", help="put the table into benchmarks/README.md")
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a goal is missed")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
