"""The stream reader of the format `kappamq`: offsets are decided on the driver, and `read` is a pure function of them.

Spark logs the end of each batch before it runs it. After a crash it requests the same batch again, from its log, and gets the same rows.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from kappamq.message import MessageQueue
from kappamq.spark.topic.checkpoints import (
    Checkpoint,
    Progress,
    check_filter,
    filter_name,
    lost,
    mean_bytes,
    other_topics,
    shares,
)
from kappamq.spark.topic.known_topics import KnownTopics
from kappamq.spark.topic.options import OnDataLoss, ReadOptions
from kappamq.spark.topic.planning import Bounds, Gap, ranges_between, refuse_gaps, resolve, tasks
from kappamq.spark.topic.reported import Reported
from kappamq.spark.topic.tasks import Task
from kappamq.spark.worker_process import begin_task

if TYPE_CHECKING:
    import pyarrow as pa

    from kappamq.spark.topic.topics import Topics

log = logging.getLogger(__name__)

COMPARE_ALL_S: Final = 60.0
"""A queue that was cut and has grown to the same length again looks unchanged: all marks are compared this often."""


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(
        self,
        options: ReadOptions,
        columns: Sequence[str],
        required: Collection[str] = (),
        *,
        topics_may_change: bool = False,
    ) -> None:
        self.options = options
        self.columns, self.required = tuple(columns), frozenset(required)
        self._compare_topics = not topics_may_change  # with those of the checkpoint, once
        self._filter = filter_name(options)
        self._target: dict[MessageQueue, int] | None = None  # the queues' ends when `availableNow` begins
        self._planned = False  # whether this process has planned a batch itself
        self._known = KnownTopics()  # those of the checkpoint, and those seen since
        self._reported = Reported()
        self._compared: dict[MessageQueue, tuple[Bounds, Progress]] = {}  # their marks were confirmed
        self._compare_all_at = 0.0
        self._unrecorded: list[Gap] = []  # found when a batch was run whose offset Spark had logged already

    # --- on the driver ---

    def initialOffset(self) -> dict[str, Any]:
        topics = self._topics()
        bounds = topics.bounds()
        self._known.add(queue.topic for queue in bounds)
        start = resolve(self.options.start, bounds, topics.search)
        _ranges, gaps = ranges_between(start, {queue: at.max for queue, at in bounds.items()}, bounds)
        refuse_gaps(gaps, self.options.on_data_loss)
        begin = {queue: min(max(start[queue], at.min), at.max) for queue, at in bounds.items()}
        marks = topics.marks({queue: at for queue, at in begin.items() if at > bounds[queue].min})
        return Checkpoint(
            {queue: Progress(at, marks.get(queue)) for queue, at in begin.items()}, self._filter, tuple(gaps)
        ).encode()

    def getDefaultReadLimit(self) -> ReadLimit:
        if self.options.messages_per_trigger is not None:
            return ReadMaxRows(self.options.messages_per_trigger)
        if self.options.bytes_per_trigger is not None:
            return ReadMaxBytes(self.options.bytes_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        # Spark asks before it has read its checkpoint. A topic that is missing was there before, or `latestOffset` refuses it.
        bounds = self._topics().bounds(self._known, lenient=True)
        self._target = {queue: at.max for queue, at in bounds.items()}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        before = Checkpoint.decode(start)
        check_filter(before, self._filter)
        self._tell_other_topics(before)
        self._planned = True
        self._known.add(queue.topic for queue in before.queues)
        topics = self._topics()
        bounds = topics.bounds(self._known)
        topics.report(self.options.group, before.offsets, self._reported)
        gaps = list(dict.fromkeys((*self._unrecorded, *self._gaps(before, bounds, topics))))
        known = before.queues
        begin = {queue: Progress(at.min) for queue, at in bounds.items()} | {
            queue: self._begin(progress, bounds.get(queue)) for queue, progress in known.items()
        }
        ends = self._ends(begin, bounds, limit, topics)
        # Queues with a gap get a new mark even if nothing is read of them: with the old one the gap would be reported in every batch.
        cut = {gap.queue for gap in gaps}
        looked_at = {
            queue: end
            for queue, end in ends.items()
            if end > begin[queue].next or (queue in cut and end > bounds[queue].min)
        }
        marks = topics.marks(looked_at)
        after: dict[MessageQueue, Progress] = {}
        for queue, progress in begin.items():
            moved = queue not in known or progress.next != known[queue].next
            end = max(progress.next, ends.get(queue, 0))
            mark = marks.get(queue) if queue in looked_at else progress.mark
            after[queue] = Progress(end, mark, progress.next if moved else None)
        # Nothing new: the very same offset, else Spark would run an empty batch. For a gap it does: else it would not be recorded.
        if not gaps and {queue: progress.next for queue, progress in after.items()} == before.offsets:
            return start
        self._unrecorded.clear()
        return Checkpoint(after, self._filter, tuple(gaps)).encode()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        bounds = self._topics().bounds(self._known, lenient=True)
        return Checkpoint({queue: Progress(at.max) for queue, at in bounds.items()}, self._filter).encode()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        before, after = Checkpoint.decode(start), Checkpoint.decode(end)
        check_filter(after, self._filter)
        begin = {
            queue: before.offsets.get(queue, progress.next) if progress.begin is None else progress.begin
            for queue, progress in after.queues.items()
        }
        self._known.add(queue.topic for queue in after.queues)
        topics = self._topics()
        needed = [queue for queue, progress in after.queues.items() if begin[queue] < progress.next]
        bounds = topics.bounds_with(needed)
        ranges, gaps = ranges_between(begin, after.offsets, bounds)
        gaps += self._gaps_of_replay(after, needed, bounds, topics)
        self._tell(gaps)
        self._unrecorded += (gap for gap in gaps if gap not in self._unrecorded)
        return [Task(ranges) for ranges in tasks(ranges, self.options.min_partitions)]

    def commit(self, end: dict[str, Any]) -> None:
        """Store the stream's progress for the consumer group, for tools that show lag. Spark's checkpoint is authoritative."""
        self._topics().report(self.options.group, Checkpoint.decode(end).offsets, self._reported)

    def _topics(self) -> Topics:
        from kappamq.spark.topic.topics import Topics

        return Topics(self.options)

    def _gaps(self, before: Checkpoint, bounds: Mapping[MessageQueue, Bounds], topics: Topics) -> list[Gap]:
        marked = {
            queue: progress.next
            for queue, progress in before.queues.items()
            if progress.mark is not None and queue in bounds and bounds[queue].min < progress.next <= bounds[queue].max
        }
        # A stream polls several times a second: do not fetch the message of an unchanged queue every time.
        if (now := time.monotonic()) >= self._compare_all_at:
            self._compare_all_at = now + COMPARE_ALL_S
            self._compared.clear()
        seen = {queue: (bounds[queue], before.queues[queue]) for queue in marked}
        due = {queue: next_ for queue, next_ in marked.items() if self._compared.get(queue) != seen[queue]}
        gaps = lost(before, bounds, topics.marks(due))
        self._tell(gaps)
        cut = {gap.queue for gap in gaps}
        self._compared |= {queue: seen[queue] for queue in due if queue not in cut}
        return gaps

    def _tell_other_topics(self, before: Checkpoint) -> None:
        """Warn if the topics differ from the checkpoint's: it may be the wrong checkpoint, and nothing else would show that."""
        if not self._compare_topics:
            return
        self._compare_topics = False
        left, new = other_topics(before, self.options)
        if left:
            log.warning(
                "the checkpoint has topics that this stream no longer reads: %s; if one is named again, it resumes where it was",
                ", ".join(left),
            )
        if new:
            log.warning(
                "the stream reads topics that its checkpoint does not have: %s; they are read from their beginning",
                ", ".join(new),
            )

    def _tell(self, gaps: Sequence[Gap]) -> None:
        """Raise DataLoss unless the stream may go on; then log each gap once."""
        refuse_gaps(gaps, self.options.on_data_loss)
        for gap in gaps:
            if gap not in self._unrecorded:
                log.warning("%s; the stream continues after it (onDataLoss=%s)", gap, OnDataLoss.SKIP.value)

    def _gaps_of_replay(
        self, after: Checkpoint, queues: Sequence[MessageQueue], bounds: Mapping[MessageQueue, Bounds], topics: Topics
    ) -> list[Gap]:
        """Return what was lost from a batch that was planned before a crash and is repeated now: it must end with the same message."""
        if self._planned:
            return []
        there = [queue for queue in queues if queue in bounds and bounds[queue].min < after.queues[queue].next]
        ends = {queue: after.queues[queue] for queue in there if after.queues[queue].next <= bounds[queue].max}
        marks = topics.marks({queue: progress.next for queue, progress in ends.items() if progress.mark is not None})
        return lost(Checkpoint(ends), bounds, marks)

    @staticmethod
    def _begin(progress: Progress, there: Bounds | None) -> Progress:
        """Return where to go on in a queue: at its end if it became shorter, at the same place if its broker is away."""
        if there is None or there.min <= progress.next <= there.max:
            return progress
        return Progress(there.min if progress.next < there.min else there.max)

    def _ends(
        self,
        begin: Mapping[MessageQueue, Progress],
        bounds: Mapping[MessageQueue, Bounds],
        limit: ReadLimit,
        topics: Topics,
    ) -> dict[MessageQueue, int]:
        stop = {queue: at.max for queue, at in bounds.items()}
        if self._target is not None:
            stop = {queue: min(end, self._target.get(queue, 0)) for queue, end in stop.items()}
        lag = {queue: end - begin[queue].next for queue, end in stop.items()}
        rows = sum(max(behind, 0) for behind in lag.values())
        if isinstance(limit, ReadMaxRows):
            rows = min(rows, limit.max_rows)
        elif isinstance(limit, ReadMaxBytes):
            lagging = {queue: begin[queue] for queue, behind in lag.items() if behind > 0}
            marks = {queue: progress.mark for queue, progress in lagging.items() if progress.mark is not None}
            # Nothing was read of the others yet: estimate their size from their next message.
            marks |= topics.marks({queue: lagging[queue].next + 1 for queue in lagging.keys() - marks.keys()})
            rows = min(rows, max(1, limit.max_bytes // mean_bytes(marks.values())))
        given = shares(lag, rows)
        return {queue: begin[queue].next + given.get(queue, 0) for queue in stop}

    # --- on the executors ---

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from kappamq.spark.topic.reading import RangeReader

        if isinstance(partition, Task):
            reader = RangeReader(self.options, self.columns, self.required)
            begin_task()
            yield from reader.read(partition.ranges)
