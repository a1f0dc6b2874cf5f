"""Read queues by hand: any queue from any offset, by time, with offsets stored only when you say so.

python examples/pull_consumer.py [nameserver]
"""

import sys
import time

from kappamq import Message, Producer, PullConsumer, PullStatus

nameserver = sys.argv[1] if len(sys.argv) > 1 else None
TOPIC = "example-ledger"

with Producer(nameserver, group="example-shop") as producer:
    began_ms = int(time.time() * 1000)
    results = [
        producer.send(Message(TOPIC, f"entry {n}".encode(), tags="credit" if n % 2 else "debit")) for n in range(40)
    ]

with PullConsumer(nameserver, group="example-audit") as consumer:
    found = 0
    for queue in consumer.queues(TOPIC):
        start = consumer.search(queue, began_ms)  # the first message stored at or after that time
        print(f"{queue}: holds {consumer.min_offset(queue)} to {consumer.max_offset(queue)}, ours start at {start}")
        consumer.seek(queue, start)
        while (result := consumer.pull(queue, count=4)).status is not PullStatus.NO_NEW:
            found += sum(message.tags == "credit" for message in result.messages)
        consumer.commit(queue)
        assert consumer.committed(queue) == consumer.position(queue)

    last = results[-1]
    one = consumer.pull(last.queue, last.queue_offset, count=1).messages[0]
    print("the last entry is", one.text)
    assert one.message_id == last.message_id
    # New ones can be waited for; here none comes.
    assert consumer.pull(last.queue, consumer.max_offset(last.queue), wait=0.5).status is PullStatus.NO_NEW

print(found, "credits found")
assert found >= 20
