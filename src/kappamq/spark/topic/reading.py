"""The tasks of the format `kappamq`: read ranges of queues from brokers and yield Arrow batches. A pure function of the ranges."""

from __future__ import annotations

import functools
import logging
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from kappamq.client.pulling.raw_reads import STRIPE, Pace
from kappamq.errors import Busy, KappaError, ProtocolError
from kappamq.message import MessageQueue, PulledBytes, PullStatus
from kappamq.protocol.records.tags import Subscription
from kappamq.spark import connection
from kappamq.spark.columns.batches import LOG_OFFSET, QUEUE_OFFSET, Batches, Piece, joined, only
from kappamq.spark.columns.completeness import examine
from kappamq.spark.columns.selection import Selection
from kappamq.spark.patience import Patience
from kappamq.spark.topic.options import OnDataLoss, ReadOptions
from kappamq.spark.topic.planning import HOLE, RETENTION, SHORTER, Gap, QueueRange, refuse_gaps

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

log = logging.getLogger(__name__)


class RangeReader:
    """Reads ranges for one task."""

    def __init__(self, options: ReadOptions, columns: Sequence[str], required: Collection[str] = ()) -> None:
        self._options = options
        self._selection = Selection(options)
        self._tags = options.tags or "*"
        self.gaps: list[Gap] = []
        """What was skipped so far, as the option onDataLoss allows."""
        self._batches = Batches(columns, required)
        self._looked_at = Batches(self._selection.columns)
        self._client = connection.reader(options.nameservers, tls=options.tls)
        # Others want to use the broker, too.
        self._pace = None if options.bytes_per_second is None else Pace(options.bytes_per_second)

    def read(self, ranges: Sequence[QueueRange]) -> Iterator[pa.RecordBatch]:
        for wanted in ranges:
            for piece in joined(self._pieces(wanted, self._tags)):
                yield from self._rows(piece, wanted.queue, self._tags)

    def _rows(self, piece: Piece, queue: MessageQueue, tags: str) -> Iterator[pa.RecordBatch]:
        try:
            places = self._batches.locate(piece.data)
        except ProtocolError:
            if piece.stop - piece.start > 1:
                # If the length of a record is damaged, the start of the next one is unknown: request each by itself.
                for one in self._pieces(QueueRange(queue, piece.start, piece.stop), "*", stripe=1):
                    yield from self._rows(one, queue, "*")
                return
            places = self._batches.locate(b"")
        places, missing = examine(places, piece.start, piece.stop, everything=_is_everything(tags))
        if missing:
            self._pass_over([Gap(queue, *one) for one in missing])
        if self._selection.columns and len(places):
            places = only(places, self._selection.rows(self._looked_at.make(piece.data, places, queue.broker)))
        if len(places):
            keeps = functools.partial(_keep_packed, queue)
            yield from self._batches.make_each(piece.data, places, queue.broker, keeps)

    def _pieces(self, wanted: QueueRange, tags: str, stripe: int = STRIPE) -> Iterator[Piece]:
        at = wanted.start
        for answer in self._answers(wanted, tags, stripe):
            stop = min(answer.next_offset, wanted.stop)
            if answer.status is PullStatus.OFFSET_ILLEGAL:
                if stop > at:
                    self._pass_over([Gap(wanted.queue, at, stop, RETENTION)])
            elif answer.status is PullStatus.NO_NEW:
                if stop > at:
                    self._pass_over([Gap(wanted.queue, at, stop, HOLE)])
            else:
                yield Piece(answer.data, at, stop)
            at = answer.next_offset
        if at < wanted.stop:
            self._pass_over([Gap(wanted.queue, at, wanted.stop, SHORTER)])

    def _pass_over(self, gaps: Sequence[Gap]) -> None:
        refuse_gaps(gaps, self._options.on_data_loss)
        for gap in gaps:
            log.warning("%s; the read continues after it (onDataLoss=%s)", gap, OnDataLoss.SKIP.value)
            last = self.gaps[-1] if self.gaps else None
            if last is not None and (last.queue, last.stop, last.reason) == (gap.queue, gap.start, gap.reason):
                self.gaps[-1] = replace(last, stop=gap.stop)
            else:
                self.gaps.append(gap)

    def _answers(self, wanted: QueueRange, tags: str, stripe: int) -> Iterator[PulledBytes]:
        """The brokers' answers. A broker that restarts meanwhile is asked again, from where its last answer ended."""
        at = wanted.start
        patience = Patience(f"reading {wanted.queue}")
        while at < wanted.stop:
            answers = self._client.read_bytes(wanted.queue, at, wanted.stop, tags=tags, stripe=stripe, pace=self._pace)
            while True:
                try:
                    answer = next(answers, None)
                except KappaError as error:
                    patience.wait_after(error)
                    break
                if answer is None:
                    if at >= wanted.stop or self._end_of(wanted.queue) <= at:
                        return
                    patience.wait_after(
                        Busy(
                            f"the broker that answers has {wanted.queue} up to {at}, its master has more: a slave that lags behind"
                        )
                    )
                    break
                if answer.next_offset > at:
                    patience.begin_anew()
                at = answer.next_offset
                yield answer

    def _end_of(self, queue: MessageQueue) -> int:
        """Return the end of the queue at its master: a slave that answers in its place may not have the last messages yet."""
        from kappamq.spark.topic.topics import Topics

        return Topics(self._options).bounds_with([queue])[queue].max


def _is_everything(tags: str) -> bool:
    return Subscription.parse(tags).everything


def _keep_packed(queue: MessageQueue, place: NDArray[np.int64], why: str) -> bool:
    """Keep a body that cannot be decompressed as it is: any producer can send one, and it must not block its queue forever."""
    log.warning(
        "%s: the body of message %d, log offset %d, cannot be decompressed (%s); it is returned as stored",
        queue,
        place[QUEUE_OFFSET],
        place[LOG_OFFSET],
        why,
    )
    return True
