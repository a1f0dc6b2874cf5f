"""Copies a topic without its duplicates into another: a stream whose state holds the ids or keys seen within a period.

Its event time is the store time, but bounded to the allowed period: so no message counts as late and is dropped, however old
the messages of a broker that was away are. The state forgets an id when the period has passed since it came.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kappamq.errors import ConfigError, DataLoss
from kappamq.protocol.names import check_topic
from kappamq.spark import connection
from kappamq.spark.engine import check_installed, told
from kappamq.spark.jobs.copies import rows
from kappamq.spark.jobs.copies.state import JobState
from kappamq.spark.pipelines.progress import Batch, parse
from kappamq.spark.topic.options import ReadOptions, checked_name
from kappamq.spark.topic.topics import Topics, check_exists

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BY: Final = {"id": "msgId", "key": "keys", "body": "body"}
WITHIN_S: Final = 3600.0
BATCH_ROWS: Final = 100_000
CLOCK_BACK_S: Final = 300.0
"""How far this machine's clock may be set back between two batches without a message becoming late."""
_POLL_S: Final = 0.5
_PLACE: Final = ("topic", "brokerName", "queueId", "queueOffset")
_STATE: Final = {
    "spark.sql.streaming.stateStore.providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
}

Reported = Callable[[Batch], None]


@dataclass(frozen=True, slots=True)
class Deduplicated:
    """The result of a run."""

    name: str
    read: int
    written: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Dedup:
    """What to copy. Checked without Spark."""

    name: str
    source: str
    target: str
    nameservers: str
    by: str = "id"
    within_s: float = WITHIN_S
    batch_rows: int = BATCH_ROWS
    on_data_loss: str = "fail"
    group: str | None = None
    state: Path | None = None
    tls: Mapping[str, str] | None = None

    def check(self) -> None:
        """Raises ConfigError (NoSuchTopic), NoRoute."""
        checked_name("the target", self.target, check_topic)
        JobState(self.state, self.name)
        if self.by not in BY:
            raise ConfigError(f"by={self.by!r} must be {', '.join(BY)}")
        if not 1 <= self.within_s <= 366 * 86400:
            raise ConfigError(f"within_s={self.within_s} must be between one second and a year")
        if self.source == self.target:
            raise ConfigError(f"{self.target} cannot be written into itself: choose another target")
        options = ReadOptions.parse(self.read_options())
        check_exists(options.nameservers, self.target, options.tls)
        Topics(options).bounds()

    def read_options(self) -> dict[str, str]:
        given = {
            "nameservers": self.nameservers,
            **(self.tls or {}),
            "topic": self.source,
            "columns": ",".join(rows.READ),
        }
        given |= {"onDataLoss": self.on_data_loss, "maxMessagesPerTrigger": str(self.batch_rows)}
        return given if self.group is None else given | {"group": self.group}

    def asked(self) -> dict[str, Any]:
        """The settings that must be the same in every run of this name."""
        return {"source": self.source, "target": self.target, "by": self.by, "within_s": self.within_s}


def dedup(
    spark: SparkSession,
    wanted: Dedup,
    *,
    follow: bool = False,
    reported: Reported = lambda _batch: None,
    until: Callable[[], bool] = lambda: False,
) -> Deduplicated:
    """Copy new messages that are not duplicates: those there are now or, with `follow`, until `until` returns true.

    Raises ConfigError, StoreError, DataLoss, IllegalOperation (the scope has another owner), SparkFailed."""
    check_installed()
    wanted.check()
    state = JobState(wanted.state, wanted.name)
    with state.opened(), told(), _configured(spark):
        stored = state.agreed(wanted.asked(), "dedup") or state.begin(wanted.asked(), "dedup")
        return _Run(spark, wanted, stored["owner"], state.folder / "checkpoint").run(follow, reported, until)


class _Run:
    def __init__(self, spark: SparkSession, wanted: Dedup, owner: str, checkpoint: Path) -> None:
        self._spark = spark
        self._wanted = wanted
        self._owner = owner
        self._checkpoint = checkpoint
        self._written = 0
        self._read = 0
        self._last: tuple[int, str] = (-1, "")

    def run(self, follow: bool, reported: Reported, until: Callable[[], bool]) -> Deduplicated:
        options = ReadOptions.parse(self._wanted.read_options())
        producer = connection.producer(options.nameservers, tls=options.tls)
        producer.open_scope(self._wanted.name, self._owner)  # check that it is ours before anything is begun
        targets = list(producer.queues(self._wanted.target))
        found = self._spark.readStream.format("kappamq").options(**self._wanted.read_options()).load()
        writer = rows.by_hash(unique(found, self._wanted.by, self._wanted.within_s), targets).writeStream
        writer = writer.queryName(self._wanted.name).option("checkpointLocation", self._checkpoint.as_uri())
        writer = writer.trigger(processingTime="1 second") if follow else writer.trigger(availableNow=True)
        query: Any = writer.foreachBatch(self._write).start()
        try:
            while query.isActive and not until():
                query.awaitTermination(_POLL_S)
                self._report(query, reported)
        finally:
            if query.isActive:
                query.stop()
        if query.exception() is not None:
            raise query.exception()
        self._report(query, reported)
        return Deduplicated(self._wanted.name, self._read, self._written)

    def _write(self, batch: DataFrame, number: int) -> None:
        """Write a batch of the stream as a batch of the scope, with the same number: one that was written before is not read again."""
        from pyspark.sql import Observation
        from pyspark.sql import functions as sql

        wanted = self._wanted
        seen = Observation()
        messages = rows.as_messages(rows.in_order(batch, _tasks(self._spark)), wanted.target)
        options = {
            "nameservers": wanted.nameservers, **(wanted.tls or {}), "delivery": "exactly-once", "transactionScope": wanted.name,
            "transactionNumber": str(number), "transactionOwner": self._owner, "onRepeatedBatch": "skip",
        }  # fmt: skip
        counted = messages.observe(seen, sql.count(sql.lit(1)).alias("rows"))
        counted.write.format("kappamq").options(**options).mode("append").save()
        self._written += int(seen.get["rows"])

    def _report(self, query: Any, reported: Reported) -> None:
        for progress in query.recentProgress:
            key = (int(progress["batchId"]), str(progress["timestamp"]))
            if key > self._last:
                self._last = key
                batch = parse(self._wanted.target, progress, self._read)
                self._read = batch.total_rows
                reported(batch)
                if dropped := sum(part.get("numRowsDroppedByWatermark", 0) for part in progress["stateOperators"]):
                    raise DataLoss(
                        f"{dropped} messages of batch {batch.batch} were left out as too late, and may not have been duplicates: the clock "
                        f"of this machine was set back by more than {CLOCK_BACK_S:.0f} s. Run dedup with another name and target"
                    )


def unique(messages: DataFrame, by: str, within_s: float) -> DataFrame:
    """Leave out messages whose id or key came before within the period. A message without one is never a duplicate."""
    from pyspark.sql import functions as sql

    place = sql.concat_ws("/", *_PLACE)
    value = sql.sha2("body", 256) if by == "body" else sql.nullif(sql.col(BY[by]), sql.lit(""))
    # A prefix distinguishes values from places.
    identity = sql.coalesce(sql.concat(sql.lit("="), value), sql.concat(sql.lit("@"), place))
    within = f"{max(1, round(within_s * 1000))} milliseconds"
    earliest = sql.current_timestamp() - sql.expr(f"interval {within}")
    at = sql.least(sql.current_timestamp(), sql.greatest(sql.col("storeTimestamp"), earliest))
    later = f"{round((within_s + CLOCK_BACK_S) * 1000)} milliseconds"
    known = messages.select("*", at.alias("seenAt"), identity.alias("identity")).withWatermark("seenAt", later)
    return known.dropDuplicatesWithinWatermark(["identity"]).drop("seenAt", "identity")


def _tasks(spark: SparkSession) -> int:
    return max(1, int(spark.conf.get("spark.sql.shuffle.partitions", "2") or 2))


class _configured:
    """Keep state in RocksDB, on disk: the ids of an hour need not fit into Java's memory."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._before: dict[str, str | None] = {}

    def __enter__(self) -> None:
        self._before = {name: self._spark.conf.get(name, None) for name in _STATE}
        for name, value in _STATE.items():
            self._spark.conf.set(name, value)

    def __exit__(self, *_: object) -> None:
        for name, value in self._before.items():
            if value is None:
                self._spark.conf.unset(name)
            else:
                self._spark.conf.set(name, value)
