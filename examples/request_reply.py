"""Ask over a topic and wait for the answer. Any member of the consumer group may answer; late answers are dropped.

python examples/request_reply.py [host:port of the name server]
"""

import sys

from kappamq import Consumer, Message, Producer, ReceivedMessage, errors, replying

nameserver = sys.argv[1] if len(sys.argv) > 1 else None  # $KAPPAMQ_NAMESERVER, else 127.0.0.1:9876
PRICES = {"oolong": "7.20", "sencha": "6.80"}


def price(request: ReceivedMessage) -> str:
    return PRICES.get(request.text, "we do not sell that")


with Producer(nameserver, group="price-list") as replies, Producer(nameserver, group="till") as till:
    listener = replying(replies, price)
    with Consumer(nameserver, group="prices", topics="price-questions", listener=listener, consume_from="first"):
        for tea in ("oolong", "sencha", "coffee"):
            reply = till.request(Message("price-questions", tea.encode()), timeout=10)
            print(f"{tea}: {reply.text}")
    try:
        till.request(Message("price-questions", b"pu-erh"), timeout=0.2)
    except errors.RequestTimeout as error:
        print(f"the shop is closed: {error}")
