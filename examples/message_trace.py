"""Follow one message: who sent it, who consumed it, how long that took. Clients write traces if told to (`trace=True`).

python examples/message_trace.py [host:port of the name server]
"""

import sys
import time

from kappamq import Admin, Consumer, Message, Producer, ReceivedMessage, Redeliver, errors

nameserver = sys.argv[1] if len(sys.argv) > 1 else None  # $KAPPAMQ_NAMESERVER, else 127.0.0.1:9876
seen: list[ReceivedMessage] = []


def ship(message: ReceivedMessage) -> Redeliver | None:
    seen.append(message)
    return Redeliver(level=1) if len(seen) == 1 else None  # the first time the van is not there


with Admin(nameserver) as admin:
    with Producer(nameserver, group="shop", trace=True) as producer:
        result = producer.send(Message("traced-orders", b"2 tins of oolong", keys="order-7"))
    with Consumer(
        nameserver, group="shipping", topics="traced-orders", listener=ship, consume_from="first", trace=True
    ):
        while len(seen) < 2:
            time.sleep(0.05)
    # Both clients are closed, so their traces are sent; the index that finds them may need a moment.
    for _ in range(100):
        try:
            story = admin.trace_of(result.message_id)
        except errors.QueryNotFound:
            time.sleep(0.05)
            continue
        if len(story.consumed) == 2:
            break
        time.sleep(0.05)
    print(f"message {story.message_id}:", *story.lines(), sep="\n")
    print(f"{len(story.consumed)} deliveries; consumed by shipping: {story.groups['shipping']}")
