"""Many small messages in few requests. A batch is stored whole or not at all.

python examples/batches.py [host:port of the name server]
"""

import sys

from kappamq import Admin, Message, Producer

nameserver = sys.argv[1] if len(sys.argv) > 1 else None  # $KAPPAMQ_NAMESERVER, else 127.0.0.1:9876
readings = [Message("batches", f"sensor {n % 7}: {n}".encode(), tags=f"s{n % 7}") for n in range(1000)]

with Producer(nameserver) as producer, Admin(nameserver) as admin:
    requests = 0
    for batch in producer.in_batches(readings, count_max=200):
        producer.send_batch(batch)
        requests += 1
    stored = sum(offset.max_offset - offset.min_offset for offset in admin.topic_stats("batches").values())
    print(f"{len(readings)} messages in {requests} requests; the topic holds {stored}")
    assert stored >= len(readings)
