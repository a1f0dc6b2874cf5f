"""Writing a DataFrame or a stream to topics, each row once: tasks stage chunks, the committer decides which of them are valid.

    task 0, task 1, ...           committer                      a scope of batch transactions (client/batches)
      | begin(batch, attempt) -------------------------------->  the same transaction for all tasks; or: it was decided before
      | stage ------------------------------------------------>  chunks, which nobody sees
      | Staged(ticket, part) ------> | decide(all parts) ----->  from here on the batch counts
                                     | wait until published -->

A task that failed, or has a second attempt alive, leaves chunks that no decision lists; they are dropped. Spark builds a writer for
each run of a batch, so its name distinguishes runs: the chunks of an earlier run are dropped when the next one begins.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from kappamq.client.batches.scope import Part, Ticket
from kappamq.errors import ConfigError, KappaError, TransactionFailed
from kappamq.spark.patience import PATIENCE_S
from kappamq.spark.sink import scopes
from kappamq.spark.worker_process import begin_task

if TYPE_CHECKING:
    import pyarrow as pa

    from kappamq.client.blocking.batch_scope import BatchStager
    from kappamq.spark.sink.options import WriteOptions
    from kappamq.spark.sink.outbox import Parcel, Single

log = logging.getLogger(__name__)

QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"
"""Set by Spark only for the tasks of a stream; the id of a query is kept in its checkpoint."""
PUBLISHED_S_MAX: Final = {True: 10.0, False: 300.0}
"""How long to wait until a decided batch is published; a stream prefers to go on with the next one."""


@dataclass
class Staged(WriterCommitMessage):
    """The result of a task."""

    ticket: Ticket
    part: Part


class ExactlyOnceBatchWriter(DataSourceArrowWriter):
    def __init__(self, options: WriteOptions) -> None:
        self.options = options
        self.attempt = secrets.token_hex(8)
        scopes.check_start(options, self._owner)

    @property
    def _owner(self) -> str:
        assert self.options.exactly_once is not None
        return self.options.exactly_once.owner or self.options.group

    @property
    def _number(self) -> int:
        assert self.options.exactly_once is not None
        assert self.options.exactly_once.number is not None
        return self.options.exactly_once.number

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        return stage_rows(self.options, self._owner, self._number, self.attempt, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        commit(self.options, self._number, messages, streaming=False)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        abort(self.options, messages)


class ExactlyOnceStreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: WriteOptions, *, starting: bool = True) -> None:
        """`starting`: the tasks of a batch are about to start; False: it is to be committed."""
        self.options = options
        self.attempt = secrets.token_hex(8)
        if starting:
            scopes.check_start(options, None)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        owner, number = batch_of_task()
        return stage_rows(self.options, owner, number, self.attempt, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        commit(self.options, batchId, messages, streaming=True)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        abort(self.options, messages)


def batch_of_task() -> tuple[str, int]:
    """Return the query and the batch that this task belongs to. Raises ConfigError if Spark does not provide them."""
    from pyspark import TaskContext

    context = TaskContext.get()
    query = context.getLocalProperty(QUERY_ID) if context is not None else None
    batch = context.getLocalProperty(BATCH_ID) if context is not None else None
    if not query or not batch:
        raise ConfigError(
            f"Spark does not tell its tasks which batch of which query they write (the local properties {QUERY_ID} and {BATCH_ID} are "
            "missing), so nothing can be written exactly once: use foreachBatch and a batch write with transactionNumber"
        )
    return query, int(batch)


# -- in a task -------------------------------------------------------------------------------------------------------------


def stage_rows(
    options: WriteOptions, owner: str, number: int, attempt: str, batches: Iterator[pa.RecordBatch]
) -> Staged:
    """Stage all rows of a task, or count them if the batch was decided before. Raises ConfigError that names a bad row, NoSuchTopic."""
    from pyspark import TaskContext

    from kappamq.spark.sink.sending import RowSender, send_all

    assert options.exactly_once is not None
    begin_task()
    ticket = scopes.begin(options, owner, number, attempt)
    producer = scopes.producer(options)
    if ticket.transaction is None:
        compare = not options.exactly_once.skip_repeated
        return Staged(ticket, count_rows(batches, producer.inner.config.message_bytes_max) if compare else Part())
    context = TaskContext.get()
    partition, tries = (context.partitionId(), context.attemptNumber()) if context is not None else (0, 0)
    stage = Stage(producer.stager(ticket, partition=partition, attempt=tries, patience_s=PATIENCE_S))
    send_all(RowSender(options, producer, stage, stage, ticket.rows_max), batches)
    return Staged(ticket, stage.part)


class Stage:
    """An outlet: batches become chunks."""

    def __init__(self, stager: BatchStager) -> None:
        from kappamq import native

        self._stager = stager
        self._checksum = native.load().batch_checksum
        self.part = Part()

    def send(self, parcel: Parcel | Single) -> None:
        from kappamq.spark.sink.outbox import Parcel

        if isinstance(parcel, Parcel):
            checksum = self._checksum(parcel.body)
            self._stager.add_encoded(parcel.topic, parcel.body, parcel.rows, checksum, queue=parcel.queue)
        else:
            self._stager.add(parcel.message, queue=parcel.queue)

    def close(self) -> None:
        self.part = self._stager.finish()

    def settle(self) -> None:
        self._stager.cancel()


def count_rows(batches: Iterator[pa.RecordBatch], message_bytes_max: int) -> Part:
    """Return count and checksum of a task's rows, to compare with the decided batch."""
    import numpy as np

    from kappamq import native
    from kappamq.client.batches.scope import CHECKSUM_MASK
    from kappamq.spark.sink.rows import prepare
    from kappamq.spark.sink.sending import BATCH_BYTES, BATCH_MEMBERS, each

    kernel, part = native.load(), Part()

    def count(batch: pa.RecordBatch, _first_row: int) -> None:
        if not batch.num_rows:
            return
        prepared, rows, at = prepare(batch, message_bytes_max), np.arange(batch.num_rows, dtype=np.int32).data, 0
        while at < batch.num_rows:
            body, at = kernel.batch_body(prepared.bodies, prepared.texts, rows, at, BATCH_BYTES, BATCH_MEMBERS, b"", 0)
            part.checksum = (part.checksum + kernel.batch_checksum(body)) & CHECKSUM_MASK

    part.rows = each(batches, count)
    return part


# -- on the driver ---------------------------------------------------------------------------------------------------------


def commit(
    options: WriteOptions, number: int, messages: Sequence[WriterCommitMessage | None], *, streaming: bool
) -> None:
    """Decide the batch: from then on it will be published. If the answer is lost, asking again, by Spark too, changes nothing."""
    staged = cast("list[Staged]", [message for message in messages if message is not None])
    if not staged or len(staged) != len(messages):
        raise TransactionFailed(
            f"batch {number} is to be committed without the messages of all its tasks: Spark has lost some"
        )
    repeated = next((one.ticket for one in staged if one.ticket.transaction is None), None)
    ticket = staged[0].ticket if repeated is None else repeated
    if repeated is None and len({one.ticket.transaction for one in staged}) > 1:
        raise TransactionFailed(
            f"the tasks of batch {number} in scope {ticket.scope} have staged for different transactions: it took longer than "
            "the brokers keep an undecided one (batch_transaction_timeout_ms, 1 h by default). Nothing of it is published"
        )
    assert options.exactly_once is not None
    scope = scopes.opened(options, ticket.owner)
    wait_s = PUBLISHED_S_MAX[streaming]
    if repeated is not None and options.exactly_once.skip_repeated:
        outcome = scope.published(number, wait_s=wait_s)
    else:
        outcome = scope.decide(ticket, [one.part for one in staged], wait_s=wait_s)
    if outcome.repeated:
        log.warning("batch %d of scope %s was decided before: nothing was written", number, ticket.scope)
    if outcome.dropped:
        log.error(
            "batch %d of scope %s: messages that no topic took any more: %s",
            number,
            ticket.scope,
            dict(outcome.dropped),
        )
    if not outcome.published:
        log.warning(
            "batch %d of scope %s is decided, but not published on all brokers after %d s: they go on by themselves",
            number, ticket.scope, wait_s,
        )  # fmt: skip


def abort(options: WriteOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Drop the staged chunks. Spark also calls this after a failed commit: then the batch may be decided, and stays so."""
    staged = [message for message in messages if isinstance(message, Staged) and message.ticket.transaction is not None]
    if staged:
        with contextlib.suppress(KappaError):  # its timeout, or the next attempt, drops it as well
            scopes.opened(options, staged[0].ticket.owner, patience_s=0).abort(staged[0].ticket)
