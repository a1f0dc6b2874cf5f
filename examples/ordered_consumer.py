"""Consume in order: the steps of each order one after the other, also when one of them fails for a while.

python examples/ordered_consumer.py [nameserver]
"""

import sys
import threading
import time
from collections import defaultdict

from kappamq import RETRY, Consumer, Message, Producer, ReceivedMessage, Redeliver

nameserver = sys.argv[1] if len(sys.argv) > 1 else None
run = f"{time.time_ns():x}"
STEPS = ["ordered", "paid", "packed", "sent"]

told: dict[str, list[str]] = defaultdict(list)
complete = threading.Event()
failed = threading.Event()


def tell(message: ReceivedMessage) -> Redeliver | None:
    customer, _, of_run = message.keys[0].partition("@")
    if of_run != run:  # the topic may hold messages of earlier runs
        return None
    if (customer, message.text) == ("ben", "paid") and not failed.is_set():
        failed.set()
        return RETRY  # the queue waits a moment, and this message comes again before any other of it
    told[customer].append(message.text)
    if sum(map(len, told.values())) == 3 * len(STEPS):
        complete.set()
    return None


with Producer(nameserver, group="example-shop") as producer:
    for step in STEPS:
        for customer in ("ann", "ben", "cleo"):
            # The same key, the same queue: what is one customer's stays in order.
            producer.send(Message("example-steps", step.encode(), keys=f"{customer}@{run}"), key=customer)

with Consumer(
    nameserver,
    group="example-story",
    topics="example-steps",
    consume_from="first",
    listener=tell,
    ordered=True,
    suspend_ms=100,
):
    assert complete.wait(30), dict(told)

for customer, steps in sorted(told.items()):
    print(customer, "->", ", ".join(steps))
    assert steps == STEPS
print("in order, though one step failed at first")
