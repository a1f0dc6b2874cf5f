"""Rows of a table become messages: body, keys, tags and the order within a customer come from columns."""

import sys

from kappamq import Admin
from kappamq.spark.engine import session

NAMESERVER = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9876"
TOPIC = "spark_written"

with Admin(NAMESERVER) as admin:
    if TOPIC not in admin.topics():
        admin.create_topic(TOPIC, queues=4)

spark = session("local[1]")
rows = spark.range(100).selectExpr(
    "concat('order ', id) as body",
    "array(concat('key-', id)) as keys",
    "if(id % 3 = 0, 'paid', 'new') as tags",
    "concat('customer ', id % 7) as shardingKey",  # rows with the same one go to the same queue
)
rows.write.format("kappamq").option("nameservers", NAMESERVER).option("topic", TOPIC).mode("append").save()
written = spark.read.format("kappamq").options(nameservers=NAMESERVER, topic=TOPIC, tags="paid").load().count()
print(f"{written} paid orders are in the topic")
spark.stop()
