"""The load of `kappamq bench`: many sends in flight on several connections, then everything is read back once."""

from __future__ import annotations

import asyncio
import secrets
import time
from array import array
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

from kappamq.cli.shared.cluster import Cluster
from kappamq.cli.shared.output import Output
from kappamq.client.consumer.consumer import AsyncConsumer
from kappamq.client.producer.producer import AsyncProducer
from kappamq.errors import KappaError
from kappamq.message import Message

IDLE_S = 10.0  # reading back gives up after this long without a message
FAILURES_MAX = 100  # stop after this many failures


@dataclass(slots=True)
class Sent:
    """The progress of the senders."""

    messages: int = 0
    requests: int = 0
    failures: list[str] = field(default_factory=list)
    latencies_ms: array[float] = field(default_factory=lambda: array("f"))

    def figures(self, seconds: float, size: int) -> dict[str, Any]:
        ordered = sorted(self.latencies_ms)
        return {
            "sent": self.messages,
            "failed": len(self.failures),
            "seconds": round(seconds, 3),
            "messages_per_s": round(self.messages / seconds) if seconds else 0,
            "mib_per_s": round(self.messages * size / seconds / (1 << 20), 2) if seconds else 0.0,
            "p50_ms": round(percentile(ordered, 0.50), 3),
            "p99_ms": round(percentile(ordered, 0.99), 3),
            "max_ms": round(ordered[-1], 3) if ordered else 0.0,
        }


def percentile(ordered: list[float], part: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))] if ordered else 0.0


@dataclass(frozen=True, slots=True)
class Work:
    topic: str
    messages: int
    size: int
    connections: int
    inflight: int
    batch: int


async def send_and_receive(work: Work, consume: bool, cluster: Cluster, out: Output) -> bool:
    """Run the load and show the figures. Returns whether anything failed or is missing."""
    sent, seconds = await send_all(work, cluster, out)
    figures = {"what": "send", **sent.figures(seconds, work.size)}
    rows = [figures]
    complete = True
    if consume and sent.messages:
        rows.append({"what": "receive", **await receive_all(work, sent.messages, cluster, out)})
        complete = rows[-1]["received"] >= sent.messages
    if out.json:
        for row in rows:
            out.raw(row)
    else:
        columns = ["what", "messages_per_s", "mib_per_s", "seconds", "p50_ms", "p99_ms", "max_ms"]
        out.table(f"{work.messages} messages of {work.size} bytes, {work.connections} connections", columns, rows)
    for text in sent.failures[:3]:
        out.warn(f"a send failed: {text}")
    if not complete:
        out.warn(f"received only {rows[-1]['received']} of {sent.messages} messages before {IDLE_S:.0f} s without one")
    return bool(sent.failures) or not complete


async def send_all(work: Work, cluster: Cluster, out: Output) -> tuple[Sent, float]:
    sent = Sent()
    left = work.messages
    body = b"x" * work.size

    def next_batch() -> int:
        nonlocal left
        if len(sent.failures) >= FAILURES_MAX:
            return 0
        count = min(work.batch, left)
        left -= count
        return count

    async with AsyncExitStack() as stack:
        producers = [
            # A distinct instance name gives each producer its own connections.
            await stack.enter_async_context(
                AsyncProducer(
                    **cluster.options, group="kappamq_bench", instance=f"bench{number}", send_timeout_ms=10_000
                )
            )
            for number in range(work.connections)
        ]
        # The first send fetches the route, connects, and may create the topic; it is not measured. If it fails, all fail.
        for producer in producers:
            await producer.send(Message(work.topic, body))
        began = time.perf_counter()
        with out.progress("sending", work.messages, unit="messages") as at:

            async def sender(producer: AsyncProducer) -> None:
                while count := next_batch():
                    await _send_one(producer, work.topic, body, count, sent)
                    if sent.requests % 64 == 0:
                        at(sent.messages)

            await asyncio.gather(*(sender(producer) for producer in producers for _ in range(work.inflight)))
        return sent, time.perf_counter() - began


async def _send_one(producer: AsyncProducer, topic: str, body: bytes, count: int, sent: Sent) -> None:
    began = time.perf_counter()
    try:
        if count == 1:
            await producer.send(Message(topic, body))
        else:
            await producer.send_batch([Message(topic, body)] * count)
    except KappaError as error:
        sent.failures.append(str(error))
    else:
        sent.messages += count
        sent.latencies_ms.append((time.perf_counter() - began) * 1000)
    sent.requests += 1


async def receive_all(work: Work, expected: int, cluster: Cluster, out: Output) -> dict[str, Any]:
    """Read as many messages as were sent, with a new group that begins at the start of the topic."""
    received = 0
    group = f"kappamq_bench_{secrets.token_hex(4)}"
    began = time.perf_counter()
    with out.progress("receiving", expected, unit="messages") as at:
        async with AsyncConsumer(**cluster.options, group=group, topics=work.topic, consume_from="first") as consumer:
            while received < expected:
                message = await consumer.receive(IDLE_S)
                if message is None:
                    break
                consumer.ack(message)
                received += 1
                if received % 1000 == 0:
                    at(received)
    seconds = time.perf_counter() - began
    return {
        "received": received,
        "seconds": round(seconds, 3),
        "messages_per_s": round(received / seconds),
        "mib_per_s": round(received * work.size / seconds / (1 << 20), 2),
    }
