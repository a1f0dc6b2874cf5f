"""Repair queue entries that do not lead to their message: the correct entry is found in the log.

Entries of a queue are in log order, so the record of message n lies between those of its neighbours, perhaps with a lot of log
between them. A search on behalf of a waiting client is limited by a `BoundedRead` and yields to other work through `pace`. A search
that was ended early proves nothing: the record may exist.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kappamq.native.layout import ENTRY
from kappamq.protocol.names import LMQ_PREFIX, SCHEDULE_TOPIC
from kappamq.protocol.records import properties
from kappamq.protocol.records.record import Record, RecordError
from kappamq.protocol.records.tags import tag_code
from kappamq.protocol.records.view import FRONT_BYTES, Front
from kappamq.store.log.log_reader import Found, LogReader, Pread

ReadEntry = Callable[[int], tuple[int, int, int] | None]
"""Number of a message -> (log offset, record bytes, tag code), None if there is no entry."""


class SearchEnded(Exception):
    """The search has reached its limit, or its result is no longer needed."""


class BoundedRead:
    """Reads from files until `bytes_max` have been read, or `is_stopped` returns true; then raises SearchEnded."""

    def __init__(self, pread: Pread, bytes_max: int, is_stopped: Callable[[], bool]) -> None:
        self._pread = pread
        self._left = bytes_max
        self._is_stopped = is_stopped

    def pread(self, fd: int, count: int, position: int) -> bytes:
        if self._left <= 0 or self._is_stopped():
            raise SearchEnded
        data = self._pread(fd, count, position)
        self._left -= len(data)
        return data


def is_message(record: Record, topic: str, queue_id: int, number: int) -> bool:
    if topic.startswith(LMQ_PREFIX):
        return True  # such a queue lists messages of other topics
    return (record.topic, record.queue_id, record.queue_offset) == (topic, queue_id, number)


def due_ms(record: Record, names: dict[str, str], delays_ms: Sequence[int]) -> int | None:
    """When the message is due: the schedule topic keeps it in place of the tag's hash. None for other records."""
    level = names.get(properties.DELAY)
    if record.topic != SCHEDULE_TOPIC or not level:
        return None
    number = int(level) if level.isascii() and level.isdigit() and len(level) <= 9 else 0
    delay = delays_ms[min(number, len(delays_ms)) - 1] if delays_ms and number else 1000
    return record.stored_ms + delay


def entry_of(found: Found, delays_ms: Sequence[int]) -> bytes:
    """The entry that belongs to a record."""
    names = found.record.property_map()
    due = due_ms(found.record, names, delays_ms)
    return ENTRY.pack(found.offset, found.size, tag_code(names.get(properties.TAGS)) if due is None else due)


def find_record(
    log: LogReader,
    topic: str,
    queue_id: int,
    number: int,
    bounds: tuple[int, int],
    log_end: int,
    read_entry: ReadEntry,
    pace: Callable[[], object] = lambda: None,
) -> Found | int:
    """The record of message `number` of a queue that holds the messages of `bounds`; if the log has no good one, the number of the
    next message that it has, or the queue's end.

    Tries the place that the entry names, then the same with one bit flipped. Otherwise reads the log between the nearest good
    neighbours, and calls `pace` after each record."""
    low, end = bounds
    entry = read_entry(number)
    if entry is not None:
        found = _near_entry(log, topic, queue_id, number, entry, log_end)
        if found is not None:
            return found

    def neighbour(step: int) -> Found | None:
        """The nearest entry that leads to its message, in doubling steps: bad entries often come together."""
        while low <= number + step < end:
            entry = read_entry(number + step)
            if entry is not None and entry[1] > 0:
                try:
                    found = log.record(entry[0])
                except (RecordError, OSError):
                    found = None
                if found is not None and is_message(found.record, topic, queue_id, number + step):
                    return found
            step *= 2
        return None

    below, above = neighbour(-1), neighbour(1)
    start = log.min if below is None else below.offset + below.size
    stop = log_end if above is None else above.offset
    behind = end if above is None else above.record.queue_offset
    for item in log.scan(start, stop, thorough=True):
        pace()
        if not isinstance(item, Found) or (item.record.topic, item.record.queue_id) != (topic, queue_id):
            continue
        if item.record.queue_offset == number:
            return item
        if item.record.queue_offset > number:
            return min(behind, item.record.queue_offset)
    return max(number + 1, behind)


def _near_entry(
    log: LogReader, topic: str, queue_id: int, number: int, entry: tuple[int, int, int], log_end: int
) -> Found | int | None:
    """The record, if the entry leads to it or has one flipped bit; number + 1, if the entry is right and its record is damaged;
    otherwise None."""
    log_offset, size, _code = entry
    for place in (log_offset, *(log_offset ^ 1 << bit for bit in range(log_end.bit_length()))):
        if not log.min <= place < log_end:
            continue
        try:
            found = log.record(place)
        except RecordError:
            front = Front(log.read(place, FRONT_BYTES)) if place == log_offset else None
            if front and front.is_record and front.size == size:
                return number + 1
            continue
        record = found.record
        if (record.topic, record.queue_id, record.queue_offset) == (topic, queue_id, number):
            return found
    return None
