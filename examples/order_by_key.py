"""Messages of one key keep their order: they go to one queue, and a queue is a line.

python examples/order_by_key.py [host:port of the name server]
"""

import sys

from kappamq import Message, Producer, PullConsumer

nameserver = sys.argv[1] if len(sys.argv) > 1 else None  # $KAPPAMQ_NAMESERVER, else 127.0.0.1:9876
STEPS = ["ordered", "paid", "packed", "sent"]

with Producer(nameserver) as producer:
    for step in STEPS:
        for customer in ("ada", "ben", "cleo"):
            producer.send(Message("order_by_key", f"{customer}: {step}".encode()), key=customer)

with PullConsumer(nameserver, group="order_by_key_readers") as reader:
    seen: dict[str, list[str]] = {}
    for queue in reader.queues("order_by_key"):
        for message in reader.read(queue, reader.min_offset(queue)):
            customer, step = message.text.split(": ")
            seen.setdefault(customer, []).append(step)

for customer, steps in sorted(seen.items()):
    assert steps[-len(STEPS) :] == STEPS, steps
    print(customer, "->", ", ".join(steps[-len(STEPS) :]))
