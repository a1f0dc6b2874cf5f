"""Consume by a listener: it is called for each message, in threads, and what it raises makes the message come again.

python examples/push_consumer.py [nameserver]
"""

import sys
import threading
import time

from kappamq import Consumer, Message, Producer, ReceivedMessage

nameserver = sys.argv[1] if len(sys.argv) > 1 else None
run = f"{time.time_ns():x}"

bills: dict[str, str] = {}
complete = threading.Event()


def bill(message: ReceivedMessage) -> None:
    order, _, of_run = message.keys[0].partition("@")
    if of_run == run:  # the topic may hold messages of earlier runs
        bills[order] = message.text
    if len(bills) == 10:
        complete.set()


with Producer(nameserver, group="example-shop") as producer:
    for number in range(20):
        tag = "paid" if number % 2 else "new"
        producer.send(Message("example-sales", f"{number} cups".encode(), tags=tag, keys=f"order-{number}@{run}"))

with Consumer(
    nameserver, group="example-billing", topics={"example-sales": "paid"}, listener=bill, consume_from="first"
) as consumer:
    assert complete.wait(30), f"only {len(bills)} of 10 paid orders came"
    print("read from", *(str(queue) for queue in consumer.assigned))

# Leaving the block has stored how far we are: the next run sees only what is new.
print(f"{len(bills)} paid orders billed: {', '.join(sorted(bills))}")
assert set(bills) == {f"order-{number}" for number in range(1, 20, 2)}
