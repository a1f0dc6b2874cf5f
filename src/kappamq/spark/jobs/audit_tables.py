"""The statistics of an audit, whether or not anything is wrong: heavy topics, keys and groups, rates, latencies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sql

from kappamq.protocol import names

LIMITS_MS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 30_000, 60_000, 600_000, 3_600_000)
"""The upper limits of the bars of a histogram; one more bar holds anything that took longer."""
BUCKETS: Final = 120
_WIDTHS_MS: Final = (
    1000, 2000, 5000, 10_000, 15_000, 30_000, 60_000, 120_000, 300_000, 600_000, 900_000, 1_800_000, 3_600_000, 7_200_000,
    21_600_000, 43_200_000, 86_400_000, 604_800_000,
)  # fmt: skip

_NAMES: Final = {"keys": "key", "tags": "tags", "producers": "client"}

Rows = list[dict[str, Any]]


def queues(table: DataFrame) -> Rows:
    """Return every queue with messages in the log; `end`: the offset after its last one."""
    end = sql.try_add(sql.col("offset"), sql.col("numbers"))
    return _rows(
        table.where(sql.col("damage").isNull())
        .groupBy("topic", "kind", "queue")
        .agg(
            sql.count("*").alias("messages"),
            sql.sum("size").alias("bytes"),
            sql.min("stored_ms").alias("first_ms"),
            sql.max("stored_ms").alias("last_ms"),
            sql.min("offset").alias("begin"),
            sql.max(end).alias("end"),
        )
    )


def topics(by_queue: Sequence[Mapping[str, Any]]) -> Rows:
    """Return every topic, the heaviest first."""
    found: dict[str, dict[str, Any]] = {}
    for row in by_queue:
        known = found.setdefault(
            row["topic"],
            {
                "topic": row["topic"], "kind": row["kind"], "messages": 0, "bytes": 0, "queues": 0, "first_ms": row["first_ms"],
                "last_ms": row["last_ms"],
            },
        )  # fmt: skip
        known["messages"] += row["messages"]
        known["bytes"] += row["bytes"]
        known["queues"] += 1
        known["first_ms"] = min(known["first_ms"], row["first_ms"])
        known["last_ms"] = max(known["last_ms"], row["last_ms"])
    return sorted(found.values(), key=lambda row: (-row["bytes"], row["topic"]))


def heavy(users: DataFrame, most: int) -> dict[str, Rows]:
    """Return the keys, tags and producers with most messages in a topic; producers by address, without the port."""
    host = sql.regexp_replace("client", r":[0-9]+$", "")
    keys = sql.coalesce(sql.split("keys", " "), sql.array().cast("array<string>"))
    named = sql.concat(
        sql.array(_named("tags", sql.col("tags")), _named("producers", host)),
        sql.transform(keys, lambda key: _named("keys", key)),
    )
    counted = (
        users.select("topic", "size", sql.explode(named).alias("named"))
        .select("topic", "size", "named.what", "named.name")
        .where(sql.col("name") != "")
        .groupBy("what", "name", "topic")
        .agg(sql.count("*").alias("messages"), sql.sum("size").alias("bytes"))
    )
    rank = sql.row_number().over(Window.partitionBy("what").orderBy(sql.desc("messages"), "name", "topic"))
    rows = _rows(counted.withColumn("rank", rank).where(sql.col("rank") <= most).orderBy("what", "rank"))
    found: dict[str, Rows] = {"keys": [], "tags": [], "producers": []}
    for row in rows:
        found[row["what"]].append(
            {_NAMES[row["what"]]: row["name"], **{key: row[key] for key in ("topic", "messages", "bytes")}}
        )
    return found


def _named(what: str, name: Column) -> Column:
    return sql.struct(sql.lit(what).alias("what"), name.alias("name"))


def behind(table: DataFrame, offsets: DataFrame) -> dict[tuple[str, str], tuple[int, int, int]]:
    """Return (group, topic) -> messages that the group has not read, their bytes, and when the oldest was stored."""
    unread = table.join(sql.broadcast(offsets), ["topic", "queue"]).where(sql.col("offset") >= sql.col("committed"))
    rows = unread.groupBy("group", "topic").agg(sql.count("*"), sql.sum("size"), sql.min("stored_ms"))
    return {(row[0], row[1]): (row[2], row[3], row[4]) for row in rows.collect()}


def groups(
    offsets: Mapping[tuple[str, str, int], int],
    unread: Mapping[tuple[str, str], tuple[int, int, int]],
    seen: Sequence[Mapping[str, Any]],
    newest_ms: int,
) -> Rows:
    """Return each group and topic that it reads, the one furthest behind first. `seen`: the topics of the log, with their messages."""
    counts = {row["topic"]: row["messages"] for row in seen}
    rows = []
    for group, topic in sorted({(group, topic) for group, topic, _queue in offsets}):
        if names.is_system_group(group):
            continue
        messages, size, oldest_ms = unread.get((group, topic), (0, 0, newest_ms))
        rows.append(
            {
                "group": group, "topic": topic, "lag": messages, "lag_bytes": size, "lag_ms": max(0, newest_ms - oldest_ms),
                "retries": counts.get(names.retry_topic(group), 0), "dead_letters": counts.get(names.dlq_topic(group), 0),
            }
        )  # fmt: skip
    return sorted(rows, key=lambda row: (-row["lag"], row["group"], row["topic"]))


def bucket_ms(first_ms: int, last_ms: int) -> int:
    """Return the length of the interval that each point of a plot covers."""
    span = max(0, last_ms - first_ms)
    return next((width for width in _WIDTHS_MS if span / width <= BUCKETS), max(_WIDTHS_MS[-1], -(-span // BUCKETS)))


def rates(users: DataFrame, width_ms: int) -> Rows:
    """Return messages by topic and store time (`at_ms`: the beginning of the interval of `width_ms`)."""
    at = (sql.floor(sql.col("stored_ms") / width_ms) * width_ms).alias("at_ms")
    rows = users.groupBy("topic", at).agg(sql.count("*").alias("messages"), sql.sum("size").alias("bytes"))
    return sorted(_rows(rows), key=lambda row: (row["at_ms"], row["topic"]))


def spread(times: DataFrame) -> Rows:
    """Return percentiles of the column `ms`, for each `what` and `name`."""
    rows = times.groupBy("what", "by", "name").agg(
        sql.count("*").alias("messages"),
        sql.percentile_approx("ms", [0.5, 0.95, 0.99], 1000).alias("points"),
        sql.max("ms").alias("max_ms"),
    )
    found = []
    for row in _rows(rows):
        p50, p95, p99 = row.pop("points")
        found.append({**row, "p50_ms": p50, "p95_ms": p95, "p99_ms": p99})
    return sorted(found, key=lambda row: (row["what"], -row["p99_ms"], row["name"]))


def histograms(times: DataFrame) -> Rows:
    """Return a histogram of the column `ms` with the limits LIMITS_MS, and a bar for values above the last one, for each `what`."""
    place = sum((sql.when(sql.col("ms") >= limit, 1).otherwise(0) for limit in LIMITS_MS), sql.lit(0))
    rows = times.groupBy("what", place.alias("place")).count().collect()
    counts = {(row[0], row[1]): row[2] for row in rows}
    return [
        {"what": what, "below_ms": limit, "messages": counts.get((what, number), 0)}
        for what in sorted({what for what, _place in counts})
        for number, limit in enumerate((*LIMITS_MS, None))
    ]


def _rows(frame: DataFrame) -> Rows:
    return [row.asDict(recursive=True) for row in frame.collect()]
