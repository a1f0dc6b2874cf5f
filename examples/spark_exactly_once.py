"""Rows go from a topic through Spark into another topic, each once, however often the query is run, killed or tried again."""

import sys
import tempfile

from kappamq import Admin, Message, Producer
from kappamq.spark.engine import session

NAMESERVER = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9876"
ORDERS, BILLS = "spark_once_orders", "spark_once_bills"
CHECKPOINT = tempfile.mkdtemp(prefix="kappamq-example-")

spark = session("local[1]")


def run() -> None:
    """Write bills for the orders that are new since the last run, and end."""
    orders = spark.readStream.format("kappamq").options(nameservers=NAMESERVER, topic=ORDERS, columns="body").load()
    bills = orders.selectExpr("concat('bill for ', cast(body as string)) as body")
    query = (
        bills.writeStream.format("kappamq")
        .options(nameservers=NAMESERVER, topic=BILLS)
        .option("delivery", "exactly-once")
        .option("transactionScope", "example-bills")  # the name of this sequence of batches; the query owns it
        .option("checkpointLocation", CHECKPOINT)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def count(topic: str) -> int:
    return int(spark.read.format("kappamq").options(nameservers=NAMESERVER, topic=topic).load().count())


with Admin(NAMESERVER) as admin, Producer(NAMESERVER, group="spark-example") as producer:
    for topic in (ORDERS, BILLS):
        admin.create_topic(topic, queues=2)
    for first in (0, 30):
        producer.send_batch([Message(ORDERS, b"order %d" % number) for number in range(first, first + 30)])
        run()
        print(f"{count(ORDERS)} orders, {count(BILLS)} bills")

    # A batch write has no checkpoint: it says itself which batch it is. The second one changes nothing.
    totals = spark.createDataFrame([("60 orders",)], "body string")
    for _attempt in range(2):
        (
            totals.write.format("kappamq")
            .options(nameservers=NAMESERVER, topic=BILLS, delivery="exactly-once")
            .options(transactionScope="example-totals", transactionNumber="0")
            .mode("append")
            .save()
        )
    print(f"{count(BILLS)} bills and totals")
    for scope in ("example-bills", "example-totals"):
        admin.reset_scope(scope)  # this example is over: the next run has another checkpoint, so another owner
spark.stop()
