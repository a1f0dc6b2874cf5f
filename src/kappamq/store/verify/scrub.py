"""One pass of the scrub: compares data that must agree, in small steps, while a broker is using the store.

A pass covers the files beside the log, the log with queues and key index, and the timer files. It reads the files like any other
read-only process (reader.py), and only records whose entries and keys are already in files. Its findings go into its report. The
caller has each problem confirmed and repaired by the thread that writes these files.

The position of a pass survives a restart, so that a pass over terabytes need not start over.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from kappamq.store.files import Files
from kappamq.store.log.log_reader import Damage, LogReader
from kappamq.store.log.pread_around import PreadAround
from kappamq.store.message_store import MessageStore
from kappamq.store.verify.config import check_position, snapshot_steps
from kappamq.store.verify.index import IndexCheck
from kappamq.store.verify.queues import DeletedBelow, QueueCheck, unknown
from kappamq.store.verify.report import Report
from kappamq.store.verify.timers import timer_steps
from kappamq.store.verify.verify import check_crc, is_half, key_hashes, wants_entry

_FILE_BYTES_MAX = 4096
_SMALL_FILES_BYTES = 64 << 10  # the nominal cost of checking the files beside the log
_PROBLEMS_MAX = 1000


@dataclass(slots=True)
class ScrubPosition:
    """The position of the pass, and the time of the last complete one."""

    log_offset: int = 0  # records below it have been checked
    running: bool = False  # a pass has started and is not complete
    passes: int = 0  # number of complete passes
    finished_ms: int = 0  # when the last one was completed

    @classmethod
    def load(cls, path: Path, files: Files) -> ScrubPosition:
        """Read the saved position; return a new one if there is none or it is invalid, so that a pass starts over."""
        try:
            fd = files.open(path, writable=False)
        except OSError:
            return cls()
        try:
            values = json.loads(files.pread(fd, _FILE_BYTES_MAX, 0))
            crc = values.pop("crc")
            if crc == _crc(values):
                return cls(**values)
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            pass
        finally:
            files.close(fd)
        return cls()

    def save(self, path: Path, files: Files) -> None:
        """Replace the file. Not synced: after a power failure an older position only costs time."""
        values = asdict(self)
        aside = path.with_name(path.name + ".tmp")
        fd = files.open(aside, create=True)
        try:
            files.truncate(fd, 0)
            files.pwrite(fd, json.dumps({**values, "crc": _crc(values)}).encode(), 0)
        finally:
            files.close(fd)
        files.rename(aside, path)


class Scrub:
    """One pass. For one thread at a time. The caller must take the findings out of the report before it is full."""

    def __init__(self, store: MessageStore, position: ScrubPosition, deleted_below: DeletedBelow = unknown) -> None:
        self._store = store
        self._deleted_below = deleted_below
        self.position = position
        self.report = Report(store.config.root, _PROBLEMS_MAX)
        self._files = store.files
        self._around = PreadAround(store.files)
        self.log = LogReader(store.log.folder, store.files, store.config.segment_bytes, self._around.pread)

    def steps(self) -> Iterator[int]:
        """Run the pass in short steps; each yields how many bytes it has read."""
        store, root = self._store, self._store.config.root
        known = store.derived.noted
        self.report.log_min, self.report.log_end = store.log.min, known.dispatched
        yield from snapshot_steps(root, lambda: store.log.end, self.report, self._files)
        check_position(root, self.report, self._files, lambda position: True)
        yield _SMALL_FILES_BYTES
        yield from self._log(known.dispatched, known.index)
        yield from timer_steps(root, self.log, self.report, self._files, lambda: store.clock_steps)

    def _log(self, dispatched: int, indexed: int) -> Iterator[int]:
        store, report = self._store, self.report
        start = max(self.position.log_offset, store.log.min)
        queues = QueueCheck(self, dispatched, report, store.kernel.delays_ms)
        keys = IndexCheck(
            *(
                store.config.root / "index",
                store.config.index_slots,
                store.config.index_entries,
                indexed,
                report,
                self._files,
            ),
            start=start,
            on_disk=store.index.on_disk,
            stored_ms=self._stored_ms,
            stop=indexed,
        )
        for item in self.log.scan(start, dispatched, thorough=True):
            if isinstance(item, Damage):
                if item.start >= dispatched:
                    break
                if item.tail:  # no valid record follows, although the written part of the log goes on
                    item = replace(item, stop=dispatched, tail=False)
                report.add_damage(item)
                queues.forget_numbers()
                yield item.stop - item.start
                continue
            if item.offset >= dispatched:
                break
            if self.position.log_offset < self.log.min:
                queues.forget_numbers()  # retention has deleted files
            check_crc(self.log, item, report)
            names = item.record.property_map()
            if wants_entry(item.record):
                queues.record(item, names)
            if item.offset < indexed:
                keys.expect(
                    item.offset, key_hashes(item.record, names), is_half(item.record), stored_ms=item.record.stored_ms
                )
            report.records += 1
            self.position.log_offset = item.offset + item.size
            yield item.size
            yield from keys.check_files()
        yield from keys.finish()

    # -- entries, for the queues' check --------------------------------------------------------------------------------------

    def bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        low, _end, _next, stored = self._store.kernel.queue_state(topic, queue_id)
        return low, stored

    def read(self, topic: str, queue_id: int, first: int, count: int) -> bytes:
        try:
            return self._store.queues.read(topic, queue_id, first, count)
        except OSError:
            return b""  # as if there were none: the right entry is then written again

    def deleted_below(self, topic: str, queue_id: int) -> int | None:
        return self._deleted_below(topic, queue_id)

    def _stored_ms(self, log_offset: int) -> int | None:
        found = self._store.decoded(log_offset)
        return None if found is None else found.stored_ms

    @property
    def progress(self) -> float:
        """The fraction of the log that has been checked."""
        low, end = self._store.log.min, self._store.marks.dispatched.offset
        return 1.0 if end <= low else min(1.0, max(0.0, (self.position.log_offset - low) / (end - low)))

    def close(self) -> None:
        self.log.close()


def _crc(values: dict[str, object]) -> int:
    return zlib.crc32(json.dumps(values, sort_keys=True).encode())
