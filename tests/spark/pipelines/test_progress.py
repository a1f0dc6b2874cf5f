"""Batches as Spark reports them, and how far a source is behind."""

from __future__ import annotations

import json
from typing import Any

from kappamq.spark.pipelines.progress import Batch, Watch, lag_of, parse


def offsets(**queues: int) -> str:
    return json.dumps({"version": 1, "queues": {f"t/b/{name[1:]}": {"next": end} for name, end in queues.items()}})


def reported(batch: int, rows: int, timestamp: str = "", **more: Any) -> dict[str, Any]:
    return {
        "batchId": batch, "timestamp": timestamp or f"2026-01-01T00:00:{batch:02}Z", "numInputRows": rows, "processedRowsPerSecond": 12.34,
        "batchDuration": 250, "sources": [], **more,
    }  # fmt: skip


def test_lag() -> None:
    assert lag_of({"latestOffset": offsets(q0=10, q1=5, q2=3), "endOffset": offsets(q0=4, q1=5)}) == 9
    assert lag_of({"latestOffset": json.loads(offsets(q0=10)), "endOffset": offsets(q0=12)}) == 0
    for other in (None, '{"logOffset":3}', "3", "x{", '{"queues": 5}'):
        assert lag_of({"latestOffset": other, "endOffset": offsets(q0=1)}) is None


def test_a_batch() -> None:
    source = {"latestOffset": offsets(q0=10), "endOffset": offsets(q0=4)}
    assert parse("bronze", reported(3, 20, sources=[source, {}]), 100) == Batch("bronze", 3, 20, 12.3, 250, 6, 120)
    assert parse("checked", reported(0, 5, sink={"description": "kappamq", "numOutputRows": 3}), 0).written == 3
    assert parse("bronze", reported(0, 5, sink={"description": "FileSink", "numOutputRows": -1}), 0).written is None
    assert parse("silver", {"batchId": 0, "durationMs": {"triggerExecution": 7}}, 0) == Batch(
        "silver", 0, 0, 0.0, 7, None, 0
    )


class Query:
    """Spark's side of a stream, as py4j shows it."""

    def __init__(self, name: str) -> None:
        self._name, self.progress, self.failure = name, [], None  # type: ignore[var-annotated]

    def runId(self) -> Any:
        return self

    def toString(self) -> str:
        return f"run of {self._name}"

    def name(self) -> str:
        return self._name

    def recentProgress(self) -> list[Any]:
        return [Reported(progress) for progress in self.progress]

    def exception(self) -> Any:
        return self

    def isDefined(self) -> bool:
        return self.failure is not None

    def get(self) -> Any:
        return self

    def getMessage(self) -> str:
        assert self.failure is not None
        return self.failure


class Reported:
    def __init__(self, progress: dict[str, Any]) -> None:
        self._progress = progress

    def batchId(self) -> int:
        return int(self._progress["batchId"])

    def timestamp(self) -> str:
        return str(self._progress["timestamp"])

    def json(self) -> str:
        return json.dumps(self._progress)


class Spark:
    def __init__(self) -> None:
        self.active: dict[str, Query] = {}

    _jsparkSession = property(lambda self: self)

    def sharedState(self) -> Spark:
        return self

    def activeStreamingQueries(self) -> dict[str, Query]:
        return self.active


def test_each_batch_is_told_once_also_of_a_stream_that_ended() -> None:
    spark = Spark()
    watch = Watch(spark, {"bronze": "bronze", "to_checked": "checked"}.__getitem__)  # type: ignore[arg-type]
    assert watch.poll() == []
    bronze, sink = Query("bronze"), Query("to_checked")
    spark.active = {"1": bronze, "2": sink}
    bronze.progress = [reported(0, 5), reported(1, 7)]
    assert [(batch.dataset, batch.batch, batch.total_rows) for batch in watch.poll()] == [
        ("bronze", 0, 5),
        ("bronze", 1, 12),
    ]
    assert watch.poll() == []
    spark.active = {}
    bronze.progress = [reported(1, 7), reported(2, 1)]
    sink.progress = [reported(0, 2)]
    assert [(batch.dataset, batch.rows) for batch in watch.poll()] == [("bronze", 1), ("checked", 2)]
    assert watch.rows == {"bronze": 13, "checked": 2}
    assert watch.failed() is None
    sink.failure = "it broke"
    assert watch.failed() == ("to_checked", "it broke")
