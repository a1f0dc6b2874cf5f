"""Consume only what you want: by tags, or by SQL conditions on properties that the broker judges.

python examples/filters.py [nameserver]
"""

import sys
import time

from kappamq import Consumer, Message, Producer, errors, sql
from kappamq.message import SqlFilter

nameserver = sys.argv[1] if len(sys.argv) > 1 else None
run = f"{time.time_ns():x}"

ORDERS = [
    ("tea", {"price": "4", "country": "PE"}),
    ("tea", {"price": "12", "country": "PE"}),
    ("cake", {"price": "30", "country": "DE"}),
    ("tea", {"price": "45", "country": "DE", "gift": "yes"}),
    ("cake", {"country": "PE"}),  # without a price no condition on the price is true
]

with Producer(nameserver, group="example-filters") as producer:
    for number, (kind, properties) in enumerate(ORDERS):
        producer.send(
            Message("example-filtered", b"order %d" % number, tags=kind, properties={**properties, "run": run})
        )


def read(name: str, wanted: str | SqlFilter) -> list[str]:
    """Everything of this run that a new group gets which wants this."""
    topics = {"example-filtered": wanted}
    group = f"example-{name}-{run}"
    with Consumer(nameserver, group=group, topics=topics, consume_from="first", idle_timeout=1.5) as consumer:
        found = sorted(message.text for message in consumer if message.properties["run"] == run)
    print(f"{name:9} {', '.join(found)}")
    return found


assert read("tags", "cake || scone") == ["order 2", "order 4"]
assert read("price", sql("price > 10")) == ["order 1", "order 2", "order 3"]
assert read("combined", sql("TAGS = 'tea' AND price BETWEEN 10 AND 40 OR gift IS NOT NULL")) == ["order 1", "order 3"]
assert read("country", sql("country NOT IN ('DE', 'FR')")) == ["order 0", "order 1", "order 4"]

# A condition that cannot be understood is refused at once, with the place and the reason.
try:
    read("mistake", sql("price > 'ten'"))
except errors.SubscriptionInvalid as error:
    print("refused  ,", error)
