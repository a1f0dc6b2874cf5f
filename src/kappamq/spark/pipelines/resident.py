"""Runs a project as plain Structured Streaming until it is stopped: the same tables and checkpoints, with batches every second or so.

Materialized views are recomputed after a stream has brought rows, at most once per interval. Readers of a view may find it
incomplete for the moment in which its files are replaced.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from kappamq.errors import KappaError
from kappamq.spark.engine import told
from kappamq.spark.pipelines.declared import explained
from kappamq.spark.pipelines.definitions import Definition, load, wrong_definitions
from kappamq.spark.pipelines.failure import PipelineFailed
from kappamq.spark.pipelines.progress import Batch, Watch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from kappamq.spark.pipelines.project import Project

TRIGGER_S: Final = 1.0
VIEWS_EVERY_S: Final = 10.0
RESTARTS_MAX: Final = 3
"""Spark waits ten seconds for a Python process that it starts; on a busy machine that may be too short, so the start is retried."""
_CONNECTS_LATE: Final = "Python worker failed to connect back"
_BEGINS_S_MAX: Final = 30.0
_POLL_S: Final = 0.5
_NOT_FOUND: Final = "TABLE_OR_VIEW_NOT_FOUND"
_FORMAT: Final = "parquet"

Reported = Callable[[Batch], None]


@dataclass(slots=True)
class _Running:
    definition: Definition
    frame: DataFrame
    query: StreamingQuery
    restarts_left: int = RESTARTS_MAX


@dataclass(slots=True)
class Resident:
    """The streams and views of a project that runs. Not thread-safe."""

    spark: SparkSession
    project: Project
    trigger_s: float = TRIGGER_S
    views_every_s: float = VIEWS_EVERY_S
    _streams: list[_Running] = field(default_factory=list)
    _views: list[Definition] = field(default_factory=list)
    _watch: Watch | None = None
    _rows_in_views: int = -1
    _views_at: float = 0.0

    def start(self) -> None:
        """Make the tables that do not exist, and start a stream for each flow."""
        with told():
            self.spark.sql(f"USE {self.project.catalog}.{self.project.database}")
        resolved = self._resolved(list(load(self.project, self.spark).all()))
        targets = {definition.name: definition.target for definition, _frame in resolved}
        self._watch = Watch(self.spark, lambda name: targets.get(name, self.project.dataset(name)))
        for definition, frame in resolved:
            if definition.is_materialized:
                self._views.append(definition)
            elif not definition.is_view:
                with self._telling(definition):
                    self._streams.append(_Running(definition, frame, self._started(definition, frame)))
                _wait_for(self._streams[-1].query)  # the Python processes of all at once would take too long to start

    def step(self, reported: Reported = lambda _batch: None) -> None:
        """Report the batches that have ended, refresh the views if they are due. Raises the error of a failed stream."""
        assert self._watch is not None, "step() before start()"
        for batch in self._watch.poll():
            reported(batch)
        for stream in self._streams:
            definition, problem = stream.definition, stream.query.exception()
            if problem is not None:
                if _CONNECTS_LATE not in str(problem) or not stream.restarts_left:
                    raise explained(self.spark, self.project, definition.name, str(problem)) from problem
                stream.restarts_left -= 1
                with self._telling(definition):
                    stream.query = self._started(definition, stream.frame)
                _wait_for(stream.query)
            elif not stream.query.isActive:
                raise PipelineFailed(f"dataset {definition.target}: its stream was stopped")
        self._refresh_views()

    def follow(self, reported: Reported, until: Callable[[], bool] = lambda: False) -> None:
        """After `start`: go on until `until` returns true, or a stream fails."""
        try:
            while not until():
                self.step(reported)
                time.sleep(_POLL_S)
        finally:
            self.stop()

    def stop(self) -> None:
        """End the streams. The next run repeats a batch that was under way."""
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        for stream in self._streams:
            try:
                stream.query.stop()
            except (PySparkException, Py4JError):
                continue  # it failed before, or Java is gone
        self._streams.clear()

    @property
    def rows(self) -> dict[str, int]:
        return self._watch.rows if self._watch is not None else {}

    def _resolved(self, definitions: list[Definition]) -> list[tuple[Definition, DataFrame]]:
        """Make tables in an order in which every flow finds its inputs. Raises PipelineFailed if there is no such order."""
        from pyspark.errors import AnalysisException

        found: list[tuple[Definition, DataFrame]] = []
        while definitions:
            waiting: list[tuple[Definition, AnalysisException]] = []
            for definition in definitions:
                with self._telling(definition):
                    try:
                        with wrong_definitions(f"dataset {definition.target}"):
                            frame = definition.read()
                        self._made(definition, frame)
                    except AnalysisException as error:
                        if error.getCondition() != _NOT_FOUND:
                            raise
                        waiting.append((definition, error))
                        continue
                found.append((definition, frame))
            if len(waiting) == len(definitions):
                stuck, missing = waiting[0]
                raise explained(self.spark, self.project, stuck.name, str(missing)) from missing
            definitions = [definition for definition, _missing in waiting]
        return found

    def _made(self, definition: Definition, frame: DataFrame) -> None:
        if definition.is_view:
            frame.createOrReplaceTempView(definition.target)
            return
        if definition.is_sink or self.spark.catalog.tableExists(definition.target):
            len(frame.columns)  # is it known?
            return
        output: Any = definition.output
        writer = self.spark.createDataFrame([], frame.schema).write.format(output.format or _FORMAT)
        if output.partition_cols:
            writer = writer.partitionBy(*output.partition_cols)
        writer.saveAsTable(definition.target)

    def _started(self, definition: Definition, frame: DataFrame) -> StreamingQuery:
        writer = (
            frame.writeStream.queryName(definition.name)
            .option(
                "checkpointLocation",
                self.project.checkpoint(definition.target, definition.name, is_table=definition.is_table),
            )
            .outputMode("append")
            .trigger(processingTime=f"{max(1, round(self.trigger_s * 1000))} milliseconds")
        )
        output: Any = definition.output
        if definition.is_sink:
            return writer.format(output.format).options(**output.options).start()
        if output.format:
            writer = writer.format(output.format)
        return writer.toTable(definition.target)

    def _refresh_views(self) -> None:
        rows = sum(self.rows.values())
        if not self._views or rows == self._rows_in_views or time.monotonic() < self._views_at:
            return
        for definition in self._views:
            with self._telling(definition):
                columns = self.spark.read.table(definition.target).columns
                definition.read().select(*columns).write.insertInto(definition.target, overwrite=True)
        self._rows_in_views = rows
        self._views_at = time.monotonic() + self.views_every_s

    def _telling(self, definition: Definition) -> _Telling:
        return _Telling(self.spark, self.project, definition)


def _wait_for(query: StreamingQuery) -> None:
    """Wait until a stream has its sources, or failed; not for long, since nothing depends on it."""
    until = time.monotonic() + _BEGINS_S_MAX
    while query.isActive and "nitializing" in query.status["message"] and time.monotonic() < until:
        time.sleep(0.1)


@dataclass(frozen=True, slots=True)
class _Telling:
    """Wraps work for one flow: adds the dataset to errors."""

    spark: SparkSession
    project: Project
    definition: Definition

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: Any, error: BaseException | None, _trace: Any) -> None:
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        if isinstance(error, KappaError):
            return
        if isinstance(error, (PySparkException, Py4JError)):
            raise explained(self.spark, self.project, self.definition.name, str(error)) from error
