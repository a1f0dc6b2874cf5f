"""What several brokers on one machine cost per message, and a synchronous copy: `kappamq up` with processes of their own.

All brokers and loads share the cores of this machine, so rates say little where these are few; CPU per message does.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.bench import WARM, Bench, Figure, noise_note
from benchmarks.loader import Load, LoadFailed, Running
from benchmarks.process import CORES, Child
from benchmarks.servers import READY_S_MAX, settle
from benchmarks.wire import stored_messages

MASTER = "master"


@dataclass(frozen=True, slots=True)
class Shape:
    brokers: int
    slaves: int
    load: tuple[int, int]  # connections, requests in flight of each

    @property
    def name(self) -> str:
        many = "1 broker" if self.brokers == 1 else f"{self.brokers} brokers"
        return f"{many}{', a synchronous slave' if self.slaves else ''}, {self.load[0]}x{self.load[1]}"


@dataclass(frozen=True, slots=True)
class Measured:
    cpu_us: float  # of all masters, per message
    messages_per_s: float  # of all together
    noise: float


WIDE, NARROW = (8, 64), (32, 1)
SHAPES = (Shape(1, 0, WIDE), Shape(2, 0, WIDE), Shape(1, 1, WIDE), Shape(1, 0, NARROW), Shape(1, 1, NARROW))
SYNC_RATIO_MAX = {WIDE: 1.1, NARROW: 1.3}


def run(bench: Bench) -> list[Figure]:
    rounds = bench.rounds(SHAPES, lambda shape: measure(bench, shape))
    figures = []
    for shape in SHAPES:
        runs = [one[shape] for one in rounds]
        rate = max(one.messages_per_s for one in runs)
        notes = [WARM, f"{rate:,.0f} messages/s together", noise_note([one.noise for one in runs])]
        figures.append(
            Figure.median(
                "shapes", shape.name, [one.cpu_us for one in runs], "CPU us/message of the masters",
                note="; ".join(filter(None, notes)),
            )
        )  # fmt: skip
    return [*figures, *_ratios(rounds)]


def _ratios(rounds: list[dict[Shape, Measured]]) -> list[Figure]:
    """Each within a round."""

    def ratio(of: Shape, to: Shape) -> list[float]:
        return [one[of].cpu_us / one[to].cpu_us for one in rounds]

    found = [Figure.median("shapes", "2 brokers / 1, 8x64", ratio(SHAPES[1], SHAPES[0]), "x")]
    for of, to in ((SHAPES[2], SHAPES[0]), (SHAPES[4], SHAPES[3])):
        what = f"with a synchronous slave / alone, {of.load[0]}x{of.load[1]}"
        found.append(Figure.median("shapes", what, ratio(of, to), "x", at_most=SYNC_RATIO_MAX[of.load]))
    return found


def measure(bench: Bench, shape: Shape) -> Measured:
    with bench.folder(on_disk=False) as home:
        command = [
            sys.executable,
            "-m",
            "kappamq",
            "up",
            "--json",
            "--listen",
            "127.0.0.1",
            "--data",
            str(home / "data"),
        ]
        command += ["--nameserver-port", "0", "--broker-port", "0"]
        command += ["--brokers", str(shape.brokers), "--slaves", str(shape.slaves)]
        # Memory for a log file and the next one of each broker.
        segment = max(64 << 20, bench.size.segment_bytes // (shape.brokers + shape.slaves))
        command += ["--set", f"mappedFileSizeCommitLog={segment}"]
        with Child(command, home / "up", cores=set(CORES), env={"KAPPAMQ_KERNEL": bench.kernel}) as process:
            told, _seconds = process.wait_for_json(READY_S_MAX)
            masters = [(row["address"], row["pid"]) for row in told["brokers"] if row["role"] == MASTER]
            for address, _pid in masters:
                _load(
                    address, Load(connections=1, requests=Load().queues, seconds=0, warmup=0), home
                )  # makes the topic
            settle(process)
            measured = _measure(bench, shape, masters, home)
            process.stop()
            return measured


def _load(address: str, load: Load, home: Path) -> None:
    loaded = Running(address, load, home / address).result()
    if loaded.wrong or loaded.errors:
        raise LoadFailed(f"{address}: {loaded.wrong} wrong answers, refused with {loaded.errors}")


def _measure(bench: Bench, shape: Shape, masters: list[tuple[str, int]], home: Path) -> Measured:
    connections, inflight = shape.load
    load = Load(connections=connections, inflight=inflight, seconds=bench.size.seconds, warmup=bench.size.warmup)
    before = {address: stored_messages(address, load.topic, load.queues) for address, _pid in masters}
    running = [(Running(address, load, home / address, (pid,)), address, pid) for address, pid in masters]
    cpu_ns = messages = 0
    rate = noise = 0.0
    for one, address, pid in running:
        loaded = one.result()
        stored = stored_messages(address, load.topic, load.queues) - before[address]
        if loaded.wrong or loaded.errors or stored != loaded.total_messages:
            raise LoadFailed(
                f"{shape.name}: {loaded.total_messages} were acknowledged, {stored} stored; refused with {loaded.errors}"
            )
        cpu_ns += loaded.cpu[pid].run_ns
        messages += loaded.messages
        rate += loaded.messages_per_s
        noise = max(noise, loaded.cpu[pid].noise)
    if not messages:
        raise LoadFailed(f"{shape.name}: not one answer in {load.seconds:g} s: the machine is too busy")
    return Measured(cpu_ns / 1000 / messages, rate, noise)
