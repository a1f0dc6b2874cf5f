"""What can be read from an open store: records by log offset, entries by queue offset, messages by time or key."""

from __future__ import annotations

import logging

from kappamq.errors import ProtocolError
from kappamq.native.interface import Kernel
from kappamq.native.layout import ENTRY, PullVerdict, QueueState
from kappamq.protocol.records.record import Record, decode
from kappamq.protocol.records.view import FRONT_BYTES, Front
from kappamq.store.files import Files
from kappamq.store.index.index_file import IndexFiles
from kappamq.store.log.clock_steps import ClockSteps, likely_ms
from kappamq.store.log.commit_log import CommitLog
from kappamq.store.log.marks import Marks
from kappamq.store.queues.queues import ANY_FILLER, QueueFiles

log = logging.getLogger(__name__)


class Finding:
    """The part of a `MessageStore` that only reads."""

    files: Files
    kernel: Kernel
    log: CommitLog
    queues: QueueFiles
    index: IndexFiles
    marks: Marks
    clock_steps: ClockSteps

    def record(self, log_offset: int) -> bytes | None:
        """The whole record at `log_offset`; None if there is none. May wait for the disk."""
        found = self.found(log_offset)
        return None if found is None else found[0]

    def decoded(self, log_offset: int) -> Record | None:
        """The same record, decoded."""
        found = self.found(log_offset)
        return None if found is None else found[1]

    def found(self, log_offset: int) -> tuple[bytes, Record] | None:
        """The same record, as bytes and decoded."""
        if not self.log.min <= log_offset < self.marks.dispatched.offset:
            return None
        size = Front(self.log.slice(log_offset, FRONT_BYTES)).size
        if not 0 < size <= self.log.segment_bytes:
            return None
        data = bytes(self.log.slice(log_offset, size))
        try:
            found = decode(data, check_crc=True)
        except ProtocolError:
            return None
        return (data, found) if found.log_offset == log_offset else None

    def entry(self, topic: str, queue_id: int, offset: int) -> tuple[int, int, int] | None:
        """(log offset, record bytes, tag code) of a message in its queue. May wait for the disk."""
        low, end, _next, _stored = self.kernel.queue_state(topic, queue_id)
        if not low <= offset < end:
            return None
        data = self.kernel.tail_entries(topic, queue_id, offset, 1) or self.queues.read(topic, queue_id, offset, 1)
        if len(data) < ENTRY.size:
            return None
        log_offset, size, code = ENTRY.unpack(data)
        return (log_offset, size, code) if size > 0 and (log_offset, size) != ANY_FILLER else None

    def first_at_or_behind(self, topic: str, queue_id: int, log_offset: int) -> int:
        """The first message of a queue whose record lies at or behind `log_offset`. May wait for the disk."""
        first, high, _next, _stored = self.kernel.queue_state(topic, queue_id)
        low = first
        while low < high:
            middle = (low + high) // 2
            found = self.entry(topic, queue_id, middle)
            if found is None:  # cannot be read now, so its target is unknown
                return int(first)
            if found[0] < log_offset:
                low = middle + 1
            else:
                high = middle
        return int(low)

    def store_ms(self, topic: str, queue_id: int, offset: int) -> int | None:
        """When message `offset` of a queue was stored; None if there is none. May wait for the disk."""
        found = self.entry(topic, queue_id, offset)
        if found is None:
            return None
        front = Front(self.log.slice(found[0], FRONT_BYTES))
        return front.stored_ms if front.is_whole else None

    def search(self, topic: str, queue_id: int, ms: int, upper: bool = False) -> int:
        """The first message stored at or after `ms`; with `upper`, the last stored at or before it. May wait for the disk.

        Times are those of the present clock, also for records that were stamped before the clock was set."""
        low, end, _next, _stored = self.kernel.queue_state(topic, queue_id)
        first, last = low, end

        def stored_at(offset: int) -> int | None:
            return self.corrected_ms(topic, queue_id, offset) if first <= offset < last else None

        while low < end:
            middle = (low + end) // 2
            stored = likely_ms(stored_at, middle)
            if stored is None or stored < ms or (upper and stored == ms):
                low = middle + 1
            else:
                end = middle
        return int(max(first, low - 1) if upper else min(low, last))

    def corrected_ms(self, topic: str, queue_id: int, offset: int) -> int | None:
        """When message `offset` of a queue was stored, by the current clock; None if it is not there. May wait for the disk."""
        stored = self.store_ms(topic, queue_id, offset)
        if stored is None or not self.clock_steps:
            return stored
        found = self.entry(topic, queue_id, offset)
        return None if found is None else stored + self.clock_steps.shift_ms(found[0])

    def query(self, topic: str, key: str, count_max: int, begin_ms: int, end_ms: int) -> list[int]:
        """Log offsets of records that may have this key and were stored in [begin_ms, end_ms], newest first. For a worker."""

        def is_within(log_offset: int) -> bool:
            front = Front(self.log.slice(log_offset, FRONT_BYTES))
            return front.is_whole and self.clock_steps.within(log_offset, front.stored_ms, begin_ms, end_ms)

        within = is_within if self.clock_steps else None
        return self.index.query(topic, key, count_max, begin_ms, end_ms, within=within)

    # -- what the kernel has in memory -------------------------------------------------------------------------------------

    def queue_state(self, topic: str, queue_id: int) -> QueueState:
        return self.kernel.queue_state(topic, queue_id)

    def queue_ids(self, topic: str) -> list[int]:
        """The queues that have or had messages."""
        return self.kernel.queue_ids(topic)

    def tail_entries(self, topic: str, queue_id: int, first: int, count: int) -> bytes:
        """Entries of a queue that are in memory, from message `first` on; b"" if the first one is not."""
        return self.kernel.tail_entries(topic, queue_id, first, count)

    def fetch(self, topic: str, queue_id: int, first: int, count: int, *, warm: bool = False) -> PullVerdict:
        """Stored records of a queue from message `first` on, or why there are none (native/layout.py), as for a pull. `warm`: they have
        just been read, so it need not wait for the disk."""
        return self.kernel.fetch(topic, queue_id, first, count, warm)

    @property
    def append_offset(self) -> int:
        """The offset of the next append: behind everything that was appended, written or not."""
        return self.kernel.append_offset

    @property
    def hot_from(self) -> int:
        """The log from here on is assumed to be in memory."""
        return self.kernel.hot_from

    @property
    def put_count(self) -> int:
        """Records appended since the start."""
        return self.kernel.put_count

    @property
    def host(self) -> bytes:
        """This broker's address, as in records and offset ids."""
        return self.kernel.store_host

    # -- bytes of the log, for workers -------------------------------------------------------------------------------------

    def warm(self, log_offset: int, size: int) -> None:
        """Worker: read a range of the log into memory, so that the loop does not wait for the disk."""
        end = min(log_offset + size, self.log.end)
        while log_offset < end:
            at = log_offset % self.log.segment_bytes
            count = min(end - log_offset, self.log.segment_bytes - at)
            fd = self.log.fd_at(log_offset)
            if fd is not None:
                self.files.warm(fd, count, at)
                self.log.enter(log_offset, count)
            log_offset += count

    def pread(self, log_offset: int, size: int) -> bytes:
        """Worker: bytes of the log, up to the end of their file or of the log. b"" if they cannot be read."""
        place = log_offset % self.log.segment_bytes
        fd = self.log.fd_at(log_offset)
        size = min(size, self.log.segment_bytes - place, self.log.end - log_offset)
        try:
            return b"" if fd is None or size <= 0 else self.files.pread(fd, size, place)
        except OSError as error:
            log.error("the log cannot be read at %d: %s", log_offset, error)
            return b""
