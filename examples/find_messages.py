"""Find messages again: by key, by id, by time.

python examples/find_messages.py [host:port of the name server]
"""

import sys
import time

from kappamq import Admin, Message, Producer

nameserver = sys.argv[1] if len(sys.argv) > 1 else None  # $KAPPAMQ_NAMESERVER, else 127.0.0.1:9876
began = int(time.time() * 1000)

with Producer(nameserver) as producer:
    sent = producer.send(Message("find_messages", b"a cup of oolong", keys=("order-7", "customer-3")))

with Admin(nameserver) as admin:
    print("by id  ", admin.query_by_id(sent.offset_id).text)
    print("by time", [message.text for message in admin.query_by_time("find_messages", began)])
    found = admin.query_by_key("find_messages", "order-7")
    while not found:  # the index follows the log within moments
        time.sleep(0.05)
        found = admin.query_by_key("find_messages", "order-7")
    print("by key ", found[-1].text)
