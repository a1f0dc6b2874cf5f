"""Send messages with tags and keys, one by one, and see where each went.

python examples/send.py [nameserver]        (else $KAPPAMQ_NAMESERVER, else 127.0.0.1:9876)
"""

import sys

from kappamq import Message, Producer

nameserver = sys.argv[1] if len(sys.argv) > 1 else None

with Producer(nameserver, group="example-shop") as producer:
    for number in range(5):
        order = Message(
            "example-orders",
            f"order {number}: one pot of tea".encode(),
            tags="new",  # consumers can choose by it
            keys=(f"order-{number}", "customer-7"),  # and you can search by these
            properties={"table": "12"},  # your own
        )
        result = producer.send(order)  # returns when the broker has stored it
        print(f"{result.message_id}  {result.queue}  offset {result.queue_offset}")
        assert result.ok

print("5 messages stored")
