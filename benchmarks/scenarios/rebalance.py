"""Many members of one group over many queues: how long until every queue has one owner, after all come and after one goes.

All members live in this process, on one event loop: in life they would have a core each.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter

from benchmarks.bench import Bench, Figure
from kappamq.client import AsyncAdmin, AsyncConsumer

MEMBERS, QUEUES = 100, 1024
GIVE_UP_S = 300.0
TOY_QUEUES_MAX = 1000
"""A run that makes no more queues than this elsewhere is a toy here, too."""


def run(bench: Bench) -> list[Figure]:
    members, queues = (5, 16) if bench.size.queues < TOY_QUEUES_MAX else (MEMBERS, QUEUES)
    with bench.nameserver() as names, bench.broker(names) as server:
        before = server.process.cpu()
        joined, left = asyncio.run(_measure(bench, names, members, queues))
        busy = (server.process.cpu() - before).run_ns / 1e9
    text = f"{members} members, {queues:,} queues"
    return [
        Figure("rebalance", f"{text}, all come", joined, "s", note="until every queue has exactly one owner"),
        Figure("rebalance", f"{text}, one leaves", left, "s", note="from its goodbye on"),
        Figure("rebalance", f"{text}, broker CPU", busy, "s", note="for both"),
    ]


async def _measure(bench: Bench, names: str, count: int, queues: int) -> tuple[float, float]:
    topic = "shared"
    async with AsyncAdmin(names) as admin:
        await admin.create_topic(topic, queues=queues)
    members = [AsyncConsumer(names, group="many", topics=topic, listener=_ignore) for _ in range(count)]
    try:
        began = time.perf_counter()
        await asyncio.gather(*(member.start() for member in members))
        await _stable(members, topic, queues)
        joined = time.perf_counter() - began
        bench.say(f"rebalance: {count} members share {queues} queues after {joined:.1f} s")
        leaving = members.pop(count // 2)
        began = time.perf_counter()
        await leaving.close()
        await _stable(members, topic, queues)
        return joined, time.perf_counter() - began
    finally:
        await asyncio.gather(*(member.close() for member in members))


async def _stable(members: list[AsyncConsumer], topic: str, queues: int) -> None:
    """Wait until each queue has one owner and nobody has more than a share."""
    most = -(-queues // len(members))
    deadline = time.perf_counter() + GIVE_UP_S
    while True:
        shares = [[queue for queue in member.assigned if queue.topic == topic] for member in members]
        owners = Counter(queue for share in shares for queue in share)
        if len(owners) == queues and set(owners.values()) == {1} and max(map(len, shares)) <= most:
            return
        assert time.perf_counter() < deadline, f"{len(owners)} of {queues} queues have an owner"
        await asyncio.sleep(0.02)


async def _ignore(message: object) -> None:
    pass
