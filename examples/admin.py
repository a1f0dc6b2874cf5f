"""Create a topic, look at it, at its consumers and at the broker, change it and delete it.

python examples/admin.py [nameserver]
"""

import sys
import time

from kappamq import Admin, Consumer, Message, Producer, errors

nameserver = sys.argv[1] if len(sys.argv) > 1 else None
topic = f"example-admin-{time.time_ns():x}"

with Admin(nameserver) as admin:
    for name, address in admin.masters().items():
        info = admin.runtime_info(name)
        print(
            f"broker {name} at {address}: {info.get('brokerVersionDesc')}, {info['msgPutTotalTodayNow']} messages today"
        )

    admin.create_topic(topic, queues=4)
    assert topic in admin.topics()
    admin.update_topic(topic, queues=6)
    assert len(admin.route(topic).publish) == 6

    with Producer(nameserver, group="example-shop") as producer:
        for number in range(12):
            producer.send(Message(topic, f"order {number}".encode()))
    with Consumer(nameserver, group="example-admin", topics=topic, consume_from="first", idle_timeout=10) as consumer:
        for count, _ in enumerate(consumer, 1):
            if count == 12:
                break
        print("connected:", *(connection.client_id for connection in admin.consumers("example-admin").connections))

    stats = admin.topic_stats(topic)
    progress = admin.consumer_progress("example-admin", topic)
    for queue, offsets in stats.items():
        done = progress[queue].consumer_offset
        print(f"{queue}: {offsets.min_offset} to {offsets.max_offset}, consumed to {done}")
        assert done == offsets.max_offset
    assert sum(offsets.max_offset for offsets in stats.values()) == 12

    admin.delete_topic(topic)
    try:
        admin.topic_stats(topic)
    except errors.TopicNotFound as error:
        print("deleted:", error)
    else:
        raise AssertionError("it should be gone")
