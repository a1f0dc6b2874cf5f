"""The format `kappamq`: topics, read through the brokers."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    Filter,
    InputPartition,
)

from kappamq.errors import ConfigError, KappaError
from kappamq.spark.columns import schema as schemas
from kappamq.spark.failures import without_traceback
from kappamq.spark.refused_stream import RefusedStream
from kappamq.spark.sink.exactly_once import ExactlyOnceBatchWriter, ExactlyOnceStreamWriter
from kappamq.spark.sink.options import WriteOptions
from kappamq.spark.sink.sink import BatchWriter, StreamWriter
from kappamq.spark.topic.options import BATCH_ONLY, STREAM_ONLY, ReadOptions, refuse_options
from kappamq.spark.topic.planning import ranges_between, refuse_gaps, resolve, tasks
from kappamq.spark.topic.pruning import Pruning, TimeBounds, filters_are_pushed, prune
from kappamq.spark.topic.streaming import StreamReader
from kappamq.spark.topic.tasks import Task
from kappamq.spark.worker_process import begin_task

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


@without_traceback
class KappaMQSource(DataSource):
    """`spark.read.format("kappamq")`: docs/PIPELINE.md lists the options."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._process = os.getpid()

    @classmethod
    def name(cls) -> str:
        return "kappamq"

    def schema(self) -> str:
        columns = ReadOptions.parse(self.options).columns
        return schemas.ddl(columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        refuse_options(self.options, STREAM_ONLY, "is for streams: leave it out, or use spark.readStream")
        kind = PushingReader if filters_are_pushed() else BatchReader
        return kind(self._read_options(), *schemas.check_schema(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        try:
            refuse_options(
                self.options, BATCH_ONLY, "is for batch reads, and a stream has no end: leave it out, or use spark.read"
            )
            return StreamReader(self._read_options(), *schemas.check_schema(schema))
        except KappaError as error:
            # PySpark 4.3 would replace an error raised here by one of its own ("cannot access local variable 'reader'").
            return RefusedStream(error)

    def _read_options(self) -> ReadOptions:
        from kappamq.spark.columns.selection import compile_filter

        options = ReadOptions.parse(self.options)
        compile_filter(options.filter)
        return options

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        options = self._write_options(schema, overwrite, streaming=False)
        return BatchWriter(options) if options.exactly_once is None else ExactlyOnceBatchWriter(options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        options = self._write_options(schema, overwrite=False, streaming=True)
        if options.exactly_once is None:
            return StreamWriter(options, self.options.get("checkpointLocation"))
        # For a commit Spark asks a copy of this source: brokers that are not needed for it may be away then.
        return ExactlyOnceStreamWriter(options, starting=self._process == os.getpid())

    def _write_options(self, schema: StructType, overwrite: bool, streaming: bool) -> WriteOptions:
        from kappamq.spark.sink.rows import check_written

        if overwrite:
            raise ConfigError("a topic cannot be overwritten: use mode('append')")
        options = WriteOptions.parse(self.options, streaming=streaming)
        check_written(schema, options.topic)
        return options


@without_traceback
class BatchReader(DataSourceReader):
    """One read of the queues as they are when the query begins."""

    def __init__(self, options: ReadOptions, columns: Sequence[str], required: Collection[str] = ()) -> None:
        self.options = options
        self.columns, self.required = tuple(columns), frozenset(required)
        self.pruning = Pruning()

    def partitions(self) -> Sequence[InputPartition]:
        from kappamq.spark.topic.key_index import ranges_of_keys
        from kappamq.spark.topic.topics import Topics

        topics = Topics(self.options)
        bounds = topics.bounds()
        start = resolve(self.options.start, bounds, topics.search)
        stop = resolve(self.options.end, bounds, topics.search)
        ranges, gaps = ranges_between(start, stop, bounds)
        refuse_gaps(gaps, self.options.on_data_loss)
        ranges = self.pruning.ranges(ranges, TimeBounds(topics.search, topics.stored_ms, topics.runtime_info))
        for keys in (self.options.keys, self.pruning.keys):
            if keys:
                ranges = ranges_of_keys(topics, ranges, keys)
        return [Task(ranges) for ranges in tasks(ranges, self.options.min_partitions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from kappamq.spark.topic.reading import RangeReader

        # If there is nothing to read Spark creates a partition of its own.
        if isinstance(partition, Task):
            reader = RangeReader(self.options, self.columns, self.required)
            begin_task()
            yield from reader.read(partition.ranges)


@without_traceback
class PushingReader(BatchReader):
    """The same with filter push-down; without that setting Spark refuses a reader that takes filters."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        self.pruning = prune(filters)
        self.options = self.pruning.options(self.options)
        return filters  # all of them: what is read may still hold other rows


for _kind in (StreamReader, BatchWriter, StreamWriter, ExactlyOnceBatchWriter, ExactlyOnceStreamWriter):
    without_traceback(_kind)
