"""The shop's figures: a streaming query on Spark that sums up the orders into a second topic, and an archive of the orders.

All of it blocks, so it runs in threads beside the broker's event loop.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kappamq.errors import KappaError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

SALES_TOPIC: Final = "shop_sales"
TRIGGER: Final = "2 seconds"
_ORDER: Final = "order string, what string, cents bigint"
# Small sums on one machine: more state partitions, a JIT compiler and a garbage collector for long runs only cost time.
_CONFIG: Final = {"spark.sql.shuffle.partitions": "1", "spark.driver.memory": "1g"}
_JAVA: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


@dataclass(frozen=True, slots=True)
class Sale:
    """What was sold of one product, over all orders in the topic."""

    what: str
    orders: int
    pieces: int
    cents: int


@dataclass(frozen=True, slots=True)
class Figures:
    sales: tuple[Sale, ...]  # from the second topic
    archived: int  # orders in the archive
    archive: Path

    @property
    def orders(self) -> int:
        return sum(sale.orders for sale in self.sales)

    def problems(self, sold: int) -> list[str]:
        """Return what does not agree with `sold`, the orders of this run; topic and archive may contain older ones."""
        found = []
        if self.orders != self.archived:
            found.append(f"Spark counted {self.orders} orders, {self.archived} are in the archive")
        if self.archived < sold:
            found.append(f"{sold} orders were sold, only {self.archived} are in the archive")
        return found


class Sales:
    """The streaming query, from its start until the shop closes. Not thread-safe."""

    def __init__(self, nameserver: str, topic: str, data: Path) -> None:
        self._nameserver = nameserver
        self._topic = topic
        self._folder = data / "spark"
        self._spark: SparkSession | None = None
        self._query: StreamingQuery | None = None

    def start(self) -> None:
        """Start Spark, which takes some seconds for the JVM."""
        from kappamq.spark.engine import JAVA_OPTIONS, LOCAL, defaults, session, told

        java = f"{defaults(LOCAL)[JAVA_OPTIONS]} {_JAVA}"
        self._spark = session(LOCAL, "kappamq shop", {**_CONFIG, JAVA_OPTIONS: java})
        with told():
            orders = self._spark.readStream.format("kappamq").options(**self._options(group="shop_figures")).load()
            self._query = (
                summed_up(orders)
                .writeStream.format("kappamq")
                .option("nameservers", self._nameserver)
                .option("topic", SALES_TOPIC)
                .option("checkpointLocation", str(self._folder / "checkpoint"))
                .outputMode("complete")  # Spark has no update mode for Python sinks; these are a few rows
                .trigger(processingTime=TRIGGER)
                .start()
            )

    def finish(self) -> Figures:
        """Process the remaining orders, archive them, and read the sums from their topic."""
        from kappamq.spark.engine import told
        from kappamq.spark.jobs import archive

        if self._spark is None or self._query is None:
            raise KappaError("the streaming query was never started")
        with told():
            self._query.processAllAvailable()
            self._query.stop()
        target = self._folder / "archive"
        archive(self._spark, target, nameservers=self._nameserver, topics=[self._topic], on_data_loss="skip")
        return Figures(latest(self._sums()), _rows(target), target)

    def _sums(self) -> list[tuple[int, int, bytes]]:
        """Return the content of the second topic; only a few rows, so no Spark job is needed."""
        from kappamq.spark.topic.options import ReadOptions
        from kappamq.spark.topic.planning import QueueRange
        from kappamq.spark.topic.reading import RangeReader
        from kappamq.spark.topic.topics import Topics

        options = ReadOptions.parse({"nameservers": self._nameserver, "topic": SALES_TOPIC})
        ranges = [
            QueueRange(queue, at.min, at.max) for queue, at in Topics(options).bounds().items() if at.min < at.max
        ]
        batches = RangeReader(options, ("queueId", "queueOffset", "body")).read(ranges)
        return [(row["queueId"], row["queueOffset"], row["body"]) for batch in batches for row in batch.to_pylist()]

    def stop(self) -> None:
        if self._spark is not None:
            self._spark.stop()

    def _options(self, **more: str) -> dict[str, str]:
        return {"nameservers": self._nameserver, "topic": self._topic, "onDataLoss": "skip", **more}


def _rows(archive: Path) -> int:
    """Count rows as any Parquet reader does."""
    import pyarrow.dataset as datasets

    return int(datasets.dataset(archive, partitioning="hive").count_rows())


def summed_up(orders: DataFrame) -> DataFrame:
    """Convert orders as messages to messages with the sums per product; a product always goes to the same queue."""
    from pyspark.sql import functions as sql

    order = sql.from_json(sql.col("body").cast("string"), _ORDER)
    parts = sql.split(order["what"], " x ", 2)
    sums = (
        orders.select(parts[1].alias("what"), parts[0].cast("bigint").alias("pieces"), order["cents"].alias("cents"))
        .where("what is not null")
        .groupBy("what")
        .agg(sql.count("*").alias("orders"), sql.sum("pieces").alias("pieces"), sql.sum("cents").alias("cents"))
    )
    body = sql.to_json(sql.struct("what", "orders", "pieces", "cents"))
    return sums.select(body.alias("body"), sql.col("what").alias("shardingKey"))


def latest(messages: list[tuple[int, int, bytes]]) -> tuple[Sale, ...]:
    """Return the last sums of each product from (queue, offset, body), sorted by revenue."""
    found: dict[str, Sale] = {}
    for _queue, _offset, body in sorted(messages):
        sale = Sale(**json.loads(body))
        found[sale.what] = sale
    return tuple(sorted(found.values(), key=lambda sale: (-sale.cents, sale.what)))
