"""Damaged ranges of the log: finding them, checking their replacement, and writing it durably.

A range begins and ends at record boundaries, so a replacement can be checked by itself: it must consist of whole records and batches
with good checksums that contain their own log offset, and fill the range to its last byte.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from kappamq.errors import ForeignBytes
from kappamq.native.interface import KernelModule
from kappamq.native.layout import SCAN_BLANK
from kappamq.protocol.records.view import Front
from kappamq.store.files import Files
from kappamq.store.log.commit_log import CommitLog, file_name
from kappamq.store.log.log_reader import Damage, LogReader


def damage_in(log: LogReader, start: int, stop: int) -> Iterator[Damage]:
    """Damage in [start, stop), which begins and ends at record boundaries; good records are skipped at the speed of the kernel."""
    at = start
    while at < stop:
        at = log.end(at)
        if at >= stop:
            return
        item = next(log.scan(at, stop, thorough=True), None)
        if item is None:
            item = Damage(at, stop, "nothing is there", tail=True)
        if not isinstance(item, Damage):
            at = item.offset + item.size  # the record is good now
            continue
        stretch = replace(item, stop=min(stop, item.stop) if not item.tail else stop, tail=False)
        yield stretch
        at = stretch.stop


def whole_records(module: KernelModule, data: memoryview, start: int, segment_bytes: int) -> int:
    """How many bytes of `data`, whose log offset is `start`, are good records and batches; an end mark makes the rest of its file good."""
    done = 0
    while done < len(data):
        at = start + done
        size, why, _records, _ms = module.scan(data[done:], at, True)
        if size:
            done += size
            continue
        room = segment_bytes - at % segment_bytes
        is_last = why == SCAN_BLANK and Front(data[done:]).size == room == len(data) - done
        return len(data) if is_last else done
    return done


def require_whole(module: KernelModule, data: memoryview, start: int, segment_bytes: int) -> None:
    """Raises ForeignBytes if bytes from another copy cannot be the ones that belong at `start`."""
    good = whole_records(module, data, start, segment_bytes)
    if good < len(data):
        raise ForeignBytes(
            f"{len(data)} bytes for {start} were received, and at {start + good} is no good record among them"
        )


def put_back(log: CommitLog, files: Files, start: int, data: memoryview) -> bool:
    """Write `data` at its place in the log file; it is on disk on return. False if the file was deleted meanwhile."""
    begin = start - start % log.segment_bytes
    try:
        fd = files.open(log.folder / file_name(begin))
    except FileNotFoundError:
        return False
    try:
        if files.size(fd) < log.segment_bytes:
            files.truncate(fd, log.segment_bytes)  # it was truncated: missing bytes now read as zeros, as damage does
        files.pwrite(fd, data, start - begin)
        files.sync(fd)
    finally:
        files.close(fd)
    return True
