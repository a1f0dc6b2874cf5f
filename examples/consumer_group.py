"""Two consumers of one group share the queues of a topic; when one leaves, the other takes over.

python examples/consumer_group.py [nameserver]
"""

import sys
import threading
import time
from collections import Counter
from collections.abc import Callable

from kappamq import Admin, Consumer, Message, Producer, ReceivedMessage

nameserver = sys.argv[1] if len(sys.argv) > 1 else None
run = f"{time.time_ns():x}"
TOPIC = "example-tables"
served: Counter[str] = Counter()
messages: set[str] = set()
lock = threading.Lock()


def waiter(name: str) -> Consumer:
    def serve(message: ReceivedMessage) -> None:
        if run in message.keys:
            with lock:
                served[name] += 1
                messages.add(message.message_id)

    return Consumer(nameserver, group="example-waiters", topics=TOPIC, consume_from="first", listener=serve)


def wait_until(what: str, holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline, f"waited too long until {what}"
        time.sleep(0.05)


def share(consumer: Consumer) -> int:
    return sum(queue.topic == TOPIC for queue in consumer.assigned)


with Admin(nameserver) as admin:
    admin.create_topic(TOPIC, queues=4)

with Producer(nameserver, group="example-shop") as producer, waiter("ann") as ann:
    bob = waiter("bob")
    bob.start()
    wait_until("both have queues", lambda: share(ann) == share(bob) == 2)
    for number in range(40):
        producer.send(Message(TOPIC, f"table {number}".encode(), keys=run))
    wait_until("all are served", lambda: len(messages) == 40)
    print("together:  ", dict(served))
    assert len(served) == 2

    bob.close()
    wait_until("ann has all queues", lambda: share(ann) == 4)
    for number in range(40, 60):
        producer.send(Message(TOPIC, f"table {number}".encode(), keys=run))
    wait_until("all are served", lambda: len(messages) == 60)
    print("ann alone: ", dict(served))
