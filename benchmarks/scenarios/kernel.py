"""What the compiled kernel is worth: broker CPU per message, tuned Python twin against C, on warm pages."""

from __future__ import annotations

from dataclasses import replace
from statistics import median

from benchmarks.bench import WARM, Bench, Figure, native_is_built, noise_note
from benchmarks.loader import BATCH, Load
from benchmarks.scenarios.sending import Measured, on_fresh_broker

# shape -> how many times less CPU the compiled kernel must use
SHAPES: tuple[tuple[Load, float], ...] = (
    (Load(connections=32, inflight=1), 1.7),
    (Load(connections=8, inflight=64), 4.0),
    (Load(connections=8, inflight=8, mode=BATCH), 8.0),
)


def run(bench: Bench) -> list[Figure]:
    if not native_is_built():
        text = "the compiled kernel is not built here: make setup"
        return [
            Figure("kernel", f"twin / native, {load.shape}", None, "x", at_least=goal, note=text)
            for load, goal in SHAPES
        ]
    figures: list[Figure] = []
    with bench.nameserver() as names:
        for shape, goal in SHAPES:
            figures += _compare(bench, names, shape, goal)
    return figures


def _compare(bench: Bench, names: str, shape: Load, goal: float) -> list[Figure]:
    # Batches write more than a gigabyte a second: a short window stays inside the first log file.
    part = 0.4 if shape.mode == BATCH else 1.0
    load = replace(shape, seconds=bench.size.seconds * part, warmup=bench.size.warmup * part)
    bench.say(f"kernel: {load.shape}")
    rounds = bench.rounds(("twin", "native"), lambda kernel: on_fresh_broker(bench, names, load, kernel=kernel))
    twin = [round["twin"] for round in rounds]
    native = [round["native"] for round in rounds]
    ratios = [a.cpu_us / b.cpu_us for a, b in zip(twin, native, strict=True)]
    noise = noise_note([m.noise for m in twin + native])
    return [
        Figure.median("kernel", f"twin, {load.shape}, 100 B", [m.cpu_us for m in twin], "CPU us/message", note=WARM),
        Figure.median(
            "kernel",
            f"native, {load.shape}, 100 B",
            [m.cpu_us for m in native],
            "CPU us/message",
            note=f"{WARM}; {_median_rate(native)}",
        ),
        Figure.median("kernel", f"twin / native, {load.shape}", ratios, "x", at_least=goal, note=noise),
        Figure("kernel", f"fast frames, {load.shape}", 100 * min(m.fast_share for m in native), "%", at_least=99.0),
    ]


def _median_rate(runs: list[Measured]) -> str:
    return f"{median(run.loaded.messages_per_s for run in runs):,.0f} messages/s"
