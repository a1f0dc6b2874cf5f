"""The log of a data directory as a table, without a broker: here a small one is made, filled, stopped and then read."""

import sys
import tempfile
from pathlib import Path

from kappamq import Message, Producer
from kappamq.local import Local, LocalThread
from kappamq.spark.engine import session

# A directory can be named; a running broker's can be read as well.
DATA = Path(sys.argv[2]) if len(sys.argv) > 2 else Path(tempfile.mkdtemp(prefix="kappamq-example-"))

small = {"mappedFileSizeCommitLog": str(16 << 20), "maxMessageSize": str(1 << 20)}
broker = LocalThread(Local.at(DATA, nameserver_port=0, broker_port=0, host="127.0.0.1", properties=small))
with broker as local, Producer(local.nameserver, group="spark-example") as producer:
    for topic in ("tea", "coffee", "tea"):
        producer.send_batch([Message(topic, b"a cup of it") for _ in range(10)])

spark = session("local[1]")
log = spark.read.format("kappamq.store").load(str(DATA))
for row in log.groupBy("topic").count().orderBy("topic").collect():
    print(f"{row.topic}: {row['count']} messages")
spark.stop()
