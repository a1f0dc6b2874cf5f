"""The same with asyncio: many sends at once, and a listener that messages are pushed to.

python examples/async_listener.py [host:port of the name server]
"""

import asyncio
import sys

from kappamq import AsyncConsumer, AsyncProducer, Message, ReceivedMessage

nameserver = sys.argv[1] if len(sys.argv) > 1 else None  # $KAPPAMQ_NAMESERVER, else 127.0.0.1:9876
COUNT = 100


async def main() -> None:
    received: set[str] = set()
    complete = asyncio.Event()

    async def listener(message: ReceivedMessage) -> None:
        received.add(message.text)  # a message may come twice; a set does not mind
        if len(received) == COUNT:
            complete.set()

    async with AsyncProducer(nameserver) as producer:
        await asyncio.gather(*(producer.send(Message("async_listener", f"cup {n}".encode())) for n in range(COUNT)))
    consumer = AsyncConsumer(
        nameserver, group="async_listeners", topics="async_listener", listener=listener, consume_from="first"
    )
    async with consumer:
        await asyncio.wait_for(complete.wait(), 30)
    print("received", len(received), "messages")


asyncio.run(main())
