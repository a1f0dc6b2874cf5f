"""Compare the consume queues with the log: every record has its entry, and the entry matches the record."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Protocol

from kappamq.native.layout import FILLER_BYTES
from kappamq.protocol.records import properties
from kappamq.protocol.records.entries import QUEUE_ENTRY
from kappamq.protocol.records.record import RecordError
from kappamq.protocol.records.tags import tag_code
from kappamq.store.log.log_reader import Found, LogReader
from kappamq.store.queues.entry_repair import due_ms, is_message
from kappamq.store.verify.report import EntryFix, Kind, Report

_LOOK_AHEAD_ENTRIES = 64
_CHUNKS_MAX = 10_000
# tag codes from here down are addresses in a file of RocketMQ's consume queue extension
_EXTENDED_CODE = -(1 << 31) - 1

_Entry = tuple[int, int, int]


DeletedBelow = Callable[[str, int], int | None]
"""Topic and queue id -> the offset below which messages were deleted with their topic; None if unknown."""


def unknown(topic: str, queue_id: int) -> None:
    """A DeletedBelow that knows no deletions."""


class EntrySource(Protocol):
    """Where entries are read from: the files of a store, with or without a broker that has it open."""

    def bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        """The range [first, end) of the messages in the queue's files."""
        ...

    def read(self, topic: str, queue_id: int, first: int, count: int) -> bytes:
        """Entries as they are on disk; fewer at the end of a file."""
        ...

    def deleted_below(self, topic: str, queue_id: int) -> int | None:
        """The offset below which messages were deleted with their topic; None if unknown."""
        ...


class _Queue:
    """The state of the check of one queue."""

    __slots__ = ("end", "gaps", "low", "matched", "next", "wrong")

    def __init__(self, low: int, end: int) -> None:
        self.low = low
        self.end = end
        self.matched = 0  # entries in [low, end) that match their record
        self.wrong: set[int] = set()  # entries that were reported already
        self.next: int | None = None  # the expected queue offset of the next record,
        self.gaps = 0  # valid as long as this equals QueueCheck._gaps


class QueueCheck:
    """Call `record` for each record in log order; `find_orphans` then finds the entries that have no record.

    Records from `dispatched` on need not have an entry yet."""

    def __init__(self, source: EntrySource, dispatched: int, report: Report, delays_ms: Sequence[int] = ()) -> None:
        self._source = source
        self._dispatched = dispatched
        self._report = report
        self._delays_ms = delays_ms
        self._queues: dict[tuple[str, int], _Queue] = {}
        self._gaps = 0
        self._chunks: OrderedDict[tuple[str, int], tuple[int, bytes]] = OrderedDict()

    def add_queue(self, topic: str, queue_id: int) -> tuple[int, int]:
        """Note the range of a queue's entries as of now, and return it."""
        low, end = self._source.bounds(topic, queue_id)
        self._queues[topic, queue_id] = _Queue(low, end)
        return low, end

    def forget_numbers(self) -> None:
        """Accept any queue offset next: records are missing here, which is either reported already or legitimate."""
        self._gaps += 1

    def record(self, item: Found, names: dict[str, str]) -> None:
        record = item.record
        key = (record.topic, record.queue_id)
        if key not in self._queues:
            self.add_queue(*key)
        queue = self._queues[key]
        place, number = f"{record.topic}/{record.queue_id}", record.queue_offset
        if queue.next is not None and number != queue.next and queue.gaps == self._gaps:
            self._report.add(
                Kind.LOG,
                place,
                item.offset,
                f"the record has queue offset {number}, expected was {queue.next}",
            )
        queue.next, queue.gaps = number + 1, self._gaps
        entry = self._entry(*key, number)
        right = QUEUE_ENTRY.pack(item.offset, item.size, self._code(item, names, number, entry))
        if number >= queue.end:
            if item.offset >= self._dispatched:
                self._report.undispatched += 1
            elif queue.end == 0:
                self._report.forgotten += 1
            else:
                self._report_missing(item, place, right)
        elif number < queue.low:
            if self._was_deleted(*key, number, queue.low):
                self._report.forgotten += 1
            else:
                self._report_missing(item, place, right)
        elif entry is None or entry[:2] != (item.offset, item.size):
            log_offset, size, _code = entry or (0, 0, 0)
            self._report.add(
                Kind.QUEUE,
                place,
                number,
                f"the entry has {size} bytes at {log_offset}, but the record has {item.size} bytes at {item.offset}",
                EntryFix(*key, number, right),
            )
            if len(queue.wrong) < self._report.problems_max:
                queue.wrong.add(number)
        else:
            queue.matched += 1
            if QUEUE_ENTRY.pack(*entry) != right:
                self._report_code(item, names, place, entry[2], right)

    def _was_deleted(self, topic: str, queue_id: int, number: int, low: int) -> bool:
        """Whether message `number`, which lies before the queue's first, was deleted together with an earlier topic of that name."""
        deleted_below = self._source.deleted_below(topic, queue_id)
        if deleted_below is not None:
            return number < deleted_below
        # Unknown. If it was deleted, there is filler in the place of the older messages.
        data = self._source.read(topic, queue_id, low - 1, 1)
        return len(data) == QUEUE_ENTRY.size and QUEUE_ENTRY.unpack(data)[1] == FILLER_BYTES

    def _report_missing(self, item: Found, place: str, right: bytes) -> None:
        record = item.record
        self._report.add(
            Kind.QUEUE,
            place,
            record.queue_offset,
            f"there is no entry for the record at log offset {item.offset}",
            EntryFix(record.topic, record.queue_id, record.queue_offset, right),
        )

    def _code(self, item: Found, names: dict[str, str], number: int, entry: _Entry | None) -> int:
        """The right value of the entry's last field: the hash of the tag, or another value that is valid there."""
        record = item.record
        due = due_ms(record, names, self._delays_ms)
        if due is None:
            wanted = tag_code(names.get(properties.TAGS))
            return entry[2] if entry is not None and entry[2] <= _EXTENDED_CODE < wanted else wanted
        # The schedule topic stores the delivery time there. The delays of the levels may have been different at that time: a delay
        # that a neighbour in the queue has as well is accepted.
        if entry is not None and entry[2] != due and self._is_usual_delay(item, number, entry[2] - record.stored_ms):
            return entry[2]
        return due

    def _is_usual_delay(self, item: Found, number: int, delay: int) -> bool:
        record = item.record
        if delay < 0:
            return False
        if not self._delays_ms:
            return True
        for neighbour in (number - 1, number + 1):
            entry = self._entry(record.topic, record.queue_id, neighbour)
            # Only neighbours that were stored close in time: neither times nor delays are exact to the second here.
            if entry is not None and 0 < entry[1] < FILLER_BYTES and abs(entry[2] - record.stored_ms - delay) < 60_000:
                return True
        return False

    def _report_code(self, item: Found, names: dict[str, str], place: str, code: int, right: bytes) -> None:
        wanted = QUEUE_ENTRY.unpack(right)[2]
        if due_ms(item.record, names, self._delays_ms) is None:
            meaning = f"the tag code is {code}, but that of the record's tag is {wanted}"
        else:
            meaning = f"the due time is {code}, but according to the record's delay level it is {wanted}"
        record = item.record
        self._report.add(
            Kind.QUEUE,
            place,
            record.queue_offset,
            meaning,
            EntryFix(record.topic, record.queue_id, record.queue_offset, right),
        )

    def _entry(self, topic: str, queue_id: int, number: int) -> _Entry | None:
        if number < 0:
            return None
        first, data = self._chunks.get((topic, queue_id), (0, b""))
        at = (number - first) * QUEUE_ENTRY.size
        if not 0 <= at < len(data):
            data = self._source.read(topic, queue_id, number, _LOOK_AHEAD_ENTRIES)
            data = data[: len(data) - len(data) % QUEUE_ENTRY.size]
            if not data:
                return None
            self._chunks[topic, queue_id] = number, data
            self._chunks.move_to_end((topic, queue_id))
            if len(self._chunks) > _CHUNKS_MAX:
                self._chunks.popitem(last=False)
            at = 0
        log_offset, size, code = QUEUE_ENTRY.unpack_from(data, at)
        return log_offset, size, code

    # -- entries without a record ------------------------------------------------------------------------------------------

    def find_orphans(self, log: LogReader) -> None:
        for (topic, queue_id), queue in sorted(self._queues.items()):
            if queue.matched != queue.end - queue.low:
                self._find_orphans(log, topic, queue_id, queue)

    def _find_orphans(self, log: LogReader, topic: str, queue_id: int, queue: _Queue) -> None:
        """Report the entries of this queue that have no record."""
        place, before = f"{topic}/{queue_id}", -1
        number = queue.low
        while number < queue.end:
            data = self._source.read(topic, queue_id, number, min(512, queue.end - number))
            if not data:
                self._report.add(
                    Kind.QUEUE, place, number, f"a file is missing: entries up to {queue.end} are expected"
                )
                return
            for log_offset, size, _code in QUEUE_ENTRY.iter_unpack(data):
                why = _why_not(log, topic, queue_id, number, log_offset, size)
                if why is None and log_offset <= before:
                    why = f"it points to log offset {log_offset}, but the previous entry to {before}"
                if why is not None and number not in queue.wrong:
                    self._report.add(Kind.QUEUE, place, number, why)
                before = log_offset
                number += 1


def _why_not(log: LogReader, topic: str, queue_id: int, number: int, log_offset: int, size: int) -> str | None:
    if size == FILLER_BYTES or size <= 0:
        return f"an entry without a record ({size} bytes at {log_offset}) among others"
    try:
        found = log.record(log_offset)
    except RecordError as error:
        return f"there is no valid record at log offset {log_offset}: {error}"
    record = found.record
    if not is_message(record, topic, queue_id, number):
        return f"at log offset {log_offset} there is message {record.queue_offset} of {record.topic}/{record.queue_id}"
    return None  # anything else was reported when the record was checked
