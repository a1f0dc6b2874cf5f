"""`python -m benchmarks clients`: our client beside those of Kafka, Redis and NATS, each with its own server on the broker's core; and
beside Apache's Java client, with the same broker.

Bodies of 100 B, 10,000 messages in flight at most. What is compared runs in turns; a ratio is taken within a round. Ratios are of CPU:
how many times as much the other client needs for a message. Rates are told, too, and depend on the servers and on what else runs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks import report
from benchmarks.bench import SIZES, Bench, Figure
from benchmarks.clients import reader, sender
from benchmarks.clients.peers import installed, loads
from benchmarks.process import LOAD_CORE, ProcessFailed
from kappamq import Admin
from tests.interop import jars
from tests.interop.apache import java_command
from tests.interop.probe import compiled

HERE = Path(__file__).resolve().parents[2]
TIMEOUT_S = 300.0
COUNTS = {"toy": 2_000, "quick": 60_000, "full": 400_000}
FEWER = {"send and wait": 20, "nats-py": 4}
"""These take so much longer that a part of the messages says as much."""
QUEUES = 4
SENT = "sent"
READ = "read"
SERVERS: dict[str, Callable[[Path], object]] = {
    "kafka": installed.kafka_server,
    "redis": installed.redis,
    "nats": installed.nats,
}
SERVER_OF = {"confluent-kafka": "kafka", "aiokafka": "kafka", "redis-py": "redis", "nats-py": "nats"}


@dataclass(frozen=True)
class Goal:
    """Our way of doing something must need at most 1/`factor` of what theirs does; or, of rates, reach `factor` of it."""

    ours: str
    theirs: str
    factor: float
    of: str = "cpu_us"


GOALS = (
    Goal("send_nowait", "aiokafka send", 2.0),
    Goal("send in tasks", "aiokafka send", 1.0),
    Goal("callback", "confluent-kafka send", 0.4),
    Goal("send_async", "confluent-kafka send", 0.2),
    Goal("poll", "aiokafka consume", 1.0),
    Goal("poll", "confluent-kafka consume", 0.5),
    Goal("batch listener", "aiokafka consume", 1.0),
    Goal("batch listener", "confluent-kafka consume", 0.5),
    Goal("listener in threads", "poll", 0.3),
    Goal("coroutine listener", "poll", 0.2),
    Goal("send and wait", "redis-py send and wait", 1 / 1.3, "p50_us"),
    Goal("send and wait", "redis-py send and wait", 1 / 1.3, "p99_us"),
    Goal("callback", "java send", 0.7, "per_second"),
    Goal("listener in threads", "java consume", 0.7, "per_second"),
)
JAVA = ("java send", "java consume")
"""The official client, against the same broker as ours."""
LOAD_JAVA = Path(__file__).with_name("peers") / "Load.java"
HEAP_MB = 512


class Lab:
    """All servers, running; what is not there is said once."""

    def __init__(self, bench: Bench, count: int) -> None:
        self.bench = bench
        self.count = count
        self.names = ""
        self.home: Path | None = None
        self.addresses: dict[str, str] = {}
        self.missing: dict[str, str] = {}
        self._topics = 0

    @contextmanager
    def running(self, servers: set[str]) -> Iterator[Lab]:
        with ExitStack() as stack:
            self.names = stack.enter_context(self.bench.nameserver())
            self.home = stack.enter_context(self.bench.folder(on_disk=True))
            stack.enter_context(self.bench.broker(self.names))
            for name in sorted(servers):
                home = stack.enter_context(self.bench.folder(on_disk=False))
                try:
                    self.addresses[name] = stack.enter_context(SERVERS[name](home))  # type: ignore[arg-type]
                except (jars.Missing, ProcessFailed) as error:
                    self.missing[name] = str(error).strip().splitlines()[0]
            yield self

    def take(self, way: str) -> dict[str, float]:
        """Run one client, with a topic of its own if it sends."""
        count = self.count
        for name, part in FEWER.items():
            if name in way:
                count = max(1000, count // part)
        sends = "send" in way or way == "callback"
        topic = READ
        if sends:
            self._topics += 1
            topic = f"{SENT}-{self._topics}"
        if way in JAVA and sends:
            self.create(topic)
        if way in JAVA:
            return self._run(self._java(way, topic, count), {})
        if way in loads.WAYS:
            program, address = "benchmarks.clients.peers.loads", self.addresses[SERVER_OF[way.split()[0]]]
            python, path = installed.python(), str(HERE)
        else:
            program = "benchmarks.clients.sender" if sends else "benchmarks.clients.reader"
            address, python, path = self.names, Path(sys.executable), f"{HERE / 'src'}:{HERE}"
            if sends:
                self.create(topic)
        return self._run([str(python), "-m", program, way, address, topic, str(count)], {"PYTHONPATH": path})

    def _run(self, command: list[str], env: dict[str, str]) -> dict[str, float]:
        done = subprocess.run(
            ["taskset", "-c", ",".join(map(str, LOAD_CORE)), *command],
            env={**os.environ, **env},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        if done.returncode != 0:
            raise ProcessFailed(f"{' '.join(command[-4:])}: {done.stderr[-1500:]}")
        found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
        return found

    def _java(self, way: str, topic: str, count: int) -> list[str]:
        assert self.home is not None
        before = (compiled(jars.CLIENT_5, [LOAD_JAVA]),)
        logs = (f"-Drocketmq.client.logRoot={self.home}",)
        command = java_command(jars.CLIENT_5, self.home, "Load", heap_mb=HEAP_MB, options=logs, before=before)
        return [*command, way, self.names, topic, str(count)]

    def create(self, topic: str) -> None:
        with Admin(self.names) as admin:
            admin.create_topic(topic, queues=QUEUES)

    def fill(self, ways: list[str]) -> None:
        """Put a backlog of bare bodies where somebody will read it."""
        self.create(READ)
        fillers = {"send_batch"} if any(way in reader.WAYS or way == "java consume" for way in ways) else set()
        fillers |= {f"{way.split()[0]} send" for way in ways if way.endswith(" consume") and way not in JAVA}
        fillers -= {"aiokafka send"} if "confluent-kafka send" in fillers else set()
        for way in fillers:
            self._fill(way)

    def _fill(self, way: str) -> None:
        ours = way == "send_batch"
        program = "benchmarks.clients.sender" if ours else "benchmarks.clients.peers.loads"
        python = sys.executable if ours else str(installed.python())
        address = self.names if ours else self.addresses[SERVER_OF[way.split()[0]]]
        path = f"{HERE / 'src'}:{HERE}" if ours else str(HERE)
        subprocess.run(
            [python, "-m", program, way, address, READ, str(self.count)],
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            timeout=TIMEOUT_S,
            check=True,
        )


def measure(bench: Bench, count: int, wanted: list[str] | None = None) -> list[Figure]:
    """All ways, or those that are wanted, and the ratios that their goals are about."""
    ways = wanted or [*sender.WAYS, *reader.WAYS, *loads.WAYS, *JAVA]
    servers = {SERVER_OF[way.split()[0]] for way in ways if way in loads.WAYS}
    if servers:
        installed.python()
    lab = Lab(bench, count)
    with lab.running(servers):
        there = [way for way in ways if way not in loads.WAYS or SERVER_OF[way.split()[0]] in lab.addresses]
        lab.fill(there)
        rounds = bench.rounds(there, lab.take)
    figures = [
        Figure("clients", f"servers of {name}", None, note=f"not there: {why}"[:200])
        for name, why in lab.missing.items()
    ]
    for way in there:
        taken = [found[way] for found in rounds]
        rate = sorted(one["per_second"] for one in taken)[len(taken) // 2]
        note = f"{rate:,.0f}/s"
        if "p50_us" in taken[0]:
            note += f", p50 {sorted(one['p50_us'] for one in taken)[len(taken) // 2]:.0f} us"
            note += f", p99 {sorted(one['p99_us'] for one in taken)[len(taken) // 2]:.0f} us"
        figures.append(Figure.median("clients", way, [one["cpu_us"] for one in taken], "us/message", note=note))
    for goal in GOALS:
        if goal.ours in there and goal.theirs in there:
            less, more = (goal.theirs, goal.ours) if goal.of != "per_second" else (goal.ours, goal.theirs)
            ratios = [found[less][goal.of] / found[more][goal.of] for found in rounds]
            what = f"{less} / {more}" + {"cpu_us": "", "per_second": ", rate"}.get(goal.of, f", {goal.of[:3]}")
            figures.append(Figure.median("clients", what, ratios, at_least=round(goal.factor, 2)))
    return figures


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks clients", description=__doc__)
    parser.add_argument("way", nargs="*", help="default: all")
    parser.add_argument("--size", choices=COUNTS, default="full")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write all figures and samples there")
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a goal is missed")
    parser.set_defaults(update_readme=False)
    options = parser.parse_args(arguments)
    known = [*sender.WAYS, *reader.WAYS, *loads.WAYS, *JAVA]
    if strangers := set(options.way) - set(known):
        parser.error(f"unknown: {', '.join(sorted(strangers))}; known: {', '.join(known)}")
    bench = Bench(replace(SIZES[options.size], runs=options.runs), quiet=True)
    figures = measure(bench, COUNTS[options.size], options.way or None)
    missed = report.publish(figures, "clients", arguments, options, "python -m benchmarks clients")
    return 1 if missed and options.strict else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
