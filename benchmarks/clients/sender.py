"""One producer that sends many messages, as a process of its own: `python -m benchmarks.clients.sender WAY NAMESERVER TOPIC COUNT`.

It prints its CPU time per acknowledged message as JSON. The first messages start connections and routes and are not counted. Only the
public API is used.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future

from benchmarks.clients.meter import Meter
from kappamq import AsyncProducer, Message, Producer, SendResult
from kappamq.errors import TooManyRequests

BODY = bytes(100)
INFLIGHT = 10_000
"""Messages that nobody has acknowledged yet, at most; the same for every client that is compared."""
GROUP = "bench-sender"
TASKS = 1000


def nowait(nameserver: str, topic: str, meter: Meter) -> None:
    """`send_nowait` in one task, which looks at every future."""

    async def run() -> None:
        async with AsyncProducer(nameserver, group=GROUP, inflight_max=INFLIGHT) as producer:
            waiting: deque[asyncio.Future[SendResult]] = deque()
            for _ in range(meter.count):
                try:
                    waiting.append(producer.send_nowait(Message(topic, BODY)))
                except TooManyRequests:
                    await producer.drain()
                    waiting.append(producer.send_nowait(Message(topic, BODY)))
                while waiting and waiting[0].done():
                    assert waiting.popleft().result().ok
                    meter.see(1)
            while waiting:
                assert (await waiting.popleft()).ok
                meter.see(1)

    asyncio.run(run())


def tasks(nameserver: str, topic: str, meter: Meter) -> None:
    """`await send()` in many tasks."""

    async def run() -> None:
        left = iter(range(meter.count))
        async with AsyncProducer(nameserver, group=GROUP, inflight_max=INFLIGHT) as producer:

            async def one() -> None:
                for _ in left:
                    assert (await producer.send(Message(topic, BODY))).ok
                    meter.see(1)

            await asyncio.gather(*(one() for _ in range(TASKS)))

    asyncio.run(run())


def callbacks(nameserver: str, topic: str, meter: Meter) -> None:
    """From a thread, with a callback for each message."""
    failed: list[BaseException] = []

    def told(result: SendResult | None, error: BaseException | None) -> None:
        if error is not None:
            failed.append(error)
        meter.see(1)

    with Producer(nameserver, group=GROUP, inflight_max=INFLIGHT) as producer:
        for _ in range(meter.count):
            producer.send_callback(Message(topic, BODY), told)
        producer.flush()
    assert not failed, failed[0]


def futures(nameserver: str, topic: str, meter: Meter) -> None:
    """`send_async` from a thread, which looks at every future."""
    with Producer(nameserver, group=GROUP, inflight_max=INFLIGHT) as producer:
        waiting: deque[Future[SendResult]] = deque()
        for _ in range(meter.count):
            waiting.append(producer.send_async(Message(topic, BODY)))
            while waiting and waiting[0].done():
                assert waiting.popleft().result().ok
                meter.see(1)
        while waiting:
            assert waiting.popleft().result().ok
            meter.see(1)


def lists(nameserver: str, topic: str, meter: Meter) -> None:
    """Batches by hand, one after the other."""
    with Producer(nameserver, group=GROUP) as producer:
        for _ in range(0, meter.count, 500):
            meter.see(len(producer.send_batch([Message(topic, BODY) for _ in range(500)])))


def send_and_wait(nameserver: str, topic: str, meter: Meter) -> None:
    """One message after the other, each acknowledged before the next; from a thread."""
    with Producer(nameserver, group=GROUP) as producer:
        for _ in range(meter.count):
            began = time.perf_counter()
            assert producer.send(Message(topic, BODY)).ok
            meter.took(time.perf_counter() - began)
            meter.see(1)


WAYS: dict[str, Callable[[str, str, Meter], None]] = {
    "send_nowait": nowait,
    "send in tasks": tasks,
    "callback": callbacks,
    "send_async": futures,
    "send_batch": lists,
    "send and wait": send_and_wait,
}


def main(way: str, nameserver: str, topic: str, count: str) -> None:
    meter = Meter(int(count))
    WAYS[way](nameserver, topic, meter)
    assert meter.done.is_set(), f"only {meter.seen} of {count} messages were acknowledged"
    print(json.dumps(meter.result()))


if __name__ == "__main__":
    main(*sys.argv[1:])
