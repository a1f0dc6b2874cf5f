"""Rules on rows that a broker would hardly store; the others are tested with whole audits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COLUMNS = "topic string, queue int, offset bigint, log_offset bigint, numbers bigint, message_id string"


def table(spark: SparkSession, *rows: tuple[Any, ...]) -> DataFrame:
    """(topic, queue, offset, log offset, how many numbers it takes)"""
    return spark.createDataFrame([(*row, f"at-{row[3]}") for row in rows], COLUMNS)


@pytest.mark.spark
def test_numbers_of_queues(spark: SparkSession) -> None:
    from kappamq.spark.jobs import audit_queries as queries

    rows = table(
        spark,
        *(("whole", 0, n, 100 * n, 1) for n in range(5)),
        *(("gap", 0, n, 100 * n, 1) for n in (3, 4, 8, 9)),
        # A queue of a Java broker: deleted and made again, it counts from 0.
        *(("anew", 0, n % 3, 100 * n, 1) for n in range(5)),
        *(("twice", 0, n, at, 1) for n, at in ((0, 0), (1, 100), (2, 200), (1, 300), (2, 400), (3, 500))),
        # One record with ten messages in it.
        ("inner", 0, 0, 0, 10), ("inner", 0, 10, 100, 1),
        # Whatever a record claims must not end the audit.
        ("hostile", 0, 5, 0, 1), ("hostile", 0, 2**63 - 1, 100, 1), ("hostile", 0, 7, 200, 1),
        # Retention came by while the log was read.
        ("deleted", 0, 1, 1000, 1), ("deleted", 0, 9, 9000, 1),
    )  # fmt: skip
    rules = [queries.missing(rows, [(2000, 5000)]), queries.same_offset(rows)]
    found = {(one.rule, one.topic): one for one, _count, _messages in queries.examples(rules, 10)}
    assert found.keys() == {("missing", "gap"), ("missing", "hostile"), ("offset", "twice")}
    gap = found["missing", "gap"]
    assert (gap.offset, gap.last_offset, gap.messages, gap.log_offset) == (5, 7, 3, 400)
    assert found["missing", "hostile"].messages == 10**15, "more than that nobody has lost"
    again = found["offset", "twice"]
    assert (again.offset, again.last_offset, again.messages, again.message_id) == (1, 2, 2, "at-300")
