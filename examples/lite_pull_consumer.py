"""Lite pull: messages are fetched in the background, and the program polls lists of them when it is ready.

python examples/lite_pull_consumer.py [nameserver]
"""

import sys
import time

from kappamq import Admin, LitePullConsumer, Message, Producer

nameserver = sys.argv[1] if len(sys.argv) > 1 else None
TOPIC, GROUP = "example-ledger", f"example-ledger-{time.time_ns():x}"

with Admin(nameserver) as admin, Producer(nameserver, group="example-shop") as producer:
    admin.create_topic(TOPIC, queues=2)
    producer.send_batch([Message(TOPIC, f"entry {number}".encode()) for number in range(100)])

# Shared with the other members of the group. The next poll says that the entries of this one are booked.
booked = 0
with LitePullConsumer(nameserver, group=GROUP, topics=TOPIC, consume_from="first") as consumer:
    while booked < 100:
        entries = consumer.poll(timeout=10, count_max=40)
        assert entries, f"only {booked} entries came"
        booked += len(entries)
print(f"{booked} entries booked")

# Queues of our own choice, offsets by hand.
with LitePullConsumer(nameserver, group=GROUP, auto_commit=False) as consumer:
    queues = consumer.queues(TOPIC)
    consumer.assign(queues)
    for queue in queues:
        consumer.seek_to_begin(queue)
    first = consumer.poll(timeout=10, count_max=1)[0]
    print(f"read again from the start: {first.text.partition(' ')[0]} at offset {first.queue_offset}")
    consumer.pause([first.queue])
    consumer.resume([first.queue])
    consumer.commit({first.queue: first.queue_offset + 1})
    assert consumer.committed(first.queue) == first.queue_offset + 1
