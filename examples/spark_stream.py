"""A streaming query: reads what is new since the last run, each message once, and writes it to Parquet files."""

import sys
import tempfile
from pathlib import Path

from kappamq import Message, Producer
from kappamq.spark.engine import session

NAMESERVER = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9876"
TOPIC = "spark_stream_events"
FOLDER = Path(tempfile.mkdtemp(prefix="kappamq-example-"))

spark = session("local[1]")


def run() -> int:
    """Process what is there and end; without `trigger` the query would go on for ever."""
    events = (
        spark.readStream.format("kappamq")
        .option("nameservers", NAMESERVER)
        .option("topic", TOPIC)
        .option("group", "spark-example-stream")  # its lag shows in the usual tools
        .load()
    )
    query = (
        events.selectExpr("cast(body as string) as text", "queueId", "queueOffset")
        .writeStream.format("parquet")
        .option("path", str(FOLDER / "events"))
        .option("checkpointLocation", str(FOLDER / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return int(spark.read.parquet(str(FOLDER / "events")).count())


with Producer(NAMESERVER, group="spark-example") as producer:
    producer.send_batch([Message(TOPIC, b"event %d" % n) for n in range(30)])
    print(f"first run: {run()} events")
    producer.send_batch([Message(TOPIC, b"event %d" % n) for n in range(30, 50)])
    print(f"second run: {run()} events")
spark.stop()
