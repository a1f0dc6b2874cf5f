"""The format `kappamq.store`: the commit log of a data directory as a table, ours or a Java broker's, running or not.

Reads files, so it is for local mode, a shared file system, or a copy. Nothing is locked and nothing is written.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)

from kappamq.errors import ConfigError
from kappamq.spark.columns.schema import STORE_COLUMNS, check_schema, ddl
from kappamq.spark.dividing import task_count
from kappamq.spark.failures import without_traceback
from kappamq.spark.refused_stream import RefusedStream
from kappamq.spark.store.options import StoreOptions
from kappamq.spark.worker_process import begin_task
from kappamq.store.log.stretches import Stretch, Stretches
from kappamq.store.reader import StoreReader

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

STRETCH_BYTES: Final = 256 << 20
"""The most that one task reads."""
STRETCH_BYTES_MIN: Final = 32 << 20
"""The least that one task reads if all cores have one: a task costs Spark some 15 ms."""
NO_STREAM: Final = (
    "the format kappamq.store is for batch reads: use spark.read, or read the topic as a stream with the format kappamq"
)
NO_WRITING: Final = (
    "the format kappamq.store only reads: write to the topic with the format kappamq, through its brokers"
)


@dataclass
class StoreTask(InputPartition):
    """The input of one task."""

    stretch: Stretch


@without_traceback
class KappaMQStore(DataSource):
    """`spark.read.format("kappamq.store").load("/var/lib/kappamq")`: docs/PIPELINE.md lists the options."""

    @classmethod
    def name(cls) -> str:
        return "kappamq.store"

    def schema(self) -> str:
        return ddl(StoreOptions.parse(self.options).columns, STORE_COLUMNS)

    def reader(self, schema: StructType) -> DataSourceReader:
        from kappamq.spark.columns.selection import compile_filter

        options = StoreOptions.parse(self.options)
        compile_filter(options.filter)
        return LogTableReader(options, *check_schema(schema, STORE_COLUMNS, options.optional))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return RefusedStream(ConfigError(NO_STREAM))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        raise ConfigError(NO_WRITING)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        raise ConfigError(NO_WRITING)


@without_traceback
class LogTableReader(DataSourceReader):
    """One read of the log as it is when the query begins."""

    def __init__(self, options: StoreOptions, columns: Sequence[str], required: Collection[str] = ()) -> None:
        self.options = options
        self.columns, self.required = tuple(columns), frozenset(required)

    def partitions(self) -> Sequence[InputPartition]:
        with StoreReader(Path(self.options.path)) as store:
            stretches = Stretches(store)
            end = stretches.end()
            size = stretch_bytes(end - store.log.min, self.options.min_partitions)
            return [StoreTask(stretch) for stretch in stretches.cut(end, size)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from kappamq.spark.store.reading import StretchReader

        if isinstance(partition, StoreTask):
            reader = StretchReader(self.options, self.columns, self.required)
            begin_task()
            yield from reader.read([partition.stretch])


def stretch_bytes(total: int, at_least: int) -> int:
    """Return the length of the stretches that `total` bytes of log are cut into: equal ones, so that no core waits long for the last."""
    count = task_count(total, least=STRETCH_BYTES_MIN, most=STRETCH_BYTES, at_least=at_least)
    return max(1, -(-total // count))
