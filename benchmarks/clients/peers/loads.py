"""One client of somebody else, as a process of its own: `python -m benchmarks.clients.peers.loads WAY ADDRESS TOPIC COUNT`.

Runs in the environment of `installed.py`, which has these clients and not ours, and prints what `benchmarks.clients.meter` counts.
Settings are those that cost the client least, with an acknowledgement of one server for each message, as ours has.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
import uuid
from collections import deque
from collections.abc import Callable
from typing import Any

from benchmarks.clients.meter import Meter

BODY = bytes(100)
INFLIGHT = 10_000
BATCH = 500
PATIENCE_S = 60.0


def confluent_send(address: str, topic: str, meter: Meter) -> None:
    from confluent_kafka import Producer  # type: ignore[import-not-found]

    def told(error: object, _message: object) -> None:
        assert error is None, error
        meter.see(1)

    producer = Producer({"bootstrap.servers": address, "acks": "1", "linger.ms": 5})
    produce, poll = producer.produce, producer.poll
    given = 0
    while given < meter.count:
        if given - meter.seen >= INFLIGHT:
            poll(0.05)
            continue
        produce(topic, BODY, on_delivery=told)
        given += 1
        if not given % 100:
            poll(0)
    producer.flush(PATIENCE_S)


def confluent_consume(address: str, topic: str, meter: Meter) -> None:
    from confluent_kafka import Consumer

    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": uuid.uuid4().hex,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 10,
        }
    )
    consumer.subscribe([topic])
    enough = False
    deadline = time.monotonic() + PATIENCE_S
    while not enough:
        messages = consumer.consume(512, 0.1)  # it waits for so many, or for so long
        assert messages or time.monotonic() < deadline, "no message arrived"
        enough = meter.see(len(messages), sum([len(message.value()) for message in messages]))
    consumer.close()


def aiokafka_send(address: str, topic: str, meter: Meter) -> None:
    from aiokafka import AIOKafkaProducer  # type: ignore[import-not-found]

    async def run() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=address, acks=1, max_batch_size=256 << 10, linger_ms=0)
        await producer.start()
        waiting: deque[asyncio.Future[Any]] = deque()
        for _ in range(meter.count):
            if len(waiting) >= INFLIGHT:
                await waiting[0]
            waiting.append(await producer.send(topic, BODY))
            while waiting and waiting[0].done():
                waiting.popleft().result()
                meter.see(1)
        while waiting:
            await waiting.popleft()
            meter.see(1)
        await producer.stop()

    asyncio.run(run())


def aiokafka_consume(address: str, topic: str, meter: Meter) -> None:
    from aiokafka import AIOKafkaConsumer

    async def run() -> None:
        consumer = AIOKafkaConsumer(
            topic, bootstrap_servers=address, group_id=uuid.uuid4().hex, auto_offset_reset="earliest"
        )
        await consumer.start()
        enough = False
        while not enough:
            found = [message for some in (await consumer.getmany(timeout_ms=1000)).values() for message in some]
            enough = meter.see(len(found), sum([len(message.value) for message in found]))
        await consumer.stop()

    asyncio.run(run())


def redis_send(address: str, topic: str, meter: Meter) -> None:
    """XADD, many in one pipeline."""
    import redis  # type: ignore[import-not-found]

    host, _, port = address.rpartition(":")
    client = redis.Redis(host, int(port))
    for _ in range(0, meter.count, BATCH):
        pipe = client.pipeline(transaction=False)
        for _ in range(BATCH):
            pipe.xadd(topic, {"body": BODY})
        meter.see(len(pipe.execute()))


def redis_wait(address: str, topic: str, meter: Meter) -> None:
    """XADD, one after the other."""
    import redis

    host, _, port = address.rpartition(":")
    client = redis.Redis(host, int(port))
    for _ in range(meter.count):
        began = time.perf_counter()
        client.xadd(topic, {"body": BODY})
        meter.took(time.perf_counter() - began)
        meter.see(1)


def redis_consume(address: str, topic: str, meter: Meter) -> None:
    import redis

    host, _, port = address.rpartition(":")
    client = redis.Redis(host, int(port))
    last: bytes | str = "0"
    enough = False
    while not enough:
        ((_, found),) = client.xread({topic: last}, count=BATCH)
        last = found[-1][0]
        enough = meter.see(len(found), sum([len(fields[b"body"]) for _, fields in found]))


def nats_send(address: str, topic: str, meter: Meter) -> None:
    """JetStream, many in flight."""
    import nats  # type: ignore[import-not-found]

    async def run() -> None:
        connection = await nats.connect(f"nats://{address}")
        stream = connection.jetstream(publish_async_max_pending=INFLIGHT)
        await stream.add_stream(name=topic, subjects=[topic])
        waiting: deque[asyncio.Future[Any]] = deque()
        for _ in range(meter.count):
            waiting.append(await stream.publish_async(topic, BODY))
            while waiting and waiting[0].done():
                waiting.popleft().result()
                meter.see(1)
        while waiting:
            await waiting.popleft()
            meter.see(1)
        await connection.close()

    asyncio.run(run())


def nats_consume(address: str, topic: str, meter: Meter) -> None:
    import nats

    async def run() -> None:
        connection = await nats.connect(f"nats://{address}")
        reader = await connection.jetstream().pull_subscribe(topic, durable=uuid.uuid4().hex)
        enough = False
        while not enough:
            messages = await reader.fetch(BATCH, timeout=PATIENCE_S)
            for message in messages:
                await message.ack()
            enough = meter.see(len(messages), sum([len(message.data) for message in messages]))
        await connection.close()

    asyncio.run(run())


WAYS: dict[str, Callable[[str, str, Meter], None]] = {
    "confluent-kafka send": confluent_send,
    "confluent-kafka consume": confluent_consume,
    "aiokafka send": aiokafka_send,
    "aiokafka consume": aiokafka_consume,
    "redis-py send": redis_send,
    "redis-py consume": redis_consume,
    "redis-py send and wait": redis_wait,
    "nats-py send": nats_send,
    "nats-py consume": nats_consume,
}


def main(way: str, address: str, topic: str, count: str) -> None:
    meter = Meter(int(count))
    WAYS[way](address, topic, meter)
    assert meter.done.is_set(), f"only {meter.seen} of {count} messages"
    print(json.dumps(meter.result()))


if __name__ == "__main__":
    main(*sys.argv[1:])
