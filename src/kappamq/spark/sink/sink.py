"""Writing a DataFrame or a stream to topics, at least once: Arrow batches in, batch sends out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from kappamq.spark.worker_process import begin_task

if TYPE_CHECKING:
    import pyarrow as pa

    from kappamq.spark.sink.options import WriteOptions

LATER_IN_FLIGHT: Final = 64
"""Delayed rows go one by one, so that more of them must be on their way at a time than of batches."""


@dataclass
class Written(WriterCommitMessage):
    """What a task wrote."""

    rows: int


class BatchWriter(DataSourceArrowWriter):
    def __init__(self, options: WriteOptions) -> None:
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return write_rows(self.options, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Every task has its acknowledgements: there is nothing left to do."""


class StreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: WriteOptions) -> None:
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return write_rows(self.options, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Every task has its acknowledgements: there is nothing left to do."""

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """What was written stays: Spark tries the batch again, and its rows may then be there twice."""


def write_rows(options: WriteOptions, batches: Iterator[pa.RecordBatch]) -> Written:
    """Send all rows of a task; returns when brokers have acknowledged them. Raises ConfigError that names a bad row, NoSuchTopic."""
    from kappamq.spark import connection
    from kappamq.spark.sink.outbox import Outbox
    from kappamq.spark.sink.sending import RowSender, send_all

    producer = connection.producer(options.nameservers, options.group, tls=options.tls)
    begin_task()
    sender = RowSender(options, producer, Outbox(producer), Outbox(producer, LATER_IN_FLIGHT))
    return Written(send_all(sender, batches))
