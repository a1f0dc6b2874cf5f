"""Messages for later: by one of the broker's levels, at a time to the millisecond, and one that is taken back.

python examples/delay.py [nameserver]
"""

import sys
import threading
import time
from datetime import datetime, timedelta

from kappamq import Consumer, Message, Producer, ReceivedMessage

nameserver = sys.argv[1] if len(sys.argv) > 1 else None
TOPIC = f"example-reminders-{time.time_ns()}"
began = time.time()
came: list[str] = []
done = threading.Event()


def remind(message: ReceivedMessage) -> None:
    came.append(message.text)
    print(f"{message.stored_ms / 1000 - began:.1f} s: {message.text}")
    if len(came) == 3:
        done.set()


with Producer(nameserver, group="example-diary") as producer:
    producer.send(Message(TOPIC, b"level 1 is one second", delay_level=1))
    producer.send(Message(TOPIC, b"half a second", delay=0.5))
    producer.send(Message(TOPIC, b"at a time", deliver_at=datetime.now() + timedelta(milliseconds=750)))
    regretted = producer.send(Message(TOPIC, b"never mind", delay=20))
    assert producer.recall(regretted) == regretted.message_id
    with Consumer(nameserver, group="example-sleepers", topics=TOPIC, listener=remind, consume_from="first"):
        assert done.wait(30), came
print("in the order of their times:", ", ".join(came))
assert came == ["half a second", "at a time", "level 1 is one second"]
