"""Give a topic more queues, then fewer, while messages come in; nothing is lost.

python examples/resize.py [host:port of the name server]
"""

import sys
import threading

from kappamq import Admin, Consumer, Message, Producer, ReceivedMessage

nameserver = sys.argv[1] if len(sys.argv) > 1 else None  # $KAPPAMQ_NAMESERVER, else 127.0.0.1:9876
PER_STEP = 100
received: set[str] = set()
complete = threading.Event()

with Admin(nameserver) as admin, Producer(nameserver, route_poll_ms=200) as producer:
    admin.create_topic("readings", queues=2)

    def note(message: ReceivedMessage) -> None:
        received.add(message.text)
        if len(received) == 4 * PER_STEP:
            complete.set()

    # By default new queues are noticed within half a minute, and what was read is told every five seconds.
    with Consumer(
        nameserver,
        group="meter",
        topics="readings",
        listener=note,
        consume_from="first",
        route_poll_ms=200,
        rebalance_ms=200,
        commit_ms=200,
    ):
        for step, queues in enumerate((2, 8, 4, 1)):
            # Fewer queues: gives producers time to notice (by default the half minute), then returns when every group has
            # read what lies in those that go.
            admin.resize_topic("readings", queues, notice=1.0)
            for number in range(PER_STEP):
                producer.send(Message("readings", f"{step}-{number}".encode()))
            print(f"{queues} queues")
        assert complete.wait(30)
    print(f"{len(received)} of {4 * PER_STEP} readings arrived, nothing was lost")
