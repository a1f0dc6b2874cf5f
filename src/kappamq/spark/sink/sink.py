"""Writing a DataFrame or a stream to topics, at least once: Arrow batches in, batch sends out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from kappamq.spark.worker_process import begin_task

if TYPE_CHECKING:
    import pyarrow as pa

    from kappamq.spark.sink.options import WriteOptions

LATER_IN_FLIGHT: Final = 64
"""Delayed rows are sent one by one, so more of them must be in flight at a time than of batches."""


@dataclass
class Written(WriterCommitMessage):
    """The result of a task."""

    rows: int


class BatchWriter(DataSourceArrowWriter):
    def __init__(self, options: WriteOptions) -> None:
        """On the driver, before any task. Raises NotConnected, NoSuchTopic."""
        self.options = options
        check_start(options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return write_rows(self.options, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Every task has its acknowledgements: there is nothing left to do."""


class StreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: WriteOptions, checkpoint: str | None = None) -> None:
        """The same, before each batch. Only a stream that has written nothing yet is checked: later a name server that is away
        restarts, and the tasks wait for it."""
        self.options = options
        if is_new(checkpoint):
            check_start(options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return write_rows(self.options, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Every task has its acknowledgements: there is nothing left to do."""

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """What was written stays: Spark tries the batch again, and its rows may then be there twice."""


def check_start(options: WriteOptions) -> None:
    """Ask the name servers once: an address that does not answer is more likely wrong than restarting, and tasks would wait for
    it. Raises NotConnected, NoSuchTopic."""
    from kappamq.spark import connection
    from kappamq.spark.topic.topics import check_exists

    if options.topic is None:
        connection.admin(options.nameservers, tls=options.tls).masters()
    else:
        check_exists(options.nameservers, options.topic, options.tls, patience_s=0)


def is_new(checkpoint: str | None) -> bool:
    """Return whether a stream has committed no batch yet. False if the checkpoint is not a folder on this machine, since then it is not
    known."""
    place = local_path(checkpoint) if checkpoint else None
    if place is None or not place.is_dir():
        return False
    return not any(path.name.isdigit() for path in (place / "commits").glob("*"))


def local_path(name: str) -> Path | None:
    """Return the folder of a path or a file: URI as Spark reads it; None for any other URI."""
    parts = urlsplit(name)
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    return None if parts.scheme else Path(name)


def write_rows(options: WriteOptions, batches: Iterator[pa.RecordBatch]) -> Written:
    """Send all rows of a task; returns when brokers have acknowledged them. Raises ConfigError that names a bad row, NoSuchTopic."""
    from kappamq.spark import connection
    from kappamq.spark.sink.outbox import Outbox
    from kappamq.spark.sink.sending import RowSender, send_all

    producer = connection.producer(options.nameservers, options.group, tls=options.tls)
    begin_task()
    sender = RowSender(options, producer, Outbox(producer), Outbox(producer, LATER_IN_FLIGHT))
    return Written(send_all(sender, batches))
