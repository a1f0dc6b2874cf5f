"""A large backlog: reading it from its start with nothing in the page cache, coming back after kill -9, and whether a consumer
that does so is felt by producers at the tail.

Needs root (to drop the page cache) and the disk for it; without, it says so and measures nothing.
"""

from __future__ import annotations

import os
import shutil
import statistics
import time
from dataclasses import replace
from pathlib import Path

from benchmarks.bench import GIB, Bench, Figure, noise_note
from benchmarks.loader import BATCH, PULL, SEND, Load, Running
from benchmarks.loader import run as run_load
from benchmarks.scenarios.sending import create_topic, measure
from benchmarks.servers import Broker, settle
from benchmarks.wire import Wire, stored_messages

RECORD_BYTES = 320
DERIVED_BYTES = 20 + 2 * 20  # queue entry and two index entries
QUEUES = 8
TAIL_RATE = 2_000  # sends a second while the backlog is read
# One consumer: a pull for each of its queues under way on one connection, 32 messages each, as Java's default is.
CONSUMER = Load(mode=PULL, connections=1, inflight=QUEUES, queues=QUEUES)
DISK_READ_BYTES_MAX = 2 * GIB
READ_S = 8.0
FILES_APART = 8  # with so many, the end of the log can be read without touching what is read from its start


def run(bench: Bench) -> list[Figure]:
    refusal = refused(bench)
    if refusal:
        return [Figure("backlog", f"{bench.size.backlog:,} messages", None, note=refusal)]
    with bench.nameserver() as names, bench.broker(names, on_disk=True) as server:
        fill(bench, server)
        tail = _tail_rate(bench, server)
        ready = _killed(bench, server)
        figures = _cold_read(bench, server, tail)
        figures += _ready(ready)
        figures += _disturbance(bench, server)
    return figures


def refused(bench: Bench) -> str:
    """Why it cannot be measured here; empty if it can."""
    if os.geteuid() != 0:
        return "needs root to drop the page cache: run as root"
    needed = needed_bytes(bench.size.backlog)
    free = shutil.disk_usage(bench.disk).free
    if free < needed:
        return (
            f"needs {needed / GIB:.0f} GiB of disk, {bench.disk} has {free / GIB:.0f} GiB: "
            f"--backlog N makes it smaller, --disk DIR puts it elsewhere"
        )
    return ""


def needed_bytes(messages: int) -> int:
    return int(messages * (RECORD_BYTES + DERIVED_BYTES) * 1.1) + 4 * GIB


def fill(bench: Bench, server: Broker) -> None:
    messages = bench.size.backlog
    bench.say(f"backlog: writing {messages:,} messages")
    create_topic(server, Load(queues=QUEUES))
    load = Load(mode=BATCH, connections=8, inflight=8, queues=QUEUES, requests=messages // 32, seconds=0, warmup=0)
    started = time.monotonic()
    run_load(server.address, load, server.home)
    held = stored_messages(server.address, "bench", QUEUES)
    assert held == messages // 32 * 32 + QUEUES, f"sent {messages}, the broker holds {held}"
    bench.say(f"backlog: written in {time.monotonic() - started:.0f} s; waiting for the broker to come to rest")
    settle(server.process, seconds_max=120)


def _tail_rate(bench: Bench, server: Broker) -> list[float]:
    """Messages a second read near the end, where everything is in memory."""
    end = bench.size.backlog // QUEUES
    start = max(0, end - 50_000)
    load = replace(CONSUMER, offset=start, until=end, loop=True, seconds=bench.size.seconds, warmup=bench.size.warmup)
    return [measure(server, load).loaded.messages_per_s for _ in range(bench.size.runs)]


def _killed(bench: Bench, server: Broker) -> dict[str, float]:
    """kill -9 under load, then seconds until sends, pulls and offsets are answered; with and without the page cache."""
    seconds: dict[str, float] = {}
    for name in ("page cache kept", "page cache dropped"):
        bench.say(f"backlog: kill -9, {name}")
        load = Load(mode=BATCH, connections=2, inflight=2, queues=QUEUES, topic="late", rate=500, seconds=600)
        late = Running(server.address, load, server.home / "late")
        time.sleep(min(2.0, bench.size.seconds))
        server.kill()
        late.kill()
        if name == "page cache dropped":
            drop_page_cache()
        started = time.monotonic()
        server.start()
        _answers(server)
        seconds[name] = time.monotonic() - started
    return seconds


def _answers(server: Broker) -> None:
    with Wire(server.address, timeout=60) as wire:
        assert wire.send("bench", 0, b"after kill -9").code == 0
        assert wire.pull("bench", 0, 0).records
        assert wire.max_offset("bench", 0) > 0
        wire.commit("bench-group", "bench", 0, 1)
        assert wire.committed("bench-group", "bench", 0) == 1


def _ready(seconds: dict[str, float]) -> list[Figure]:
    return [
        Figure("backlog", f"ready after kill -9, {name}", value, "s", at_most=10.0) for name, value in seconds.items()
    ]


def _cold_read(bench: Bench, server: Broker, tail: list[float]) -> list[Figure]:
    disk: list[float] = []
    cold: list[float] = []
    record_bytes = RECORD_BYTES
    noise: list[float] = []
    for number in range(min(bench.size.runs, 3)):
        bench.say(f"backlog: cold read {number + 1}")
        _restart_cold(server)
        files = sorted((server.data / "commitlog").iterdir(), reverse=True)[1:]  # the newest is not full
        disk.append(_disk_rate(files or sorted((server.data / "commitlog").iterdir())))
        if len(files) < FILES_APART:
            _restart_cold(server)  # what was just read would be read again
        load = replace(CONSUMER, until=bench.size.backlog // QUEUES, seconds=READ_S, warmup=0, group=f"cold-{number}")
        measured = measure(server, load)
        cold.append(measured.loaded.messages_per_s)
        record_bytes = max(1, measured.loaded.bytes // max(1, measured.loaded.messages))
        noise.append(measured.noise)
    limits = [min(statistics.median(tail), rate / record_bytes) for rate in disk]
    ratios = [rate / limit for rate, limit in zip(cold, limits, strict=True)]
    return [
        Figure.median("backlog", "read at the tail", tail, "messages/s", note="page cache"),
        Figure.median(
            "backlog", "disk, sequential", [rate / 1e6 for rate in disk], "MB/s", note=f"{record_bytes} B a message"
        ),
        Figure.median(
            "backlog", f"read from the start of {bench.size.backlog:,}", cold, "messages/s", note="page cache dropped"
        ),
        Figure.median("backlog", "cold / smaller of tail and disk", ratios, "x", at_least=0.7, note=noise_note(noise)),
    ]


def _disturbance(bench: Bench, server: Broker) -> list[Figure]:
    """p99 of sends at the tail, alone and while one consumer reads the backlog from its start."""
    rounds: list[dict[str, float]] = []
    read: list[float] = []
    sends = Load(
        mode=SEND,
        connections=8,
        topic="tail",
        rate=TAIL_RATE,
        seconds=max(1.0, bench.size.seconds) * 1.5,
        warmup=bench.size.warmup,
    )
    for number in range(bench.size.runs):
        bench.say(f"backlog: sends beside a cold reader {number + 1}")
        _restart_cold(server)
        create_topic(server, sends)
        measure(server, replace(sends, seconds=1))  # the first ones pay for what a start has left for later
        settle(server.process)
        # What is measured is the broker: whoever takes the times does not wait for the reader that shares its core.
        alone = measure(server, sends, policy=os.SCHED_FIFO).loaded.p99_us
        reader = Running(
            server.address,
            replace(
                CONSUMER,
                until=bench.size.backlog // QUEUES,
                loop=True,
                seconds=sends.seconds + 1,
                warmup=0,
                group="cold",
            ),
            server.home / "reader",
            policy=os.SCHED_IDLE,
        )
        beside = measure(server, sends, policy=os.SCHED_FIFO).loaded.p99_us
        read.append(reader.result().messages_per_s)
        rounds.append({"alone": alone, "beside": beside})
    ratios = [round["beside"] / round["alone"] for round in rounds]
    return [
        Figure.median("backlog", "p99 of sends alone", [round["alone"] / 1000 for round in rounds], "ms"),
        Figure.median(
            "backlog",
            "p99 of sends beside a cold reader",
            [round["beside"] / 1000 for round in rounds],
            "ms",
            note=f"the reader got {statistics.median(read):,.0f} messages/s",
        ),
        Figure.median("backlog", "beside / alone", ratios, "x", at_most=1.5, note=f"{TAIL_RATE} sends/s"),
    ]


def _restart_cold(server: Broker) -> None:
    """Mapped pages stay in the cache as long as somebody maps them: only a broker that is gone leaves it empty."""
    server.stop()
    drop_page_cache()
    server.start()
    settle(server.process)


def drop_page_cache() -> None:
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3\n")


def _disk_rate(files: list[Path]) -> float:
    """Bytes a second of a plain sequential read of some gigabytes; they must not be in the page cache."""
    done = 0
    started = time.monotonic()
    for path in files:
        with path.open("rb", buffering=0) as file:
            while done < DISK_READ_BYTES_MAX:
                data = file.read(1 << 20)
                if not data:
                    break
                done += len(data)
    return done / (time.monotonic() - started)
