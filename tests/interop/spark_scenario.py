"""`python -m tests.interop.spark_scenario PLACE NAMESERVER TOPIC FOLDER`: read, stream and write through a Spark somewhere else.

PLACE is a master (`spark://...`, `local[2]`) or a Connect server (`sc://...`). Prints a JSON line of what it found.
"""

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "200ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.0",
    "spark.speculation.minTaskRuntime": "500ms",
}


def connect(place: str) -> "SparkSession":
    if place.startswith("sc://"):
        from pyspark.sql import SparkSession

        return SparkSession.builder.remote(place).getOrCreate()
    from kappamq.spark.engine import session

    config = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.executor.memory": "512m",
        "spark.sql.shuffle.partitions": "2",
    }
    return session(place, config=config | (SPECULATION if place.startswith("spark://") else {}))


class Scenario:
    def __init__(self, spark: "SparkSession", nameserver: str, topic: str, folder: Path) -> None:
        self._spark, self._topic, self._folder = spark, topic, folder
        self._given = {"nameservers": nameserver, "topic": topic}
        self._nameserver = nameserver

    def read(self, **options: str) -> "DataFrame":
        return self._spark.read.format("kappamq").options(**self._given | options).load()

    def batch(self) -> dict[str, Any]:
        rows = self.read(minPartitions="4", columns="brokerName,queueId,queueOffset,body,tags")
        found = [tuple(row) for row in rows.collect()]
        return {
            "rows": len(found),
            "distinct": len({row[:3] for row in found}),
            "bodies": len({bytes(row[3]) for row in found}),
            "tags": self.read(tags="even").count(),
            "keys": self.read(keys="k7,k8,none").count(),
            "filter": self.read(filter="number BETWEEN 10 AND 19").count(),
            "until": self.read(endingTimestamp="4102444800000").count(),
            "since": self.read(startingTimestamp="4102444800000").count(),
        }

    def stream(self, name: str, change: Any = None) -> int:
        rows = self._spark.readStream.format("kappamq").options(
            **self._given, minPartitions="4", group="spark-scenario"
        ).load()  # fmt: skip
        rows = rows.select("brokerName", "queueId", "queueOffset", "body")
        if change is not None:
            rows = rows.mapInArrow(change, rows.schema)
        writer = rows.writeStream.format("parquet").option(
            "checkpointLocation", str(self._folder / f"{name}-checkpoint")
        )
        query = writer.trigger(availableNow=True).start(str(self._folder / name))
        assert query.awaitTermination(200), "the stream did not end"
        table = self._spark.read.parquet(str(self._folder / name))
        rows_of_it = table.count()
        assert rows_of_it == table.distinct().count()
        return rows_of_it

    def write(self) -> None:
        """Every row of the topic once more, into another topic: by a batch, and by a stream."""
        written = {"nameservers": self._nameserver, "topic": f"{self._topic}_copy"}
        copies = self.read().select("body", "keys", "tags", "properties")
        copies.write.format("kappamq").options(**written).mode("append").save()
        rows = self._spark.readStream.format("kappamq").options(**self._given).load().select("body", "tags")
        writer = rows.writeStream.format("kappamq").options(**written)
        query = writer.option("checkpointLocation", str(self._folder / "writing")).trigger(availableNow=True).start()
        assert query.awaitTermination(200), "the stream did not end"


def two_attempts(folder: str) -> Any:
    """A function for tasks: both attempts of one of them have read the same rows before either goes on, whoever comes first."""

    def passed(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        from pyspark import TaskContext

        context = TaskContext.get()
        held = list(batches)
        if context is not None and context.partitionId() == 0 and context.attemptNumber() < 2:
            own, other = ("first-has-read", "second-has-read")[:: 1 if context.attemptNumber() == 0 else -1]
            (Path(folder) / own).touch()
            end = time.monotonic() + 90
            while not (Path(folder) / other).exists() and time.monotonic() < end:
                time.sleep(0.1)
        yield from held

    return passed


def both_hosts(folder: str) -> Any:
    """A function for tasks: returns the host it runs on, once tasks have been on two of them, however busy one is."""

    def where(_number: int) -> str:
        host = os.environ["SPARK_LOCAL_IP"]
        (Path(folder) / f"task-on-{host}").touch()
        end = time.monotonic() + 90
        while len(list(Path(folder).glob("task-on-*"))) < 2 and time.monotonic() < end:
            time.sleep(0.1)
        return host

    return where


def main(place: str, nameserver: str, topic: str, folder: str) -> None:
    spark = connect(place)
    scenario = Scenario(spark, nameserver, topic, Path(folder))
    found: dict[str, Any] = {"batch": scenario.batch(), "streamed": scenario.stream("table")}
    if place.startswith("spark://"):
        found["streamed twice"] = scenario.stream("speculated", two_attempts(folder))
        found["two attempts"] = all((Path(folder) / f"{one}-has-read").exists() for one in ("first", "second"))
        hosts = spark.sparkContext.parallelize(range(8), 8).map(both_hosts(folder))
        found["hosts"] = sorted(set(hosts.collect()))
    scenario.write()
    print(json.dumps(found), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
