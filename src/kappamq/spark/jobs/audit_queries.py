"""The rules of an audit as queries: tables of messages and trace events in, findings out. Only the parsing of trace messages
runs in Python on executors.

Numbers in a record may be arbitrary: sums that could overflow are bounded, and strings that should be numbers may not be.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from operator import or_
from typing import Any, Final

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as sql

from kappamq.protocol import names
from kappamq.protocol.records import properties
from kappamq.protocol.timing import PRECISION_MS
from kappamq.spark.jobs import audit_trace
from kappamq.spark.jobs.audit_facts import OffsetTable
from kappamq.spark.jobs.audit_rules import FINDING_TYPES, Finding
from kappamq.spark.jobs.audit_trace import BEGUN, ENDED, SENT, TRACE_TYPES
from kappamq.spark.store.reading import DELETED_MEANWHILE

USER: Final = "user"
RETRY: Final = "retry"
DEAD: Final = "dead letters"
SYSTEM: Final = "system"
_RESENT_FROM: Final = "RESENT_FROM"
_NUMBER_MAX: Final = 10**15
_ID_TAIL: Final = 12
"""The last digits of a producer's id are time and counter; the part before them identifies the process."""
_COLUMNS: Final = (
    "topic", "queueId", "queueOffset", "logOffset", "size", "msgId", "keys", "tags", "bornTimestamp", "storeTimestamp",
    "bornHost", "storeHost", "properties", "damage",
)  # fmt: skip

Stretches = Sequence[tuple[int, int]]


def messages(spark: SparkSession, store: str, trace_topic: str) -> DataFrame:
    """Return every record of the log, and every damaged stretch, in the columns that the rules need."""
    options = {"columns": ",".join(_COLUMNS), "system": "true", "onDamage": "rows"}
    log = spark.read.format("kappamq.store").options(**options).load(store)
    pairs = sql.col("properties")
    topic = sql.col("topic")
    system = topic.isin(*names.SYSTEM_TOPICS, trace_topic) | topic.startswith(names.SYSTEM_TOPIC_PREFIX)
    kind = (
        sql.when(system | topic.endswith(names.REPLY_TOPIC_SUFFIX) | topic.startswith(names.LMQ_PREFIX), SYSTEM)
        .when(topic.startswith(names.RETRY_PREFIX), RETRY)
        .when(topic.startswith(names.DLQ_PREFIX), DEAD)
        .otherwise(USER)
    )
    copied = (properties.REAL_TOPIC, properties.RETRY_TOPIC, properties.TRANSACTION_PREPARED, _RESENT_FROM)
    return log.select(
        "topic",
        sql.col("queueId").alias("queue"),
        sql.col("queueOffset").alias("offset"),
        sql.col("logOffset").alias("log_offset"),
        "size", "keys", "tags", "damage",
        sql.unix_millis("bornTimestamp").alias("born_ms"),
        sql.unix_millis("storeTimestamp").alias("stored_ms"),
        sql.col("bornHost").alias("client"),
        sql.col("storeHost").alias("broker"),
        sql.col("msgId").alias("message_id"),
        pairs[properties.UNIQUE_KEY].alias("id"),
        pairs[properties.REAL_TOPIC].alias("real_topic"),
        pairs[properties.SHARDING_KEY].alias("sharding_key"),
        pairs[properties.TRACE_ON].alias("trace_on"),
        _number(pairs[properties.TIMER_OUT_MS]).alias("out_ms"),
        _number(pairs[properties.TIMER_DELIVER_MS]).alias("deliver_ms"),
        sql.greatest(sql.lit(1), sql.coalesce(_number(pairs[properties.INNER_COUNT]), sql.lit(1))).alias("numbers"),
        pairs[_RESENT_FROM].isNotNull().alias("resent"),
        # A copy keeps the born time of the original, so it is no evidence of order or delay.
        reduce(or_, (pairs[name].isNotNull() for name in copied)).alias("copied"),
        sql.when(sql.col("damage").isNull(), kind).alias("kind"),
    )  # fmt: skip


def traces(spark: SparkSession, store: str, topic: str) -> DataFrame:
    """Return the events that clients traced."""
    options = {"columns": "body", "system": "true", "onDamage": "rows", "topic": topic}
    log = spark.read.format("kappamq.store").options(**options).load(store)
    schema = ", ".join(f"{name} {kind}" for name, kind in TRACE_TYPES.items())
    return log.mapInArrow(audit_trace.batches, schema)


def deleted_meanwhile(table: DataFrame) -> list[tuple[int, int]]:
    """Return the stretches that retention deleted while the log was read: messages there are not lost."""
    rows = table.where(sql.col("damage") == DELETED_MEANWHILE).select("log_offset", "size").collect()
    return [(row[0], row[0] + row[1]) for row in rows]


# -- lost --------------------------------------------------------------------------------------------------------------------


def missing(queued: DataFrame, deleted: Stretches) -> DataFrame:
    """Offsets between two that a queue has."""
    steps = _steps(queued)
    explained = (
        (sql.lit(start) < sql.col("log_offset")) & (sql.lit(stop) > sql.col("before_log")) for start, stop in deleted
    )
    gaps = steps.where((sql.col("offset") > sql.col("expected")) & ~reduce(or_, explained, sql.lit(False)))
    return finding(
        gaps, "missing", topic="topic", queue="queue", offset="expected",
        last_offset=sql.col("offset") - 1, log_offset="before_log",
        messages=sql.least(sql.try_subtract("offset", "expected"), sql.lit(_NUMBER_MAX)),
        text=sql.concat(
            sql.lit("between the records at "), sql.col("before_log"), sql.lit(" and "), sql.col("log_offset"), sql.lit(" of the log")
        ),
    )  # fmt: skip


def damaged(table: DataFrame) -> DataFrame:
    stretches = table.where(sql.col("damage").isNotNull() & (sql.col("damage") != DELETED_MEANWHILE))
    text = sql.concat(sql.col("size"), sql.lit(" bytes: "), sql.col("damage"))
    # The messages that lay there also appear as missing offsets: they are counted once.
    return finding(stretches, "damaged", log_offset="log_offset", messages=sql.lit(0), text=text)


def sent(
    table: DataFrame, trace: DataFrame, log_min: int, deleted: Stretches, topics: Sequence[str] | None
) -> DataFrame:
    """Return messages that this broker stored according to traces, but that are not there."""
    brokers = table.where(sql.col("broker").isNotNull()).select(sql.col("broker").alias("host")).distinct()
    told = trace.where((sql.col("event") == SENT) & sql.col("success") & (sql.col("log_offset") >= log_min))
    if topics is not None:
        told = told.where(sql.col("trace_topic").isin(*topics))
    for start, stop in deleted:
        told = told.where((sql.col("log_offset") < start) | (sql.col("log_offset") >= stop))
    told = told.join(sql.broadcast(brokers), "host").dropDuplicates(["message_id", "log_offset"])
    there = table.select(
        sql.col("log_offset").alias("at"), "damage", "id", sql.col("topic"), sql.col("queue"), sql.col("offset")
    )
    lost = told.join(there, told["log_offset"] == there["at"], "left").where(
        sql.col("at").isNull()
        | sql.col("damage").isNotNull()
        | (sql.col("id").isNotNull() & (sql.col("id") != sql.col("message_id")))
    )
    text = (
        sql.when(sql.col("at").isNull(), sql.lit("no record begins there"))
        .when(sql.col("damage").isNotNull(), sql.concat(sql.lit("damaged: "), sql.col("damage")))
        .otherwise(sql.concat(sql.lit("message "), sql.col("id"), sql.lit(" of "), sql.col("topic"), sql.lit(" lies there")))
    )  # fmt: skip
    return finding(
        lost, "sent", topic="trace_topic", log_offset="log_offset", message_id="message_id", group="trace_group", text=text
    )  # fmt: skip


def undelivered(table: DataFrame, copies: DataFrame, delivered: Mapping[int, int], existing: DataFrame) -> DataFrame:
    """Return delayed messages that their level has moved past, without a copy in their destination, a topic that exists (`real_topic`)."""
    passed = ((sql.col("queue") == level - 1) & (sql.col("offset") < position) for level, position in delivered.items())
    parked = table.where(
        (sql.col("topic") == names.SCHEDULE_TOPIC) & sql.col("id").isNotNull() & reduce(or_, passed, sql.lit(False))
    )
    parked = parked.join(sql.broadcast(existing), "real_topic", "left_semi")
    copies = copies.select(
        sql.col("id").alias("its_id"), sql.col("topic").alias("its_topic"), sql.col("log_offset").alias("its_log")
    )
    lost = parked.join(
        copies,
        (parked["id"] == copies["its_id"])
        & (parked["real_topic"] == copies["its_topic"])
        & (copies["its_log"] > parked["log_offset"]),
        "left_anti",
    )
    text = sql.concat(
        sql.lit("parked as message "), sql.col("offset"), sql.lit(" of delay level "), sql.col("queue") + 1
    )
    return finding(lost, "undelivered", topic="real_topic", log_offset="log_offset", message_id="id", text=text)


def unseen(users: DataFrame, trace: DataFrame, offsets: DataFrame) -> DataFrame:
    """Return messages below a group's offset without a trace of the group, where it does trace: stored between two messages with
    the same tag that it got."""
    got = trace.where(sql.col("event") == BEGUN).select(sql.col("trace_group").alias("group"), "message_id").distinct()
    known = users.where(sql.col("id").isNotNull() & (sql.coalesce(sql.col("trace_on"), sql.lit("true")) != "false"))
    spans = (
        got.join(known.select("id", "topic", "tags", "stored_ms"), sql.col("id") == sql.col("message_id"))
        .groupBy("group", sql.col("topic").alias("its_topic"), sql.col("tags").alias("its_tags"))
        .agg(sql.min("stored_ms").alias("since_ms"), sql.max("stored_ms").alias("until_ms"))
    )
    passed = (
        known.join(
            sql.broadcast(spans),
            (sql.col("topic") == sql.col("its_topic"))
            & sql.col("tags").eqNullSafe(sql.col("its_tags"))
            & sql.col("stored_ms").between(sql.col("since_ms"), sql.col("until_ms")),
        )
        .drop("message_id")
        .join(sql.broadcast(offsets), ["group", "topic", "queue"])
        .where(sql.col("offset") < sql.col("committed"))
    )
    quiet = passed.join(got.withColumnRenamed("message_id", "id"), ["group", "id"], "left_anti")
    return finding(
        quiet, "unseen", topic="topic", queue="queue", offset="offset", last_offset="offset", log_offset="log_offset",
        message_id="id", group="group",
    )  # fmt: skip


# -- duplicated, reordered -----------------------------------------------------------------------------------------------------


def same_offset(queued: DataFrame) -> DataFrame:
    """Return offsets that were assigned twice. A queue that begins with 0 again was deleted, and created again by a Java broker."""
    again = _steps(queued).where((sql.col("offset") < sql.col("expected")) & (sql.col("offset") != 0))
    return finding(
        again, "offset", topic="topic", queue="queue", offset="offset", last_offset=sql.col("expected") - 1,
        log_offset="log_offset", message_id="message_id",
        messages=sql.least(sql.try_subtract("expected", "offset"), sql.lit(_NUMBER_MAX)),
        text=sql.concat(sql.lit("the record before it, at "), sql.col("before_log"), sql.lit(" of the log, is further on")),
    )  # fmt: skip


def same_id(users: DataFrame) -> DataFrame:
    place = sql.struct("log_offset", "queue", "offset")
    several = (
        users.where(sql.col("id").isNotNull() & ~sql.col("resent"))
        .groupBy("topic", "id")
        .agg(sql.count("*").alias("copies"), sql.min(place).alias("first"), sql.max(place).alias("last"))
        .where(sql.col("copies") > 1)
    )
    text = sql.concat(
        sql.col("copies"), sql.lit(" copies; the first is message "), sql.col("first.offset"), sql.lit(" of queue "),
        sql.col("first.queue"), sql.lit(", at "), sql.col("first.log_offset"), sql.lit(" of the log"),
    )  # fmt: skip
    return finding(
        several, "id", topic="topic", queue="last.queue", offset="last.offset", last_offset="last.offset",
        log_offset="last.log_offset", message_id="id", messages=sql.col("copies") - 1, text=text,
    )  # fmt: skip


def consumed_again(users: DataFrame, trace: DataFrame, groups: Sequence[str]) -> DataFrame:
    """Only for groups that commit offsets: in broadcasting all members consume every message successfully."""
    begun = trace.where(sql.col("event") == BEGUN).select(
        "request_id", "message_id", sql.col("trace_group").alias("begun_group")
    )
    often = (
        trace.where((sql.col("event") == ENDED) & sql.col("success"))
        .select("request_id", "message_id", "trace_group")
        .join(begun, ["request_id", "message_id"], "left")
        .withColumn("group", sql.coalesce("trace_group", "begun_group"))
        .where(sql.col("group").isin(*groups))
        .groupBy("group", "message_id")
        .agg(sql.count_distinct("request_id").alias("times"))
        .where(sql.col("times") > 1)
    )
    place = sql.struct("log_offset", "topic", "queue", "offset")
    found = (
        often.join(users.drop("message_id"), sql.col("id") == sql.col("message_id"))
        .groupBy("group", "message_id", "times")
        .agg(sql.count("*").alias("copies"), sql.min(place).alias("first"))
        .where(sql.col("times") > sql.col("copies"))
    )
    return finding(
        found, "consumed", topic="first.topic", queue="first.queue", offset="first.offset", last_offset="first.offset",
        log_offset="first.log_offset", message_id="message_id", group="group",
        text=sql.concat(sql.col("times"), sql.lit(" times with success")),
    )  # fmt: skip


def born(users: DataFrame, tolerance_ms: int) -> DataFrame:
    """Return places where the born time goes back, among messages of one producer in one queue."""
    known = sql.length("id").isin(32, 56)
    producer = sql.when(known, sql.substring("id", sql.lit(1), sql.length("id") - _ID_TAIL)).otherwise(
        sql.col("client")
    )
    row = Window.partitionBy("topic", "queue", "producer").orderBy("log_offset")
    back = (
        users.where(~sql.col("copied"))
        .withColumn("producer", producer)
        .withColumn("before_ms", sql.lag("born_ms").over(row))
        .withColumn("before_offset", sql.lag("offset").over(row))
        .where(sql.col("before_ms") - sql.col("born_ms") > tolerance_ms)
    )
    return finding(
        back, "born", topic="topic", queue="queue", offset="offset", last_offset="offset", log_offset="log_offset",
        message_id="message_id", ms=sql.col("before_ms") - sql.col("born_ms"),
        text=sql.concat(
            sql.lit("sent by "), sql.col("client"), sql.lit(" before its message "), sql.col("before_offset"),
            sql.coalesce(sql.concat(sql.lit("; sharding key "), sql.col("sharding_key")), sql.lit("")),
        ),
    )  # fmt: skip


def split_keys(users: DataFrame) -> DataFrame:
    last = sql.max(sql.struct("log_offset", "queue", "offset", "message_id"))
    split = (
        users.where(sql.col("sharding_key").isNotNull())
        .groupBy("topic", "sharding_key")
        .agg(sql.count_distinct("queue").alias("queues"), sql.count("*").alias("all"), last.alias("last"))
        .where(sql.col("queues") > 1)
    )
    text = sql.concat(
        sql.lit("sharding key "), sql.col("sharding_key"), sql.lit(" in "), sql.col("queues"), sql.lit(" queues")
    )
    return finding(
        split, "split-key", topic="topic", queue="last.queue", offset="last.offset", last_offset="last.offset",
        log_offset="last.log_offset", message_id="last.message_id", messages="all", text=text,
    )  # fmt: skip


# -- late --------------------------------------------------------------------------------------------------------------------


def store_times(users: DataFrame) -> DataFrame:
    """Return how long each message took from its born time to the log (`ms`)."""
    return users.where(~sql.col("copied")).withColumn("ms", sql.col("stored_ms") - sql.col("born_ms"))


def delivery_times(table: DataFrame, users: DataFrame, delays_ms: Mapping[int, int]) -> DataFrame:
    """Return how long after its due time each delayed or timed message came (`ms`)."""
    exact = (sql.col("out_ms") < sql.col("deliver_ms")) & (sql.col("deliver_ms") <= sql.col("out_ms") + PRECISION_MS)
    due = sql.when(exact, sql.col("deliver_ms")).otherwise(sql.col("out_ms") + PRECISION_MS)
    timed = users.where(sql.col("out_ms").isNotNull()).withColumn("ms", sql.col("stored_ms") - due)
    if not delays_ms:
        return timed
    delay = reduce(
        lambda found, level: found.when(sql.col("queue") == level - 1, delays_ms[level]), delays_ms, sql.when(sql.lit(False), 0)
    )  # fmt: skip
    parked = (
        table.where((sql.col("topic") == names.SCHEDULE_TOPIC) & sql.col("id").isNotNull())
        .withColumn("due_ms", sql.col("stored_ms") + delay)
        .groupBy("id", sql.col("real_topic").alias("topic"))
        .agg(sql.count("*").alias("parked"), sql.min("due_ms").alias("due_ms"))
        .where((sql.col("parked") == 1) & sql.col("due_ms").isNotNull())
    )
    late = users.where(sql.col("out_ms").isNull() & sql.col("copied") & ~sql.col("resent")).join(
        parked, ["id", "topic"]
    )
    delayed = late.withColumn("ms", sql.col("stored_ms") - sql.col("due_ms"))
    return timed.unionByName(delayed.select(*timed.columns))


def read_times(users: DataFrame, trace: DataFrame) -> DataFrame:
    """Return how long after it was stored each group got each message (`ms`), by its first trace."""
    first = (
        trace.where((sql.col("event") == BEGUN) & (sql.col("retry_times") == 0))
        .groupBy(sql.col("trace_group").alias("group"), sql.col("message_id").alias("id"))
        .agg(sql.min("time_ms").alias("read_ms"))
        .where(sql.abs("read_ms") < _NUMBER_MAX)
    )
    return users.join(first, "id").withColumn("ms", sql.col("read_ms") - sql.col("stored_ms"))


def all_times(stored: DataFrame, delivered: DataFrame, read: DataFrame | None) -> DataFrame:
    """Return the three tables as one: how long `what` took, and for whom (`by`, `name`)."""
    parts = [_of(stored, "stored", "topic"), _of(delivered, "delivered", "topic")]
    if read is not None:
        parts.append(_of(read, "read", "group"))
    return reduce(DataFrame.unionByName, parts)


def _of(times: DataFrame, what: str, by: str) -> DataFrame:
    group = sql.col("group") if by == "group" else sql.lit(None).cast("string").alias("group")
    return times.select(
        sql.lit(what).alias("what"), sql.lit(by).alias("by"), sql.col(by).alias("name"), "topic", "queue", "offset", "log_offset",
        "message_id", "ms", group,
    )  # fmt: skip


def late(times: DataFrame, limit_ms: int, tolerance_ms: int) -> DataFrame:
    """Return messages that took longer than the limit, and those stored before their born time, by more than the tolerance."""
    is_early = (sql.col("what") == "stored") & (sql.col("ms") < -tolerance_ms)
    rule = sql.when(is_early, sql.lit("clock")).otherwise(sql.col("what"))
    return finding(
        times.where((sql.col("ms") > limit_ms) | is_early), rule, topic="topic", queue="queue", offset="offset", last_offset="offset",
        log_offset="log_offset", message_id="message_id", ms=sql.abs("ms"), group="group",
    )  # fmt: skip


# -- helpers -----------------------------------------------------------------------------------------------------------------


def finding(frame: DataFrame, rule: str | Column, **columns: str | Column) -> DataFrame:
    """Return rows in the shape of a finding; columns that are not given are null."""
    given: dict[str, str | Column] = {
        "rule": sql.lit(rule) if isinstance(rule, str) else rule,
        "messages": sql.lit(1),
        "text": sql.lit(""),
        **columns,
    }
    made = []
    for name, kind in FINDING_TYPES.items():
        value: Any = given.get(name, sql.lit(None))
        made.append((sql.col(value) if isinstance(value, str) else value).cast(kind).alias(name))
    return frame.select(*made)


def examples(findings: Sequence[DataFrame], examples_max: int) -> list[tuple[Finding, int, int]]:
    """Return the worst findings of each rule and topic, each with the number of findings, and of messages affected."""
    topic = Window.partitionBy("rule", "topic")
    rows = (
        reduce(DataFrame.unionByName, findings)
        .withColumn("number", sql.row_number().over(topic.orderBy(sql.desc_nulls_last("ms"), "log_offset")))
        .withColumn("all", sql.count("*").over(topic))
        .withColumn("all_messages", sql.sum("messages").over(topic))
        .where(sql.col("number") <= examples_max)
        .drop("number")
    )
    found = []
    for row in rows.collect():
        values = row.asDict()
        count, total = values.pop("all"), values.pop("all_messages")
        found.append((Finding(**values), count, total))
    return found


def topic_rows(spark: SparkSession, topics: Iterable[str]) -> DataFrame:
    return spark.createDataFrame([(topic,) for topic in topics], "real_topic string")


def offset_rows(spark: SparkSession, offsets: OffsetTable) -> DataFrame:
    rows = [(group, topic, queue, at) for (group, topic, queue), at in offsets.items() if -(2**31) <= queue < 2**31]
    return spark.createDataFrame(rows, "group string, topic string, queue int, committed bigint")


def _steps(queued: DataFrame) -> DataFrame:
    """Return each message of a queue with the offset expected (`expected`) after the previous one (at `before_log`)."""
    row = Window.partitionBy("topic", "queue").orderBy("log_offset")
    return queued.withColumn(
        "expected", sql.lag(sql.try_add(sql.col("offset"), sql.col("numbers"))).over(row)
    ).withColumn("before_log", sql.lag("log_offset").over(row))


def _number(text: Column) -> Column:
    """Return a property as a number; null if it is not a plausible number."""
    number = text.try_cast("bigint")
    return sql.when(number.between(-_NUMBER_MAX, _NUMBER_MAX), number)
