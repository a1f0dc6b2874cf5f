"""How the cost of a message moves with what clients do: form of the header, writes, size, cold pages, pulls. No goals."""

from __future__ import annotations

from dataclasses import dataclass, replace

from benchmarks.bench import COLD, WARM, Bench, Figure, noise_note
from benchmarks.loader import BATCH, PULL, Load
from benchmarks.loader import run as run_load
from benchmarks.scenarios.sending import Measured, create_topic, measure, on_fresh_broker
from benchmarks.servers import settle

RUNS_MAX = 3
PULLED_PER_QUEUE = 20_000


@dataclass(frozen=True, slots=True)
class Variant:
    name: str
    load: Load
    on_disk: bool = False


SENDS = (
    Variant("8x64", Load(connections=8, inflight=64)),
    Variant("8x64, one write per request", Load(connections=8, inflight=64, coalesce=False)),
    Variant("8x64, binary headers", Load(connections=8, inflight=64, binary=True)),
    Variant("8x64, 1 KiB", Load(connections=8, inflight=64, body=1024)),
    Variant("8x64", Load(connections=8, inflight=64), on_disk=True),
)
PULLS = (
    Variant("pulls of 32, 8x1", Load(mode=PULL, connections=8, inflight=1, loop=True)),
    Variant("pulls of 32, 8x8", Load(mode=PULL, connections=8, inflight=8, loop=True)),
)


def run(bench: Bench) -> list[Figure]:
    times = min(RUNS_MAX, bench.size.runs)
    with bench.nameserver() as names:
        sends = bench.rounds(
            SENDS, lambda one: on_fresh_broker(bench, names, _sized(bench, one.load), on_disk=one.on_disk), times
        )
        pulls = _measure_pulls(bench, names, times)
    figures = [_figure(one, [round[one] for round in sends], COLD if one.on_disk else WARM) for one in SENDS]
    return figures + [_figure(one, [round[one] for round in pulls], "records in the page cache") for one in PULLS]


def _measure_pulls(bench: Bench, names: str, times: int) -> list[dict[Variant, Measured]]:
    """All pulls read the same messages of one broker: pulling changes nothing."""
    with bench.broker(names, properties={"mappedFileSizeCommitLog": bench.size.segment_bytes}) as server:
        per_queue = PULLED_PER_QUEUE if bench.size.seconds >= 1 else 640
        create_topic(server, Load())
        run_load(server.address, Load(mode=BATCH, requests=8 * per_queue // 32, seconds=0, warmup=0), server.home)
        settle(server.process)
        return bench.rounds(
            PULLS, lambda one: measure(server, replace(_sized(bench, one.load), until=per_queue)), times
        )


def _sized(bench: Bench, load: Load) -> Load:
    return replace(load, seconds=bench.size.seconds / 2, warmup=bench.size.warmup)


def _figure(variant: Variant, runs: list[Measured], pages: str) -> Figure:
    rate = max(run.loaded.messages_per_s for run in runs)
    notes = [pages, f"{rate:,.0f} messages/s", noise_note([run.noise for run in runs])]
    return Figure.median(
        "variants",
        f"{variant.name}, {variant.load.body} B" if variant.load.body == 100 else variant.name,
        [run.cpu_us for run in runs],
        "CPU us/message",
        note="; ".join(note for note in notes if note),
    )
