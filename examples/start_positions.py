"""Where a group begins: at the start, at a time, and back again by a reset while it runs.

python examples/start_positions.py [nameserver]
"""

import datetime
import sys
import time
from collections import Counter

from kappamq import Admin, Consumer, Message, Producer

nameserver = sys.argv[1] if len(sys.argv) > 1 else None
run = f"{time.time_ns():x}"
TOPIC = f"example-diary-{run}"


def wait_until(what: str, holds) -> None:
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline, f"waited too long until {what}"
        time.sleep(0.05)


with Admin(nameserver) as admin, Producer(nameserver, group="example-writer") as producer:
    admin.create_topic(TOPIC, queues=1)
    for number in range(5):
        producer.send(Message(TOPIC, f"monday {number}".encode()))
    time.sleep(0.05)
    tuesday = datetime.datetime.now(datetime.UTC)
    time.sleep(0.05)
    for number in range(5):
        producer.send(Message(TOPIC, f"tuesday {number}".encode()))

    # Only a group that has no offsets yet looks at consume_from; "last" is the default.
    for name, start, pages in (("first", "first", 10), ("time", tuesday, 5)):
        with Consumer(nameserver, group=f"diary-{name}-{run}", topics=TOPIC, consume_from=start) as consumer:
            texts = [consumer.poll(10).text for _ in range(pages)]
        print(f"from {name}: {len(texts)} pages, beginning with {texts[0]!r}")

    seen: Counter[str] = Counter()
    group = f"diary-reset-{run}"
    with Consumer(
        nameserver, group=group, topics=TOPIC, consume_from="first", listener=lambda page: seen.update([page.text])
    ):
        wait_until("all is read", lambda: len(seen) == 10)
        admin.reset_offset(group, TOPIC, tuesday)
        wait_until("tuesday is read again", lambda: sum(seen.values()) == 15)
    print(f"after the reset: {sum(count == 2 for count in seen.values())} pages were read twice")
    admin.delete_topic(TOPIC)
