"""Copies in which each message is once: a topic without its duplicates, and a part of it replayed; run again, nothing is written twice."""

import sys
import tempfile
from pathlib import Path

from kappamq import Admin, Message, Producer
from kappamq.spark.engine import session
from kappamq.spark.jobs import Dedup, Replay, dedup, replay

NAMESERVER = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9876"
SENT, ONCE, AGAIN = "spark_payments", "spark_payments_once", "spark_payments_again"

with Admin(NAMESERVER) as admin, Producer(NAMESERVER, group="tills") as producer:
    for topic in (SENT, ONCE, AGAIN):
        if topic not in admin.topics():
            admin.create_topic(topic, queues=2)
    for number in [*range(20), 3, 7]:  # two of them are sent again
        producer.send(Message(SENT, b"a payment", keys=(f"payment-{number}",)))

state = Path(tempfile.mkdtemp())  # a folder that stays, for real jobs: it knows what was done
spark = session("local[1]", config={"spark.sql.shuffle.partitions": "1"})
unique = Dedup(
    name="payments-once", source=SENT, target=ONCE, nameservers=NAMESERVER, by="key", within_s=60, state=state
)
copied = dedup(spark, unique)
print(f"{copied.read} payments were sent, {copied.written} of them are different")
some = Replay(
    name="payments-again",
    target=AGAIN,
    nameservers=NAMESERVER,
    topics=(ONCE,),
    where="keys <> 'payment-5'",
    state=state,
)
print(f"{replay(spark, some).written} are replayed, and the second time {replay(spark, some).written}")
spark.stop()
