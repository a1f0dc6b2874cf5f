"""Messages that a group cannot consume become dead letters: list them, see where they came from, send them again.

python examples/dead_letters.py [nameserver]
"""

import sys
import threading
import time

from kappamq import Consumer, DeadLetters, Message, Producer, ReceivedMessage, Redeliver

nameserver = sys.argv[1] if len(sys.argv) > 1 else None
run = f"{time.time_ns():x}"  # each run of this example has a topic and a group of its own
topic, group = f"example-invoices-{run}", f"example-billing-{run}"
prices: dict[str, int] = {"sencha": 680}
billed: list[str] = []
progress = threading.Condition()


def bill(message: ReceivedMessage) -> Redeliver | None:
    tea = message.text
    if tea not in prices:
        return Redeliver(level=-1)  # no use in trying again; raise, or return RETRY, to get it 16 times more
    with progress:
        billed.append(tea)
        progress.notify()
    return None


def wait_for(count: int) -> None:
    with progress:
        assert progress.wait_for(lambda: len(billed) >= count, 30), f"only {billed} billed"


with (
    Producer(nameserver, group="example-shop") as producer,
    DeadLetters(nameserver, group=group) as letters,
    Consumer(nameserver, group=group, topics=topic, listener=bill) as consumer,
):
    for tea in ("sencha", "oolong", "matcha"):
        producer.send(Message(topic, tea.encode(), keys=tea))
    wait_for(1)
    while letters.count() < 2:
        time.sleep(0.05)

    for letter in letters:
        print(f"{letter.message.text}: sent to {letter.origin_topic} with id {letter.origin_message_id}")
        for step in letters.history(letter):
            print(f"  {step.stored_ms}  {step.topic}")

    prices |= {"oolong": 820, "matcha": 1450}  # now they can be billed
    for letter in letters:
        letters.resend(letter, only_group=True)  # without only_group: for every group that reads the topic
    wait_for(3)
    while not all(letters.resent(letter, topic=f"%RETRY%{group}") for letter in letters):
        time.sleep(0.05)  # brokers enter a message into their index a moment after it is stored
    for letter in letters:
        letters.resend(letter, only_group=True)  # a second time nothing is sent

print(f"sent again: {len(billed) - 1} orders, each billed once")
assert sorted(billed) == ["matcha", "oolong", "sencha"]
