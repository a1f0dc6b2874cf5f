"""A Raft group of three beside a master with a synchronous slave, both with an fdatasync before each answer, and a broker alone: rates,
CPU of whoever leads, fdatasyncs for each message, and the memory of followers. All share the cores and the disk of this machine.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.bench import COLD, Bench, Figure, noise_note
from benchmarks.loader import Load, LoadFailed, Running
from benchmarks.process import CORES, Child, rss_anon_of
from benchmarks.servers import READY_S_MAX, settle
from benchmarks.wire import stored_messages

SYNC = ("--set", "flushDiskType=SYNC_FLUSH")
SHAPES = {"alone": SYNC, "a synchronous slave": ("--slaves", "1", *SYNC), "raft of 3": ("--raft", "3")}
LEADS = ("master", "leader")
_PERF_S = 10


@dataclass(frozen=True, slots=True)
class Measured:
    messages_per_s: float
    cpu_us: float  # of whoever leads, per message
    syncs: float | None  # fdatasyncs of whoever leads, per message; None: they could not be counted
    follower_bytes: int  # RssAnon, the largest of the others; alone, its own
    noise: float


def run(bench: Bench) -> list[Figure]:
    rounds = bench.rounds(list(SHAPES), lambda shape: measure(bench, shape))
    figures = []
    for shape in SHAPES:
        runs = [one[shape] for one in rounds]
        note = "; ".join(filter(None, [COLD, noise_note([one.noise for one in runs])]))
        figures.append(
            Figure.median("raft", f"{shape}, 8x64", [one.messages_per_s for one in runs], "messages/s", note=note)
        )
        figures.append(Figure.median("raft", f"{shape}, CPU", [one.cpu_us for one in runs], "us/message of its leader"))
        figures.append(_syncs(f"{shape}, fdatasyncs", [one.syncs for one in runs]))
    pairs = [(one["raft of 3"], one["a synchronous slave"], one["alone"]) for one in rounds]
    memory = [max(raft.follower_bytes, slave.follower_bytes) / alone.follower_bytes for raft, slave, alone in pairs]
    return [
        *figures,
        Figure.median(
            "raft", "raft / a synchronous slave, rate",
            [raft.messages_per_s / slave.messages_per_s for raft, slave, _alone in pairs], "x", at_least=0.45,
        ),
        Figure.median(
            "raft", "raft / a synchronous slave, CPU", [raft.cpu_us / slave.cpu_us for raft, slave, _alone in pairs], "x",
            at_most=1.2,
        ),
        Figure.median("raft", "a follower / alone, RssAnon", memory, "x", at_most=1.2),
    ]  # fmt: skip


def _syncs(what: str, counts: list[float | None]) -> Figure:
    known = [count for count in counts if count is not None]
    if not known:
        return Figure("raft", what, None, note="perf, with the right to trace system calls, is needed to count them")
    return Figure.median("raft", what, known, "per message")


def measure(bench: Bench, shape: str) -> Measured:
    with bench.folder(on_disk=True) as home:
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
        segment = max(64 << 20, bench.size.segment_bytes // 3)
        command += ["--nameserver-port", "0", "--broker-port", "0", "--set", f"mappedFileSizeCommitLog={segment}"]
        # One broker in a process of its own, as the others are.
        command += SHAPES[shape] if shape != "alone" else ("--brokers", "1", *SYNC)
        with Child(command, home / "up", cores=set(CORES), env={"KAPPAMQ_KERNEL": bench.kernel}) as process:
            told, _seconds = process.wait_for_json(READY_S_MAX)
            leader = next(row for row in told["brokers"] if row["role"] in LEADS)
            others = [row["pid"] for row in told["brokers"] if row is not leader] or [leader["pid"]]
            first = Load(connections=1, requests=Load().queues, seconds=0, warmup=0)
            _done(Running(leader["address"], first, home / "first"))  # makes the topic
            settle(process)
            measured = _loaded(bench, leader["address"], leader["pid"], others, home)
            process.stop()
            return measured


def _loaded(bench: Bench, address: str, pid: int, others: list[int], home: Path) -> Measured:
    load = Load(connections=8, inflight=64, seconds=bench.size.seconds, warmup=bench.size.warmup)
    before = stored_messages(address, load.topic, load.queues)
    with _counted(pid, home / "perf") as counted:
        loaded = _done(Running(address, load, home / "load", (pid,)))
    stored = stored_messages(address, load.topic, load.queues) - before
    if stored != loaded.total_messages or not loaded.messages:
        raise LoadFailed(f"{loaded.total_messages} were acknowledged, {stored} stored")
    syncs = counted()
    return Measured(
        loaded.messages_per_s,
        loaded.cpu_us_per_message(pid),
        None if syncs is None else syncs / stored,
        max(rss_anon_of(other) for other in others),
        loaded.cpu[pid].noise,
    )


def _done(running: Running):  # type: ignore[no-untyped-def]
    loaded = running.result()
    if loaded.wrong or loaded.errors:
        raise LoadFailed(f"{loaded.wrong} wrong answers, refused with {loaded.errors}")
    return loaded


@contextmanager
def _counted(pid: int, told: Path) -> Iterator:  # type: ignore[type-arg]
    """The fdatasyncs of a process meanwhile: what is yielded tells them afterwards; None if they cannot be counted here."""
    perf = shutil.which("perf")
    if perf is None:
        yield lambda: None
        return
    command = [perf, "stat", "-x", ",", "-o", str(told), "-e", "syscalls:sys_enter_fdatasync", "-p", str(pid)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as counting:
        try:
            yield lambda: _count_in(told)
        finally:
            counting.send_signal(signal.SIGINT)
            counting.wait(_PERF_S)


def _count_in(told: Path) -> int | None:
    for line in told.read_text().splitlines() if told.exists() else []:
        count = line.partition(",")[0]
        if count.isdigit():
            return int(count)
    return None
