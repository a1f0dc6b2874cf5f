"""Send a message and receive it.

kappamq up &
python examples/quickstart.py [host:port of the name server]
"""

import sys

from kappamq import Consumer, Message, Producer

nameserver = sys.argv[1] if len(sys.argv) > 1 else None  # $KAPPAMQ_NAMESERVER, else 127.0.0.1:9876

with Producer(nameserver, group="quickstart_senders") as producer:
    result = producer.send(Message("quickstart", b"first flush", tags="green", keys=("cup-1",)))
    print("sent to", result.queue, "at offset", result.queue_offset)

with Consumer(
    nameserver, group="quickstart_readers", topics={"quickstart": "green"}, consume_from="first", idle_timeout=5
) as consumer:
    for message in consumer:  # asking for the next message acknowledges this one
        print("received", message.text, "with keys", *message.keys)
        assert message.message_id == result.message_id
        break
