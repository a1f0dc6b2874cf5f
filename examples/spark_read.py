"""A topic as a table of Spark: orders are sent, then read and summed up with SQL. Needs `pip install '.[spark]'`."""

import sys

from kappamq import Message, Producer
from kappamq.spark.engine import session

NAMESERVER = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9876"
TOPIC = "spark_read_orders"

with Producer(NAMESERVER, group="spark-example") as producer:
    cups = ["green", "oolong", "green", "black", "green"]
    producer.send_batch([Message(TOPIC, b"a cup", tags=tea, keys=(f"cup-{n}",)) for n, tea in enumerate(cups)])

spark = session("local[1]")
orders = spark.read.format("kappamq").option("nameservers", NAMESERVER).option("topic", TOPIC).load()
orders.createOrReplaceTempView("orders")
for row in spark.sql("select tags, count(*) as cups from orders group by tags order by cups desc, tags").collect():
    print(f"{row.tags}: {row.cups}")
spark.stop()
