"""Send without an answer: the fastest way, for what may get lost, such as measurements.

python examples/oneway.py [nameserver]
"""

import sys
import time

from kappamq import Admin, Message, Producer

nameserver = sys.argv[1] if len(sys.argv) > 1 else None
TOPIC, COUNT = "example-temperatures", 100


def stored(admin: Admin) -> int:
    return sum(queue.max_offset for queue in admin.topic_stats(TOPIC).values())


with Admin(nameserver) as admin, Producer(nameserver, group="example-kettle") as producer:
    admin.create_topic(TOPIC, queues=2)
    before = stored(admin)
    for number in range(COUNT):
        producer.send_oneway(Message(TOPIC, f"{90 + number % 10} degrees".encode()))
    # Nobody says when they have arrived, so look.
    deadline = time.monotonic() + 10
    while stored(admin) - before < COUNT and time.monotonic() < deadline:
        time.sleep(0.05)
    print(f"{stored(admin) - before} of {COUNT} arrived")
    assert stored(admin) - before == COUNT
