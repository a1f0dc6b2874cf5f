"""Topics as tables: KappaMQ and Apache RocketMQ as a source and sink of PySpark (extra `spark`).

Spark finds the formats `kappamq` (topics, through the brokers) and `kappamq.store` (a data directory, as files) by name:
`spark.read.format("kappamq").option("nameservers", "127.0.0.1:9876").option("topic", "orders").load()`.

The code runs in three kinds of processes: the driver program, Spark's planner (a Python process on the driver that is asked for
schema, partitions and offsets) and its workers, which are forked and only read. So readers and partitions are small plain
values that can be pickled, and connections belong to the process that uses them (`connection`).
"""
