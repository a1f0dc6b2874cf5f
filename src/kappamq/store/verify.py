"""Check a store: every record, every queue entry, every key. Reads it like any other looker-on and changes nothing.

One pass over the log holds each record against its queue entry and its index entries, which lie in log order too. What
queues or index hold beyond that (entries that lead to no record) shows in the counts and is then looked for. Computed
here from the record's text, with none of the code that wrote the files.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from kappamq.errors import ProtocolError
from kappamq.native.layout import FILLER_BYTES
from kappamq.protocol import properties
from kappamq.protocol import record as records
from kappamq.protocol.entries import QUEUE_ENTRY, key_hash
from kappamq.protocol.names import LMQ_PREFIX, SCHEDULE_TOPIC
from kappamq.protocol.record import RecordError
from kappamq.protocol.tags import keys_of, tag_code
from kappamq.store import snapshots
from kappamq.store.files import Files
from kappamq.store.lock import AbortFile
from kappamq.store.log_reader import Damage, Found
from kappamq.store.position import Position
from kappamq.store.reader import FOREVER, StoreReader
from kappamq.store.verify_index import IndexCheck
from kappamq.store.verify_report import Kind, Problem, Report

__all__ = ["Kind", "Problem", "Progress", "Report", "verify"]

Progress = Callable[[int, int], None]
"""Called now and then with (bytes of the log that are done, bytes in all)."""

_PROGRESS_BYTES = 8 << 20
_LOOK_AHEAD_ENTRIES = 64
_EXTENDED_CODE = -(1 << 31) - 1  # tag codes from here down are addresses in a file of Java's queue extension


def verify(
    root: Path | str,
    *,
    index_slots: int = 5_000_000,
    index_entries: int = 20_000_000,
    problems_max: int = 100,
    progress: Progress | None = None,
    files: Files | None = None,
) -> Report:
    """Check the store at `root`. Raises StoreError if it cannot be read as a store at all."""
    with StoreReader(root, index_slots=index_slots, index_entries=index_entries, files=files) as reader:
        return _Verifier(reader, Report(reader.root, problems_max), progress or _silent, files or Files()).run()


def _silent(_done: int, _total: int) -> None:
    pass


class _Queue:
    """One queue while the log goes by."""

    __slots__ = ("chunk", "chunk_first", "end", "low", "matched", "next", "wrong")

    def __init__(self, low: int, end: int) -> None:
        self.low = low
        self.end = end
        self.matched = 0  # entries in [low, end) that a record bears out
        self.wrong: set[int] = set()  # entries that were found wrong already
        self.next: int | None = None  # the number that the queue's next record must have
        self.chunk: list[tuple[int, int, int]] = []
        self.chunk_first = 0


class _Verifier:
    def __init__(self, reader: StoreReader, report: Report, progress: Progress, files: Files) -> None:
        self.reader = reader
        self.report = report
        self.progress = progress
        self.files = files
        self.queues: dict[tuple[str, int], _Queue] = {}
        position, _why = Position.load(reader.root / "kappamq.position", files)
        if position is not None:
            self.dispatched, indexed = position.dispatched, position.index
        else:
            # A Java broker that stopped in good order has dispatched everything; one that died says nothing.
            clean = not AbortFile(reader.root, files).exists()
            self.dispatched, indexed = FOREVER if clean else 0, 0
        self.keys = IndexCheck(reader.root / "index", reader.index_slots, reader.index_entries, indexed, report, files)

    def run(self) -> Report:
        report, log = self.report, self.reader.log
        report.log_min = report.log_end = log.min
        # After the position and before the log: a broker that runs meanwhile only adds what need not be known yet.
        for found in self.reader.queues():
            self.queues[found.topic, found.queue_id] = _Queue(found.min, found.max)
            report.queues += 1
            report.queue_entries += found.count
        self._log()
        for (topic, queue_id), queue in sorted(self.queues.items()):
            if queue.matched != queue.end - queue.low:
                self._entries(topic, queue_id, queue)
        self.keys.finish()
        self._config()
        return report

    # -- the log, and what must exist for each record ----------------------------------------------------------------------

    def _log(self) -> None:
        report, log = self.report, self.reader.log
        told = log.min
        total = max(log.limit - log.min, 1)
        for item in log.scan(thorough=True):
            if isinstance(item, Damage):
                if item.tail:
                    report.torn_tail = f"at {item.start}: {item.why}"
                    break
                report.damaged_bytes += item.stop - item.start
                report.add(
                    Kind.LOG, "commitlog", item.start, f"{item.stop - item.start} bytes are no records: {item.why}"
                )
                continue
            report.records += 1
            report.record_bytes += item.size
            report.log_end = item.offset + item.size
            report.first_ms = report.first_ms or item.record.stored_ms
            report.last_ms = max(report.last_ms, item.record.stored_ms)
            self._record(item)
            if item.offset - told >= _PROGRESS_BYTES:
                told = item.offset
                self.progress(told - log.min, total)
        self.progress(total, total)

    def _record(self, item: Found) -> None:
        record = item.record
        names = record.property_map()
        transaction = record.sys_flag & records.SYS_TRANSACTION
        if (
            transaction not in (records.SYS_PREPARED, records.SYS_ROLLED_BACK)
            and not record.sys_flag & records.SYS_INNER_BATCH
        ):
            self._queue_of(item, names)
        hashes = []
        if transaction != records.SYS_ROLLED_BACK:
            keys = [names[properties.UNIQUE_KEY]] if names.get(properties.UNIQUE_KEY) else []
            hashes = [key_hash(record.topic, key) for key in keys + keys_of(names.get(properties.KEYS))]
        self.keys.expect(item.offset, hashes, optional=transaction == records.SYS_PREPARED)

    def _queue_of(self, item: Found, names: dict[str, str]) -> None:
        record = item.record
        queue = self.queues.get((record.topic, record.queue_id))
        if queue is None:
            queue = self.queues[record.topic, record.queue_id] = _Queue(0, 0)
        place, number = f"{record.topic}/{record.queue_id}", record.queue_offset
        if queue.next is not None and number != queue.next:
            self.report.add(
                Kind.LOG,
                place,
                item.offset,
                f"the record says it is message {number}, message {queue.next} was to come",
            )
        queue.next = number + 1
        if number >= queue.end:
            if item.offset >= self.dispatched:
                self.report.undispatched += 1
            elif queue.end == 0:
                self.report.forgotten += 1
            else:
                self.report.add(Kind.QUEUE, place, number, f"no entry for the record at {item.offset} of the log")
            return
        if number < queue.low:
            if self._begins_anew(record.topic, record.queue_id, queue):
                self.report.forgotten += 1
            else:
                self.report.add(Kind.QUEUE, place, number, f"no entry for the record at {item.offset} of the log")
            return
        log_offset, size, code = self._entry(record.topic, record.queue_id, queue, number)
        if (log_offset, size) != (item.offset, item.size):
            self.report.add(
                Kind.QUEUE,
                place,
                number,
                f"the entry says {size} bytes at {log_offset}, the record has {item.size} bytes at {item.offset}",
            )
            if len(queue.wrong) < self.report.problems_max:
                queue.wrong.add(number)
            return
        queue.matched += 1
        wanted = tag_code(names.get(properties.TAGS))
        # The schedule topic keeps the time of delivery there, and Java's queue extension an address of its own.
        right = code == wanted or code <= _EXTENDED_CODE
        if record.topic == SCHEDULE_TOPIC and properties.DELAY in names:
            right = code >= record.stored_ms
        if not right:
            self.report.add(Kind.QUEUE, place, number, f"tag code {code}, but the record's tag has {wanted}")

    def _begins_anew(self, topic: str, queue_id: int, queue: _Queue) -> bool:
        """Whether the queue was deleted and made again: then filler stands where its older messages were."""
        data = self.reader.queue_files.read(topic, queue_id, queue.low - 1, 1)
        return len(data) == QUEUE_ENTRY.size and QUEUE_ENTRY.unpack(data)[1] == FILLER_BYTES

    def _entry(self, topic: str, queue_id: int, queue: _Queue, number: int) -> tuple[int, int, int]:
        at = number - queue.chunk_first
        if not 0 <= at < len(queue.chunk):
            data = self.reader.queue_files.read(topic, queue_id, number, _LOOK_AHEAD_ENTRIES)
            queue.chunk, queue.chunk_first, at = list(QUEUE_ENTRY.iter_unpack(data)), number, 0
        return queue.chunk[at] if queue.chunk else (0, 0, 0)

    # -- entries that no record asked for ----------------------------------------------------------------------------------

    def _entries(self, topic: str, queue_id: int, queue: _Queue) -> None:
        """Some entry of this queue leads nowhere: say which."""
        place, before = f"{topic}/{queue_id}", -1
        number = queue.low
        while number < queue.end:
            data = self.reader.queue_files.read(topic, queue_id, number, min(512, queue.end - number))
            if not data:
                self.report.add(Kind.QUEUE, place, number, f"a file is missing: entries up to {queue.end} were to come")
                return
            for log_offset, size, _code in QUEUE_ENTRY.iter_unpack(data):
                why = self._why_not(topic, queue_id, number, log_offset, size)
                if why is None and log_offset <= before:
                    why = f"points to {log_offset} of the log, the entry before it to {before}"
                if why is not None and number not in queue.wrong:
                    self.report.add(Kind.QUEUE, place, number, why)
                before = log_offset
                number += 1

    def _why_not(self, topic: str, queue_id: int, number: int, log_offset: int, size: int) -> str | None:
        if size == FILLER_BYTES or size <= 0:
            return f"an entry without a record ({size} bytes at {log_offset}) among others"
        try:
            found = self.reader.log.record(log_offset)
        except RecordError as error:
            return f"no good record at {log_offset} of the log: {error}"
        record = found.record
        if topic.startswith(LMQ_PREFIX):
            return None  # such a queue lists messages of other topics
        if (record.topic, record.queue_id, record.queue_offset) != (topic, queue_id, number):
            return f"at {log_offset} lies message {record.queue_offset} of {record.topic}/{record.queue_id}"
        return None  # what else is wrong was said when the record went by

    def _config(self) -> None:
        folder = self.reader.root / "config"
        for name in self.files.list(folder):
            if not name.endswith(".json"):
                continue
            try:
                found = snapshots.decode((folder / name).read_bytes())
            except ProtocolError as error:
                self.report.add(Kind.CONFIG, name, 0, str(error))
                continue
            except OSError as error:
                self.report.add(Kind.CONFIG, name, 0, f"cannot be read: {error.strerror}")
                continue
            if found.log_offset is not None and found.log_offset > max(self.report.log_end, self.reader.log.min):
                self.report.add(
                    Kind.CONFIG, name, found.log_offset, f"speaks of a log that ends behind {self.report.log_end}"
                )
