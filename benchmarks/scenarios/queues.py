"""Many queues: how long the broker takes to come back with them, what they cost in memory, and whether sends slow down."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.bench import Bench, Figure, noise_note
from benchmarks.loader import Load
from benchmarks.loader import run as run_load
from benchmarks.scenarios.sending import create_topic, measure
from benchmarks.servers import Broker, settle

QUEUES_OF_A_TOPIC = 8
FULL_QUEUES = 20_000


def run(bench: Bench) -> list[Figure]:
    size = bench.size
    assert size.queues == size.queue_topics * QUEUES_OF_A_TOPIC
    many = Load(
        topic="many", topics=size.queue_topics, connections=8, inflight=8, seconds=size.seconds, warmup=size.warmup
    )
    few = replace(many, topic="few", topics=1)
    with bench.nameserver() as names, bench.broker(names, on_disk=True) as server:
        bench.say(f"queues: making {size.queues}")
        for load in (few, many):
            create_topic(server, load)
        server.stop()
        server.start()
        after_stop = server.ready_s
        _use_all(server, many)
        server.kill()
        server.start()
        after_kill = server.ready_s
        at_rest = server.process.rss_anon()
        settle(server.process)
        rounds = bench.rounds((few, many), lambda load: measure(server, load))
        loaded = server.process.rss_anon()
    rate_few, rate_many = ([round[load].loaded.messages_per_s for round in rounds] for load in (few, many))
    ratios = [a / b for a, b in zip(rate_many, rate_few, strict=True)]
    noise = noise_note([m.noise for round in rounds for m in round.values()])
    text = f"{size.queues:,} queues"
    # Goals are for 20,000 queues; a smaller run shows figures only.
    full = size.queues >= FULL_QUEUES
    return [
        Figure("queues", f"{text}, ready after a stop", after_stop, "s", at_most=5.0 if full else None),
        Figure("queues", f"{text}, ready after kill -9", after_kill, "s", at_most=5.0 if full else None),
        Figure("queues", f"{text}, RssAnon when ready", at_rest / 1e6, "MB", at_most=300 if full else None),
        Figure("queues", f"{text}, RssAnon under load", loaded / 1e6, "MB", at_most=300 if full else None),
        Figure.median("queues", "8x8 sends over 8 queues", rate_few, "messages/s"),
        Figure.median("queues", f"8x8 sends over {text}", rate_many, "messages/s"),
        Figure.median("queues", "many / 8 queues", ratios, "x", at_least=0.7 if full else None, note=noise),
    ]


def _use_all(server: Broker, load: Load) -> None:
    """A few messages into every queue, so that all of them have something to recover."""
    run_load(
        server.address,
        replace(load, requests=load.topics * load.queues * 2, inflight=64, seconds=0, warmup=0),
        server.home,
    )
