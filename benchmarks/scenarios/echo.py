"""How near are we to the limit? Requests per CPU second, broker against a bare uvloop echo of the same frame sizes."""

from __future__ import annotations

from dataclasses import replace

from benchmarks import loader
from benchmarks.bench import WARM, Bench, Figure, noise_note
from benchmarks.loader import Load
from benchmarks.scenarios.sending import Measured, on_fresh_broker
from benchmarks.servers import echo

SHAPE = Load(connections=32, inflight=1)


def run(bench: Bench) -> list[Figure]:
    load = replace(SHAPE, seconds=bench.size.seconds, warmup=bench.size.warmup)
    with bench.nameserver() as names:
        short = replace(SHAPE, seconds=bench.size.warmup or 0.1, warmup=0)
        asked = on_fresh_broker(bench, names, short).loaded
        reply_bytes = round(asked.bytes / asked.requests)
        bench.say(f"echo: a send reply has {reply_bytes} bytes")

        def measure_echo() -> Measured:
            with bench.folder(on_disk=False) as home, echo(home, reply_bytes) as (process, port):
                fifo = replace(load, fifo=True)
                loaded = loader.run(f"127.0.0.1:{port}", fifo, home, (process.pid,))
                return Measured(loaded, loaded.cpu_us_per_message(process.pid), loaded.cpu[process.pid].noise)

        def measure(what: str) -> Measured:
            return measure_echo() if what == "echo" else on_fresh_broker(bench, names, load)

        rounds = bench.rounds(("echo", "broker"), measure)
    ours = [round["broker"] for round in rounds]
    limit = [round["echo"] for round in rounds]
    noise = noise_note([m.noise for m in ours + limit])
    rate = [m.requests_per_cpu_s for m in ours]
    rate_echo = [m.requests_per_cpu_s for m in limit]
    ratios = [a / b for a, b in zip(rate, rate_echo, strict=True)]
    return [
        Figure.median("echo", "bare uvloop echo, 32x1", rate_echo, "requests/CPU s"),
        Figure.median("echo", "broker, 32x1, 100 B", rate, "requests/CPU s", note=WARM),
        Figure.median("echo", "broker / echo", ratios, "x", at_least=0.7, note=noise),
    ]
