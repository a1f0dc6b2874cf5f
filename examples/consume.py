"""Consume in a loop: asking for the next message acknowledges the last one.

python examples/consume.py [nameserver]
"""

import sys
import time

from kappamq import Consumer, Message, Producer

nameserver = sys.argv[1] if len(sys.argv) > 1 else None
run = f"{time.time_ns():x}"

with Producer(nameserver, group="example-shop") as producer:
    for number in range(10):
        producer.send(Message("example-teas", f"tea {number}".encode(), keys=run))

seen = []
# `idle_timeout` ends the loop after so many seconds without a message; without it the loop waits for ever.
with Consumer(
    nameserver, group="example-kitchen", topics="example-teas", consume_from="first", idle_timeout=10
) as consumer:
    for message in consumer:
        if run in message.keys:
            seen.append(message.text)
            print(f"{message.queue}  {message.queue_offset:4}  {message.text}")
        if len(seen) == 10:
            break

assert sorted(seen) == sorted(f"tea {number}" for number in range(10))
