"""Where a group begins: at the start, at a time, and back again by a reset while it runs.

python examples/start_positions.py [nameserver]
"""

import datetime
import itertools
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Literal

from kappamq import Admin, Consumer, Message, Producer

nameserver = sys.argv[1] if len(sys.argv) > 1 else None
run = f"{time.time_ns():x}"
TOPIC = f"example-diary-{run}"


def wait_until(what: str, holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline, f"waited too long until {what}"
        time.sleep(0.05)


def read(name: str, start: Literal["first"] | datetime.datetime, pages: int) -> None:
    group = f"diary-{name}-{run}"
    with Consumer(nameserver, group=group, topics=TOPIC, consume_from=start, idle_timeout=10) as consumer:
        texts = [message.text for message in itertools.islice(consumer, pages)]
    print(f"from {name}: {len(texts)} pages, beginning with {texts[0]!r}")


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
    read("first", "first", pages=10)
    read("time", tuesday, pages=5)

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
