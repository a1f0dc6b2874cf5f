"""What a broker costs that nobody uses: memory, CPU, and the time until it is ready."""

from __future__ import annotations

import sys
import time

from benchmarks.bench import Bench, Figure
from benchmarks.process import BROKER_CORE, Child
from benchmarks.servers import settle


def run(bench: Bench) -> list[Figure]:
    ready: list[float] = []
    memory = busy = 0.0
    for number in range(bench.size.runs):
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
                str(home / "store"),
            ]
            with Child([*command, "--nameserver-port", "0", "--broker-port", "0"], home, cores=BROKER_CORE) as process:
                ready.append(process.wait_for_json()[1])
                if number == bench.size.runs - 1:
                    settle(process)
                    busy = _busy(process, bench.size.idle_s)
                    memory = process.rss_anon() / 1e6
    return [
        Figure.median(
            "idle", "kappamq up, ready", ready, "s", at_most=1.0, note="name server and broker, fresh folder"
        ),
        Figure("idle", "kappamq up, RssAnon", memory, "MB", at_most=80),
        Figure("idle", "kappamq up, CPU", busy * 100, "% of a core", at_most=1.0),
    ]


def _busy(process: Child, seconds: float) -> float:
    before, start = process.cpu(), time.monotonic()
    time.sleep(seconds)
    used = process.cpu() - before
    return used.run_ns / 1e9 / (time.monotonic() - start)
