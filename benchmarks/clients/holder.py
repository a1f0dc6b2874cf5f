"""One consumer that does nothing, or holds many messages, as a process of its own: `python -m benchmarks.clients.holder WAY ...`.

idle NAMESERVER TOPIC SECONDS: a member of a group that has all queues of an empty topic; prints the CPU that it takes, as a share.
held NAMESERVER TOPIC COUNT: has pulled so many messages that nobody has taken; prints how much memory each takes, and its bytes.
"""

from __future__ import annotations

import gc
import json
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from kappamq import Consumer, LitePullConsumer, ReceivedMessage

PATIENCE_S = 60.0


def idle(nameserver: str, topic: str, seconds: float) -> dict[str, float]:
    def listen(message: ReceivedMessage) -> None:
        raise AssertionError("the topic is empty")

    with Consumer(nameserver, group=_group(), topics=topic, listener=listen) as consumer:
        _until(lambda: len(consumer.assigned) > 0)
        time.sleep(2.0)  # offsets of all queues are asked for, and the first pulls are held
        queues, cpu, began = len(consumer.assigned), time.process_time(), time.monotonic()
        time.sleep(seconds)
        return {"queues": queues, "busy": (time.process_time() - cpu) / (time.monotonic() - began)}


def held(nameserver: str, topic: str, count: int) -> dict[str, float]:
    options = {
        "pull_batch": 512,
        "cached_messages_max": count,
        "cached_all_max": 2 * count,
        "consume_span_max": 4 * count,
        "cached_bytes_max": 1 << 34,
    }
    with LitePullConsumer(nameserver, group=_group(), topics=f"{topic}-none", **options):  # type: ignore[arg-type]
        gc.collect()
        before = _resident()
        with LitePullConsumer(nameserver, group=_group(), topics=topic, consume_from="first", **options) as consumer:  # type: ignore[arg-type]
            inbox = consumer.inner.inbox
            _until(lambda: len(inbox) >= count)
            gc.collect()
            taken = _resident() - before
            stored = sum(message.stored_bytes for message in consumer.poll(timeout=PATIENCE_S, count_max=100)) / 100
            return {"messages": count, "bytes_each": taken / count, "stored_bytes": stored}


def _group() -> str:
    return f"bench-{uuid.uuid4().hex[:12]}"


def _until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not done():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.05)


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def main(way: str, nameserver: str, topic: str, number: str) -> None:
    print(json.dumps(idle(nameserver, topic, float(number)) if way == "idle" else held(nameserver, topic, int(number))))


if __name__ == "__main__":
    main(*sys.argv[1:])
