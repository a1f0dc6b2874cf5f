"""One consumer that reads a backlog, as a process of its own: `python -m benchmarks.clients.reader WAY NAMESERVER TOPIC COUNT`.

It prints its CPU time per message as JSON. The first messages start connections and routes and are not counted. Only the public API
is used, so that the package of an older tree can be measured with the same program (PYTHONPATH).
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import uuid
from collections.abc import Callable

from benchmarks.clients.meter import Meter
from kappamq import AsyncConsumer, Consumer, LitePullConsumer, PullConsumer, ReceivedMessage

PULL_BATCH = 512
BATCH = 256
CACHED = 4096
PATIENCE_S = 60.0


def poll(nameserver: str, topic: str, meter: Meter) -> None:
    """Lists by `poll`; only the body of each message is read."""
    options = {"pull_batch": PULL_BATCH, "cached_messages_max": CACHED, "consume_span_max": 2 * CACHED}
    with LitePullConsumer(nameserver, group=_group(), topics=topic, consume_from="first", **options) as consumer:  # type: ignore[arg-type]
        while True:
            messages = consumer.poll(timeout=PATIENCE_S)
            assert messages, "no message arrived"
            if meter.see(len(messages), sum([len(message.body) for message in messages])):
                return


def pull(nameserver: str, topic: str, meter: Meter) -> None:
    """Pulls by hand from one queue after the other."""
    with PullConsumer(nameserver, group=_group(), pull_batch=PULL_BATCH) as consumer:
        for queue in consumer.queues(topic):
            offset, end = consumer.min_offset(queue), consumer.max_offset(queue)
            while offset < end:
                result = consumer.pull(queue, offset)
                offset = result.next_offset
                if meter.see(len(result.messages), sum([len(message.body) for message in result.messages])):
                    return


def batches(nameserver: str, topic: str, meter: Meter) -> None:
    """A listener that gets lists, in threads."""

    def listen(messages: list[ReceivedMessage]) -> None:
        meter.see(len(messages), sum([len(message.body) for message in messages]))

    _listen(nameserver, topic, meter, listen, consume_batch=BATCH, consume_threads=1)


def threads(nameserver: str, topic: str, meter: Meter) -> None:
    """A listener that gets one message, in 20 threads."""
    lock = threading.Lock()

    def listen(message: ReceivedMessage) -> None:
        size = len(message.body)
        with lock:
            meter.see(1, size)

    _listen(nameserver, topic, meter, listen)


def coroutines(nameserver: str, topic: str, meter: Meter) -> None:
    """A coroutine listener that gets one message, in 20 tasks."""

    async def listen(message: ReceivedMessage) -> None:
        meter.see(1, len(message.body))

    async def run() -> None:
        async with AsyncConsumer(
            nameserver,
            group=_group(),
            topics=topic,
            listener=listen,
            consume_from="first",
            pull_batch=PULL_BATCH,
            cached_messages_max=CACHED,
            consume_span_max=2 * CACHED,
        ):
            await asyncio.to_thread(meter.done.wait, PATIENCE_S)

    asyncio.run(run())


def _listen(nameserver: str, topic: str, meter: Meter, listener: Callable[..., object], **options: int) -> None:
    with Consumer(
        nameserver,
        group=_group(),
        topics=topic,
        listener=listener,
        consume_from="first",
        pull_batch=PULL_BATCH,
        cached_messages_max=CACHED,
        consume_span_max=2 * CACHED,
        **options,  # type: ignore[arg-type]
    ):
        meter.done.wait(PATIENCE_S)


def _group() -> str:
    return f"bench-{uuid.uuid4().hex[:12]}"


WAYS: dict[str, Callable[[str, str, Meter], None]] = {
    "poll": poll,
    "pull": pull,
    "batch listener": batches,
    "listener in threads": threads,
    "coroutine listener": coroutines,
}


def main(way: str, nameserver: str, topic: str, count: str) -> None:
    meter = Meter(int(count))
    WAYS[way](nameserver, topic, meter)
    assert meter.done.is_set(), f"only {meter.seen} of {count} messages arrived"
    print(json.dumps(meter.result()))


if __name__ == "__main__":
    main(*sys.argv[1:])
