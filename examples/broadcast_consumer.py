"""Broadcasting: every member of the group gets every message, and each remembers for itself how far it is.

python examples/broadcast_consumer.py [nameserver]
"""

import sys
import tempfile
import threading
import time
from pathlib import Path

from kappamq import Consumer, Message, Producer, ReceivedMessage

nameserver = sys.argv[1] if len(sys.argv) > 1 else None
run = f"{time.time_ns():x}"
heard: dict[str, set[str]] = {"kitchen": set(), "bar": set()}
complete = threading.Event()


def room(name: str, offsets: Path) -> Consumer:
    def listen(message: ReceivedMessage) -> None:
        if run in message.keys:
            heard[name].add(message.text)
        if all(len(texts) == 3 for texts in heard.values()):
            complete.set()

    # `instance` tells the two apart: each keeps its offsets in a file of its own (by default below ~/.rocketmq_offsets).
    return Consumer(
        nameserver,
        group="example-rooms",
        topics="example-news",
        listener=listen,
        broadcasting=True,
        consume_from="first",
        instance=name,
        offsets_dir=offsets,
    )


with Producer(nameserver, group="example-office") as producer:
    for text in ("we open at nine", "the oven is hot", "no more scones"):
        producer.send(Message("example-news", text.encode(), keys=run))

with tempfile.TemporaryDirectory() as folder, room("kitchen", Path(folder)), room("bar", Path(folder)):
    assert complete.wait(30), heard

for name, texts in heard.items():
    print(f"{name} has heard {len(texts)} announcements")
