"""The progress of all streams of a Spark process: rows, rows/s, lag and batch time of each; also of those that Spark started by itself."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class Batch:
    """The latest batch of a stream."""

    dataset: str
    batch: int
    rows: int
    rows_per_s: float
    batch_ms: int
    lag: int | None  # messages that topics have and the stream has not read yet; None: it reads no topic
    total_rows: int  # since this run began
    written: int | None = None  # None: Spark does not count it, as for tables


def parse(dataset: str, progress: Mapping[str, Any], rows_before: int) -> Batch:
    """Make a batch of what Spark reports about one."""
    rows = int(progress.get("numInputRows", 0))
    took = progress.get("batchDuration", progress.get("durationMs", {}).get("triggerExecution", 0))
    lags = [lag for lag in map(lag_of, progress.get("sources", ())) if lag is not None]
    return Batch(
        dataset,
        int(progress["batchId"]),
        rows,
        round(float(progress.get("processedRowsPerSecond") or 0.0), 1),
        int(took),
        sum(lags) if lags else None,
        rows_before + rows,
        _written(progress.get("sink")),
    )


def _written(sink: Any) -> int | None:
    count = sink.get("numOutputRows") if isinstance(sink, dict) else None
    return count if isinstance(count, int) and count >= 0 else None


def lag_of(source: Mapping[str, Any]) -> int | None:
    """Return how many messages a source is behind; None if it is not a topic."""
    latest, end = _queues(source.get("latestOffset")), _queues(source.get("endOffset"))
    if latest is None or end is None:
        return None
    return sum(max(0, entry["next"] - end.get(queue, {"next": 0})["next"]) for queue, entry in latest.items())


def _queues(offset: Any) -> dict[str, Any] | None:
    """Return our offsets; Spark reports them as a JSON string, or as an object."""
    try:
        said = json.loads(offset) if isinstance(offset, str) else offset
        queues = said["queues"]
        return queues if all(isinstance(entry["next"], int) for entry in queues.values()) else None
    except (TypeError, KeyError, ValueError, AttributeError):
        return None


@dataclass(slots=True)
class _Stream:
    query: Any
    dataset: str
    last: tuple[int, str] = (-1, "")
    rows: int = 0


@dataclass(slots=True)
class Watch:
    """Asks Spark's JVM, which knows all streams of all sessions; ended ones are remembered here."""

    spark: SparkSession
    dataset_of: Callable[[str], str]
    _streams: dict[str, _Stream] = field(default_factory=dict)

    def poll(self) -> list[Batch]:
        """Return the batches that ended since the last call, oldest first."""
        session: Any = self.spark
        for query in list(session._jsparkSession.sharedState().activeStreamingQueries().values()):
            run = query.runId().toString()
            if run not in self._streams:
                self._streams[run] = _Stream(query, self.dataset_of(query.name() or query.id().toString()))
        return [batch for stream in self._streams.values() for batch in _new(stream)]

    def failed(self) -> tuple[str, str] | None:
        """Return the flow and Spark's text of the first stream that failed."""
        for stream in self._streams.values():
            problem = stream.query.exception()
            if problem.isDefined():
                return str(stream.query.name()), problem.get().getMessage()
        return None

    @property
    def rows(self) -> dict[str, int]:
        """Return the rows read since the run began, by dataset."""
        found: dict[str, int] = {}
        for stream in self._streams.values():
            found[stream.dataset] = found.get(stream.dataset, 0) + stream.rows
        return found


def _new(stream: _Stream) -> list[Batch]:
    fresh: list[Mapping[str, Any]] = []
    for reported in reversed(list(stream.query.recentProgress())):
        key = (reported.batchId(), reported.timestamp())
        if key <= stream.last:
            break
        fresh.append(json.loads(reported.json()))
    found = []
    for progress in reversed(fresh):
        stream.last = (int(progress["batchId"]), progress["timestamp"])
        found.append(parse(stream.dataset, progress, stream.rows))
        stream.rows = found[-1].total_rows
    return found
