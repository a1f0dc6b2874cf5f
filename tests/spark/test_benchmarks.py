"""The benchmarks of the pipeline, at toy size: they still run, and still measure what they say. Figures are not judged here."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from benchmarks import spark as benchmarks
from benchmarks.bench import TOY, Bench
from benchmarks.spark.lab import Lab
from tests.needs import needs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow, needs("compiler")]

EXPECTED = {
    "store": {"100 B, with properties: store / Parquet", "100 B, with properties: batches in memory / Parquet"},
    "broker": {"100 B, with properties: broker / store"},
    "beside": {"paced / alone", "not paced / alone"},
    "once": {"100 B: exactly once / at least once", "100 B: broker CPU a message, exactly once"},
    "scopes": {"decide p99, ASYNC_FLUSH", "decide p99, SYNC_FLUSH"},
    "stream": {"time above one row, stream / batch", "one-row trigger, ours / rate"},
}


@pytest.mark.parametrize("name", EXPECTED)
def test_runs(name: str, tmp_path: Path, spark: SparkSession) -> None:
    figures = benchmarks.load(name)(Lab(Bench(TOY, disk=tmp_path, quiet=True), spark, toy=True))
    named = {figure.what: figure.value for figure in figures}
    assert EXPECTED[name] <= named.keys()
    assert all(value is not None for value in named.values()), named


def test_kafka_is_left_out_where_the_session_cannot_reach_it(tmp_path: Path, spark: SparkSession) -> None:
    figures = benchmarks.load("kafka")(Lab(Bench(TOY, disk=tmp_path, quiet=True), spark, toy=True))
    assert [figure.value for figure in figures] == [None]
    assert "spark-sql-kafka" in figures[0].note


def test_all_are_tested() -> None:
    assert set(benchmarks.ALL) == {*EXPECTED, "rebuild", "kafka"}
