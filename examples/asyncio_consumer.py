"""Consume in a program that runs on asyncio, message by message.

python examples/asyncio_consumer.py [nameserver]
"""

import asyncio
import sys
import time

from kappamq import AsyncConsumer, AsyncProducer, Message

nameserver = sys.argv[1] if len(sys.argv) > 1 else None
run = f"{time.time_ns():x}"
TOPIC = "example-cakes"


async def main() -> None:
    async with AsyncProducer(nameserver, group="example-shop") as producer:
        for number in range(10):
            await producer.send(Message(TOPIC, f"cake {number}".encode(), keys=run))

    seen: list[str] = []
    async with AsyncConsumer(
        nameserver, group="example-plates", topics=TOPIC, consume_from="first", idle_timeout=10
    ) as consumer:
        async for message in consumer:
            if run in message.keys:
                seen.append(message.text)
            if len(seen) == 10:
                break

    print(", ".join(sorted(seen)))
    assert sorted(seen) == [f"cake {number}" for number in range(10)]


asyncio.run(main())
