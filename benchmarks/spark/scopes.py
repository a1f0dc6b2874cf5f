"""Many scopes with small batches, as of a hundred streams: how long a decision takes, with asynchronous and with synchronous flush."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from benchmarks.bench import Bench, Figure
from benchmarks.process import BROKER_CORE, CORES, LOAD_CORE
from benchmarks.servers import broker, settle
from benchmarks.spark.beside import policy
from benchmarks.spark.lab import Lab, load
from kappamq.client import Admin, AsyncProducer
from kappamq.message import Message

TOPIC: Final = "small"
SCOPES: Final = 100
MESSAGES: Final = 10
"""In a batch."""
EVERY_S: Final = 1.0
"""A batch of each scope: a usual trigger of a stream."""
GOALS_MS: Final = {"ASYNC_FLUSH": 20.0, "SYNC_FLUSH": 50.0}


def run(lab: Lab) -> list[Figure]:
    figures: list[Figure] = []
    for flush, goal in GOALS_MS.items():
        batches = 2 if lab.toy else max(3, round(4 * lab.bench.size.seconds))
        times, late, noise = _measure(lab.bench, flush, SCOPES // 10 if lab.toy else SCOPES, batches)
        p50, p99 = (1000 * times[min(len(times) - 1, int(part * len(times)))] for part in (0.5, 0.99))
        note = (
            f"median {p50:.1f} ms of {len(times)} decisions; the client was up to {1000 * late:.0f} ms late, the broker waited "
            f"for its core for {100 * noise:.0f} % of its time; {load()}"
        )
        figures.append(Figure("scopes", f"decide p99, {flush}", p99, "ms", at_most=goal, note=note))
    return figures


def _measure(bench: Bench, flush: str, scopes: int, batches: int) -> tuple[list[float], float, float]:
    with (
        bench.nameserver() as names,
        bench.folder(on_disk=True) as home,
        broker(home, names, cores=BROKER_CORE, properties={"flushDiskType": flush}) as server,
    ):
        with Admin(names) as admin:
            admin.create_topic(TOPIC, queues=8)
        settle(server.process)
        before = server.process.cpu()
        with _first_in_line(server.process.pid):
            times, late = asyncio.run(_decisions(names, scopes, batches))
        return times, late, (server.process.cpu() - before).noise


@contextmanager
def _first_in_line(pid: int) -> Iterator[None]:
    """The broker and whoever takes the times have a core each, and do not wait for others, as on a machine of their own."""
    threads = [0, *(int(path.name) for path in Path(f"/proc/{pid}/task").iterdir())]
    if policy() == os.SCHED_FIFO:
        for thread in threads:
            os.sched_setscheduler(thread, os.SCHED_FIFO, os.sched_param(1))
    os.sched_setaffinity(0, LOAD_CORE)
    try:
        yield
    finally:
        os.sched_setaffinity(0, CORES)
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


async def _decisions(nameserver: str, scopes: int, batches: int) -> tuple[list[float], float]:
    """How long each decision took, ascending, and how late this loop was at most: that part is not the broker's."""
    times: list[float] = []
    async with AsyncProducer(nameserver) as producer:

        async def stream(number: int) -> None:
            scope = await producer.open_scope(f"scope-{number}", "bench")
            await asyncio.sleep(EVERY_S * number / scopes)
            for batch in range(batches):
                began = time.monotonic()
                ticket = await scope.begin(batch)
                stager = producer.stager(ticket)
                for message in range(MESSAGES):
                    await stager.add(Message(TOPIC, b"%d %d %d" % (number, batch, message)))
                part = await stager.finish()
                asked = time.monotonic()
                await scope.decide(ticket, [part], wait_s=0)
                times.append(time.monotonic() - asked)
                await asyncio.sleep(max(0.0, began + EVERY_S - time.monotonic()))

        late = [0.0]
        watch = asyncio.create_task(_watch(late))
        await asyncio.gather(*(stream(number) for number in range(scopes)))
        watch.cancel()
    return sorted(times), late[0]


async def _watch(late: list[float]) -> None:
    while True:
        asleep = time.monotonic()
        await asyncio.sleep(0.01)
        late[0] = max(late[0], time.monotonic() - asleep - 0.01)
