"""Push consumption from end to end: how long from a send to the call of the listener, at a gentle and steady rate.

Producer and consumer are ours, in this process and on one event loop, so their own work is part of the figure; the broker
is a process of its own.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable

from benchmarks.bench import Bench, Figure
from kappamq.client import AsyncAdmin, AsyncConsumer, AsyncProducer
from kappamq.message import Message, ReceivedMessage

RATE = 500  # messages a second
QUEUES = 4
GIVE_UP_S = 30.0
P50_MS_MAX = 0.49
"""What it was before clients worked by the burst."""


def run(bench: Bench) -> list[Figure]:
    figures = []
    with bench.nameserver() as names, bench.broker(names):
        for kind in ("coroutine", "thread"):
            halves, tails = [], []
            for number in range(bench.size.runs):
                delays = asyncio.run(_measure(names, kind, f"push-{kind}-{number}", bench.size.seconds * 2))
                cuts = statistics.quantiles(delays, n=100)
                halves.append(cuts[49])
                tails.append(cuts[98])
            note = f"{RATE} messages/s, 100 B, {QUEUES} queues; client on one loop"
            what = f"end to end, {kind} listener, p50"
            figures.append(Figure.median("push", what, halves, "ms", at_most=P50_MS_MAX, note=note))
            figures.append(Figure.median("push", f"end to end, {kind} listener, p99", tails, "ms"))
    return figures


async def _measure(names: str, kind: str, topic: str, seconds: float) -> list[float]:
    """Return the delay of each message in milliseconds."""
    delays: list[float] = []
    async with AsyncAdmin(names) as admin:
        await admin.create_topic(topic, queues=QUEUES)
    consumer = AsyncConsumer(names, group=topic, topics=topic, consume_from="first", listener=_listener(kind, delays))
    async with consumer, AsyncProducer(names) as producer:
        count = max(100, int(RATE * seconds))
        began = time.perf_counter()
        sends = []
        for number in range(count):
            await asyncio.sleep(max(0.0, began + number / RATE - time.perf_counter()))
            body = str(time.perf_counter_ns()).encode().ljust(100)
            sends.append(asyncio.ensure_future(producer.send(Message(topic, body))))
        await asyncio.gather(*sends)
        deadline = time.perf_counter() + GIVE_UP_S
        while len(delays) < count:
            assert time.perf_counter() < deadline, f"{count - len(delays)} of {count} messages did not come"
            await asyncio.sleep(0.01)
    return delays


def _listener(kind: str, delays: list[float]) -> Callable[[ReceivedMessage], object]:
    def listen(message: ReceivedMessage) -> None:
        delays.append((time.perf_counter_ns() - int(message.body)) / 1e6)

    async def listen_async(message: ReceivedMessage) -> None:
        listen(message)

    return listen_async if kind == "coroutine" else listen
