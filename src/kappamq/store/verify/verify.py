"""Check a store: every record, queue entry and key, and the files beside them. Changes nothing.

One pass over the log compares each record with its queue entry and its index entries, which lie in log order too. The counts then
show whether queues or index have entries without a record, and only then are these searched for. The expected bytes are computed
from the decoded record, independently of the code that writes the files. A running broker's scrub does the same (scrub.py).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path

from kappamq.protocol.records import properties
from kappamq.protocol.records import record as records
from kappamq.protocol.records.entries import key_hash
from kappamq.protocol.records.tags import keys_of
from kappamq.store.files import Files
from kappamq.store.lock import AbortFile, StoreLock
from kappamq.store.log.log_reader import Damage, Found, LogReader
from kappamq.store.position import Position
from kappamq.store.reader import FOREVER, StoreReader
from kappamq.store.recovery import FINGERPRINT_BYTES
from kappamq.store.verify.config import check_position, check_snapshots
from kappamq.store.verify.index import IndexCheck
from kappamq.store.verify.queues import QueueCheck
from kappamq.store.verify.report import BytesFix, Kind, Problem, Report
from kappamq.store.verify.timers import check_timers

__all__ = ["Kind", "Problem", "Progress", "Report", "verify"]

Progress = Callable[[int, int], None]
"""Called from time to time with (bytes of the log that have been checked, total bytes)."""

_PROGRESS_BYTES = 8 << 20


def verify(
    root: Path | str,
    *,
    index_slots: int = 5_000_000,
    index_entries: int = 20_000_000,
    problems_max: int = 100,
    progress: Progress | None = None,
    files: Files | None = None,
) -> Report:
    """Check the store at `root`. Raises StoreError if there is no readable store."""
    with StoreReader(root, index_slots=index_slots, index_entries=index_entries, files=files) as reader:
        return _Verifier(reader, Report(reader.root, problems_max), progress or _silent, files or Files()).run()


def _silent(_done: int, _total: int) -> None:
    pass


def wants_entry(record: records.Record) -> bool:
    """Whether consumers can see a record, that is, whether it must have a queue entry."""
    transaction = record.sys_flag & records.SYS_TRANSACTION
    if transaction in (records.SYS_PREPARED, records.SYS_ROLLED_BACK):
        return False
    return not record.sys_flag & records.SYS_INNER_BATCH


def key_hashes(record: records.Record, names: dict[str, str]) -> list[int]:
    """The hashes under which a record is indexed."""
    if record.sys_flag & records.SYS_TRANSACTION == records.SYS_ROLLED_BACK:
        return []
    keys = [names[properties.UNIQUE_KEY]] if names.get(properties.UNIQUE_KEY) else []
    return [key_hash(record.topic, key) for key in keys + keys_of(names.get(properties.KEYS))]


def is_half(record: records.Record) -> bool:
    """Whether it is a half message: a Java broker may or may not have indexed it."""
    return record.sys_flag & records.SYS_TRANSACTION == records.SYS_PREPARED


def check_crc(log: LogReader, item: Found, report: Report) -> None:
    fix = log.damaged_crc(item)
    if fix is not None:
        report.add(Kind.LOG, "commitlog", item.offset, "the record's checksum is damaged", BytesFix(*fix))


class _Verifier:
    def __init__(self, reader: StoreReader, report: Report, progress: Progress, files: Files) -> None:
        self.reader = reader
        self.report = report
        self.progress = progress
        self.files = files
        position, _why = Position.load(reader.root / "kappamq.position", files)
        clean = not AbortFile(reader.root, files).exists()
        if position is not None:
            dispatched, indexed = position.dispatched, position.index
        else:
            # A Java broker that was stopped cleanly has dispatched everything; after a crash nothing is known.
            dispatched, indexed = FOREVER if clean else 0, 0
        self.is_running = StoreLock.holder(reader.root, files) is not None
        self.queues = QueueCheck(self, dispatched, report)
        self.keys = IndexCheck(
            reader.root / "index",
            reader.index_slots,
            reader.index_entries,
            indexed,
            report,
            files,
            stored_ms=self._stored_ms,
        )

    def run(self) -> Report:
        report, log = self.report, self.reader.log
        report.log_min = report.log_end = log.min
        # After the position file was read and before the log: a running broker only adds entries that are not required yet.
        for topic, queue_id in sorted(self.reader.queue_files.queues()):
            low, end = self.queues.add_queue(topic, queue_id)
            report.queues += 1
            report.queue_entries += end - low
        self._log()
        self.queues.find_orphans(log)
        for _ in self.keys.finish():
            pass
        check_snapshots(self.reader.root, self._log_end, report, self.files)
        check_position(self.reader.root, report, self.files, self._is_ours)
        if not self.is_running:
            steps = self.reader.clock_steps()
            check_timers(self.reader.root, log, report, self.files, lambda: steps)
        return report

    # -- entries, for the queues' check ------------------------------------------------------------------------------------

    def bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        found = self.reader.queue(topic, queue_id)
        return found.min, found.max

    def read(self, topic: str, queue_id: int, first: int, count: int) -> bytes:
        return self.reader.queue_files.read(topic, queue_id, first, count)

    def deleted_below(self, topic: str, queue_id: int) -> int | None:
        return None  # unknown: the log may contain deletions that are not in a snapshot yet

    # -- the log, and what must exist for each record ----------------------------------------------------------------------

    def _log(self) -> None:
        report, log = self.report, self.reader.log
        reported = log.min
        total = max(log.limit - log.min, 1)
        for item in log.scan(thorough=True):
            if isinstance(item, Damage):
                if item.tail:
                    report.torn_tail = f"at {item.start}: {item.why}"
                    break
                report.add_damage(item)
                self.queues.forget_numbers()
                continue
            report.records += 1
            report.record_bytes += item.size
            report.log_end = item.offset + item.size
            report.first_ms = report.first_ms or item.record.stored_ms
            report.last_ms = max(report.last_ms, item.record.stored_ms)
            self._record(item)
            if item.offset - reported >= _PROGRESS_BYTES:
                reported = item.offset
                self.progress(reported - log.min, total)
        self.progress(total, total)

    def _log_end(self) -> int:
        """Where the log ends now: a running broker has appended to it, and then written config files, since it was checked."""
        end = max(self.report.log_end, self.reader.log.min)
        return max(end, self.reader.log.end(end)) if self.is_running else end

    def _record(self, item: Found) -> None:
        check_crc(self.reader.log, item, self.report)
        names = item.record.property_map()
        if wants_entry(item.record):
            self.queues.record(item, names)
        self.keys.expect(
            item.offset, key_hashes(item.record, names), optional=is_half(item.record), stored_ms=item.record.stored_ms
        )
        for _ in self.keys.check_files():
            pass

    def _stored_ms(self, log_offset: int) -> int | None:
        found = self.reader.at(log_offset)
        return None if found is None else found.stored_ms

    def _is_ours(self, position: Position) -> bool:
        """Whether the log ends where and as the position file says, so that no other broker has written to it."""
        if self.is_running or position.dispatched != self.report.log_end:
            return False
        segment_bytes = self.reader.log.segment_bytes
        start = max(position.dispatched - FINGERPRINT_BYTES, position.dispatched - position.dispatched % segment_bytes)
        return zlib.crc32(self.reader.log.read(start, position.dispatched - start)) == position.last_crc
