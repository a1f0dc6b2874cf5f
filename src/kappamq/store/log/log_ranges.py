"""Read ranges of the log in parallel into queue entries and keys, with the same result as one sequential read.

A range begins at the start of a file or at bytes that look like a record. That is a guess, because a body may hold any bytes, and it
is verified afterwards: the reader of the range before must end exactly there (`Part.reached`). If it does not, the range is read
again from where that reader ended. Only the log is needed; queue files may be missing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from kappamq.errors import StoreError
from kappamq.native.interface import Kernel, KernelModule
from kappamq.native.layout import BATCH_NAME, SCAN_BLANK, SCAN_MORE
from kappamq.protocol.records.record import FIXED_BYTES
from kappamq.protocol.records.view import Front, fronts_in
from kappamq.store.files import Files
from kappamq.store.log.log_end import LogEnd, first_store_ms
from kappamq.store.log.log_reader import LogReader
from kappamq.store.log.stretches import Stretch

READ_BYTES: Final = 4 << 20
"""Small enough to stay in the processor's cache between the scan and the dispatch of the same bytes."""
_GUESS_BYTES: Final = 512 << 10
_RECORD_BYTES_MAX: Final = 64 << 20
_MORE_BYTES: Final = 64 << 10
_HEAD_BYTES: Final = 8
_FOREVER: Final = 1 << 62

QueueEntries = tuple[str, int, int, bytes | memoryview]
"""(topic, queue id, number of the first, entries)."""


@dataclass(slots=True)
class Part:
    """The result of reading a range."""

    start: int
    reached: int  # the first byte that was not read: the next range begins there
    records: int = 0
    is_end: bool = False  # the log ends at `reached`
    refused: str = ""  # damage that must not be skipped; then there are no entries
    damage: list[tuple[int, int]] = field(default_factory=list)  # bytes [from, to) that were skipped
    queues: list[QueueEntries] = field(default_factory=list)
    keys: bytes = b""  # as Kernel.take_index returns them

    def save(self, path: Path, aside: Path, files: Files) -> None:
        """Write it to `aside`, a path of this process alone, then rename it to `path`."""
        queues = [(topic, queue_id, first, len(entries)) for topic, queue_id, first, entries in self.queues]
        names = ("start", "reached", "records", "is_end", "refused", "damage")
        head = json.dumps({**{name: getattr(self, name) for name in names}, "queues": queues}).encode()
        data = [len(head).to_bytes(_HEAD_BYTES, "big"), head, *(entries for *_, entries in self.queues), self.keys]
        fd = files.open(aside, create=True)
        try:
            files.truncate(fd, 0)
            files.pwrite(fd, b"".join(data), 0)
        finally:
            files.close(fd)
        files.rename(aside, path)

    @classmethod
    def load(cls, path: Path, files: Files) -> Self:
        fd = files.open(path, writable=False)
        try:
            data = files.pread(fd, files.size(fd), 0)
        finally:
            files.close(fd)
        at = _HEAD_BYTES + int.from_bytes(data[:_HEAD_BYTES], "big")
        values: dict[str, Any] = json.loads(data[_HEAD_BYTES:at])
        view = memoryview(data)
        queues: list[QueueEntries] = []
        for topic, queue_id, first, size in values.pop("queues"):
            queues.append((topic, queue_id, first, view[at : at + size]))
            at += size
        damage = [(start, stop) for start, stop in values.pop("damage")]
        return cls(**values, damage=damage, queues=queues, keys=data[at:])


def cut(log: LogReader, stretch_bytes: int) -> list[Stretch]:
    """The log in ranges of about this size, in order. Each begins with a file or with what looks like a record."""
    found: list[Stretch] = []
    for first in log.starts:
        stop = first + log.segment_bytes
        begin, target = first, first + stretch_bytes
        while target < stop:
            at = _record_near(log, target)
            if at is not None and begin < at < stop:
                found.append(Stretch(begin, at))
                begin = at
                target = at + stretch_bytes
            else:
                target += max(stretch_bytes, _GUESS_BYTES - FIXED_BYTES)
        found.append(Stretch(begin, stop))
    return found


def _record_near(log: LogReader, target: int) -> int | None:
    """Where a record seems to begin shortly behind `target`; the first of a batch if there is one, because a batch is read whole."""
    data = log.read(target, _GUESS_BYTES)
    first = next(fronts_in(data, target), None)
    if first is None:
        return None
    at = first
    while (front := Front(data, at)).is_record and at + FIXED_BYTES <= len(data):
        if data.find(BATCH_NAME, at, at + front.size) >= 0:
            return target + at
        at += front.size
    return target + first


class RangeReader:
    """Reads ranges of one log with one kernel module."""

    def __init__(
        self,
        log: LogReader,
        end: LogEnd,
        module: KernelModule,
        *,
        skip_damage: bool = False,
        delays_ms: Sequence[int] = (),
        keys: bool = True,
    ) -> None:
        self._log = log
        self._end = end
        self._module = module
        self._skip_damage = skip_damage
        self._delays_ms = tuple(delays_ms)
        self._keys = keys

    def read(self, stretch: Stretch) -> Part:
        """Read every record, and every batch, that begins in the range. Raises StoreError on a read error."""
        part = Part(stretch.start, stretch.start)
        kernel = self._kernel()
        try:
            self._read(stretch, part, kernel)
        except OSError as error:
            raise StoreError(
                f"{self._log.folder}: the log cannot be read between {part.reached} and {stretch.stop}: {error.strerror or error}. "
                f"Check the disk; if bytes stay unreadable, restore the file from a copy"
            ) from error
        if not part.refused:
            part.queues = list(kernel.take_entries(_FOREVER))
            part.keys = kernel.take_index()
        return part

    def _kernel(self) -> Kernel:
        """A new one: its queues begin with the first message that it dispatches."""
        kernel = self._module.Kernel(
            segment_bytes=self._log.segment_bytes,
            store_host=bytes(8),
            region="",
            cluster="",
            trace_on=False,
            tail_crc=False,
            message_bytes_max=1,
            frame_bytes_max=1 << 20,
            header_bytes_max=1 << 16,
            pending_bytes_max=1 << 20,
            transfer_bytes_max=1 << 20,
            transfer_count_max=1,
        )
        kernel.delays_ms = self._delays_ms
        kernel.index_enabled = self._keys
        return kernel

    def _read(self, stretch: Stretch, part: Part, kernel: Kernel) -> None:
        log, scan = self._log, self._module.scan
        more = 0
        while (at := part.reached) < stretch.stop:
            file_end = at - at % log.segment_bytes + log.segment_bytes
            # Stop at the end of the range so that the next one is met at its beginning, unless a record or batch extends beyond it.
            wanted = min(max(min(READ_BYTES, stretch.stop - at), more), file_end - at)
            data = log.read(at, wanted)
            good, why, records, _ms = scan(data, at, True)
            if not good and why == SCAN_MORE and len(data) == wanted < file_end - at:
                more = max(wanted, _MORE_BYTES) * 4
                continue
            more = 0
            if good:
                eaten = kernel.dispatch(memoryview(data)[:good], at)[0]
                assert eaten == good, f"dispatch stopped at {at + eaten} in records that were checked"
                part.records += records
                part.reached = at + good
            elif why == SCAN_BLANK:
                part.reached = file_end
            elif not self._pass_over(at, part):
                return
        if part.reached >= log.limit:
            part.is_end = True

    def _pass_over(self, at: int, part: Part) -> bool:
        """Whether reading continues behind `at`, where there is no good record. Decides as recovery does."""
        end, log = self._end, self._log
        resumed = None if end.is_end(at) else log.next_good(at + 1, is_good=self._is_good)
        if resumed is None and at < end.flushed:
            part.refused = (
                f"the log was flushed up to {end.flushed} but ends at {at}: {end.flushed - at} bytes are missing. Restore them from a "
                f"copy; or, to continue without them, delete kappamq.position in the data directory (then the log ends at {at})"
            )
            return False
        if resumed is None or not end.is_vouched_for(first_store_ms(log, resumed)):
            part.is_end = True
            return False
        if not self._skip_damage:
            part.refused = (
                f"the log is damaged at {at}: {resumed - at} bytes up to {resumed} are not records, good records follow. Restore the "
                f"file from a copy; or continue without those bytes (skip_damage, --skip-damage): the log itself is not changed"
            )
            return False
        if part.damage and part.damage[-1][1] == at:
            part.damage[-1] = (part.damage[-1][0], resumed)
        else:
            part.damage.append((at, resumed))
        part.reached = resumed
        return True

    def _is_good(self, offset: int) -> bool:
        count = READ_BYTES
        while True:
            data = self._log.read(offset, count)
            good, why, _records, _ms = self._module.scan(data, offset, True)
            if good or why != SCAN_MORE or len(data) < count or count >= _RECORD_BYTES_MAX:
                return bool(good)
            count *= 4
