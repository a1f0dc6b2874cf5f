"""What durability costs: 32 producers that wait for each answer, fdatasync before it against page cache only, on a real disk."""

from __future__ import annotations

from benchmarks.bench import COLD, Bench, Figure, noise_note
from benchmarks.loader import Load
from benchmarks.scenarios.sending import on_fresh_broker

MODES = {"async": "ASYNC_FLUSH", "sync": "SYNC_FLUSH"}


def run(bench: Bench) -> list[Figure]:
    load = Load(connections=32, inflight=1, seconds=bench.size.seconds, warmup=bench.size.warmup)
    with bench.nameserver() as names:
        rounds = bench.rounds(
            list(MODES), lambda mode: on_fresh_broker(bench, names, load, on_disk=True, flushDiskType=MODES[mode])
        )
    rates = {mode: [round[mode].loaded.messages_per_s for round in rounds] for mode in MODES}
    p99 = [round["sync"].loaded.p99_us / 1000 for round in rounds]
    noise = noise_note([measured.noise for round in rounds for measured in round.values()])
    ratios = [a / b for a, b in zip(rates["sync"], rates["async"], strict=True)]
    return [
        Figure.median("flush", "async flush, 32 sync producers, 100 B", rates["async"], "messages/s", note=COLD),
        Figure.median("flush", "sync flush, 32 sync producers, 100 B", rates["sync"], "messages/s", note=COLD),
        Figure.median("flush", "sync flush, p99 of a send", p99, "ms"),
        Figure.median("flush", "sync / async", ratios, "x", at_least=0.25, note=noise),
    ]
