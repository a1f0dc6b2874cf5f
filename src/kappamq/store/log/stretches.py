"""Cut the log into stretches that can be read in parallel, each from the beginning of a record to the beginning of another.

Boundaries come from queue entries and file starts, never from bytes that look like a record: a body may hold any bytes, even a
whole record with the right offset. An entry may be damaged while the log is not, so a boundary counts only if the log has a record
there.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise

from kappamq.protocol.records.entries import QUEUE_ENTRY
from kappamq.protocol.records.view import FRONT_BYTES, Front
from kappamq.store.checkpoint import Checkpoint
from kappamq.store.files import Files
from kappamq.store.lock import AbortFile
from kappamq.store.position import Position
from kappamq.store.reader import QueueRange, StoreReader

_WITNESSES = 8
"""Queues in which boundaries are searched: the longest ones have enough of them."""
_TRIES = 16
"""Damaged entries that are skipped before the search gives up, if another boundary is known."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Bytes [start, stop) of the log. It holds the records that begin in it."""

    start: int
    stop: int


class Stretches:
    """Where the log of a store begins and ends for a reader, and where it may be cut."""

    def __init__(self, reader: StoreReader, files: Files | None = None) -> None:
        self._reader = reader
        self._files = files or Files()
        self._queues: list[QueueRange] | None = None

    def end(self) -> int:
        """How far the log may be read: the visible offset of a running broker, else the end that a scan finds. Damage is not the
        end if queues or checkpoint know of records behind it: the reader reaches the damage and reports it."""
        position, _why = Position.load(self._reader.root / "kappamq.position", self._files)
        checkpoint = Checkpoint.load(self._reader.root / "checkpoint", self._files)
        if position is None or not position.wrote(checkpoint.encode()):
            return self._behind_damage(self._reader.log.end(), self._newest_known(), checkpoint.physic_ms)
        if self._is_running():
            return position.dispatched
        end = max(position.dispatched, self._reader.log.end(position.dispatched))
        return end if end >= position.flushed else self._behind_damage(end, position.flushed, 0)

    def _behind_damage(self, end: int, known: int, known_ms: int) -> int:
        """Whether a scan that stopped at `end` met damage or the end of the log: records that begin below `known`, or were stored up
        to `known_ms`, were certainly written. Good records beyond that may belong to a tail that a Java broker truncated."""
        log = self._reader.log
        while (resumed := log.next_good(end + 1)) is not None:
            if resumed >= known and log.record(resumed).record.stored_ms > known_ms:
                break
            end = log.end(resumed)
        return end

    def _newest_known(self) -> int:
        """The end of the last record that any queue refers to."""
        newest = 0
        for queue in self._known():
            for _number, log_offset, size, _code in self._reader.entries(
                queue.topic, queue.queue_id, max(queue.min, queue.max - 1), queue.max
            ):
                newest = max(newest, log_offset + size)
        return newest

    def cut(self, stop: int, stretch_bytes: int) -> list[Stretch]:
        """Stretches of about this size, in order, from the first byte that still exists to `stop`."""
        log = self._reader.log
        log.refresh()
        cuts = [log.min]
        while cuts[-1] + stretch_bytes < stop:
            at = self.next_boundary(cuts[-1] + stretch_bytes, all_queues=False)
            if at is None or at >= stop:
                break
            cuts.append(at)
        cuts.append(stop)
        return [Stretch(low, high) for low, high in pairwise(cuts) if low < high]

    def next_boundary(self, offset: int, *, all_queues: bool = True) -> int | None:
        """The first known beginning of a record at or behind `offset`; None if none is known."""
        log = self._reader.log
        starts = log.starts
        place = bisect_right(starts, offset - 1)
        found = [starts[place]] if place < len(starts) else []
        for queue in self._known() if all_queues else self._known()[:_WITNESSES]:
            at = self._entry_from(queue, offset, min(found, default=log.limit))
            if at is not None:
                found.append(at)
        return min(found, default=None)

    def _entry_from(self, queue: QueueRange, offset: int, known: int) -> int | None:
        """The first log offset from `offset` on that an entry of this queue names and at which a record begins. `known` is a
        boundary that was found in another queue: the search ends there."""
        high, found = queue.max, []
        for _ in range(_TRIES):
            first = self._search(queue, queue.min, high, offset)
            at = self._confirmed(queue, first, high, offset, known)
            if at is not None:
                found.append(at)
            before = self._log_offset(queue, first - 1) if first > queue.min else None
            if before is None or self._begins_record(before):
                break
            high = first - 1  # if the offset of that entry is too small, it hides earlier entries
        return min(found, default=None)

    def _confirmed(self, queue: QueueRange, number: int, stop: int, offset: int, known: int) -> int | None:
        """The first log offset from `offset` on that one of the entries [number, stop) names and the log confirms."""
        tries = _TRIES
        while number < stop and tries:
            at = self._log_offset(queue, number)
            if at is None:
                break
            if at < offset:  # a previous entry with too large an offset misled the search
                number = self._search(queue, number + 1, stop, offset)
            elif self._begins_record(at):
                return at
            else:
                number += 1
                tries -= at >= known
        return None

    def _search(self, queue: QueueRange, low: int, high: int, offset: int) -> int:
        """The first number in [low, high) whose entry names `offset` or more; `high` if there is none."""
        while low < high:
            middle = (low + high) // 2
            at = self._log_offset(queue, middle)
            if at is not None and at < offset:
                low = middle + 1
            else:
                high = middle
        return low

    def _log_offset(self, queue: QueueRange, number: int) -> int | None:
        data = self._reader.queue_files.read(queue.topic, queue.queue_id, number, 1)
        return QUEUE_ENTRY.unpack(data)[0] if len(data) == QUEUE_ENTRY.size else None

    def _begins_record(self, offset: int) -> bool:
        """Whether the log has a record header there: the magic, a possible size, and the right log offset."""
        log = self._reader.log
        front = Front(log.read(offset, FRONT_BYTES))
        fits = front.size <= log.segment_bytes - offset % log.segment_bytes
        return front.is_record and fits and front.log_offset == offset

    def _known(self) -> list[QueueRange]:
        """The queues, the longest first."""
        if self._queues is None:
            self._queues = sorted(self._reader.queues(), key=lambda queue: -queue.count)
        return self._queues

    def _is_running(self) -> bool:
        """Whether the process that opened the store is alive. After a crash its process id may belong to another process: then less is
        read, never more than a broker would show."""
        pid = AbortFile(self._reader.root, self._files).pid()
        if pid is None:
            return False
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        return True
