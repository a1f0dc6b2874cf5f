"""Cut the end off the log of a store that no broker has open, for an operator who has decided to discard it.

The cut bytes are kept in a separate file. Afterwards queues, index, timers and snapshots agree with the rest of the log. The order of the
steps ensures that after a crash the store opens, and that the same command can be repeated:

    the bytes are copied and synced;
    snapshots that reflect cut records are replaced by their backups, and timer files that may do so are removed;
    the position file is lowered, so that recovery dispatches only what is left;
    the log files are removed, last to first, and zeros written.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from kappamq.errors import ProtocolError, StoreError
from kappamq.native.interface import KernelModule
from kappamq.native.layout import SCAN_BLANK
from kappamq.protocol.names import TIMER_TOPIC
from kappamq.protocol.records.entries import INDEX_HEADER
from kappamq.store.checkpoint import Checkpoint
from kappamq.store.files import Files
from kappamq.store.index.index_file import list_index_files
from kappamq.store.index.view import IndexHeader
from kappamq.store.lock import AbortFile, refuse_raft_store
from kappamq.store.log.commit_log import CommitLog, file_name
from kappamq.store.log.log_end import POSITION_NAME, fingerprint
from kappamq.store.log.log_reader import Found, LogReader
from kappamq.store.position import Position
from kappamq.store.snapshots import Snapshot, Snapshots, decode

_CHUNK_BYTES: Final = 32 << 20
_ASIDE_MAX: Final = 10_000
_BACKUP: Final = ".bak"


@dataclass(slots=True)
class Cut:
    """What was cut, for the operator."""

    log_offset: int
    log_end: int  # before the cut
    records: int = 0
    kept: Path | None = None
    notes: list[str] = field(default_factory=list)


class OfflineCut:
    """The caller must hold the store's lock."""

    def __init__(self, root: Path, log: LogReader, module: KernelModule, files: Files | None = None) -> None:
        self._root = root
        self._log = log
        self._module = module
        self._files = files or Files()

    # -- before anything is changed ----------------------------------------------------------------------------------------

    def plan(self, log_offset: int) -> Cut:
        """Raises StoreError, which names the nearest possible offsets, if the log cannot be cut to `log_offset`."""
        refuse_raft_store(self._root, self._files)
        log = self._log
        end = log.end()
        if not log.min <= log_offset <= end:
            raise StoreError(f"the log has the offsets {log.min} to {end}: it cannot be cut to {log_offset}")
        below = self._whole_until(log_offset)
        if below != log_offset:
            above = self._next_end(below)
            other = f" or {above}" if above is not None else ""
            raise StoreError(
                f"the log cannot be cut to {log_offset}: no message or batch ends there. The nearest places are {below}{other}"
            )
        cut = Cut(log_offset, end)
        cut.records = sum(records for _at, records in self._units(log_offset, end))
        return cut

    def _whole_until(self, log_offset: int) -> int:
        reached = start = log_offset - log_offset % self._log.segment_bytes
        for at, _records in self._units(start, log_offset):
            reached = at
        return reached

    def _units(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Scan in pieces; yields (end of the whole records and batches so far, number of records in the piece)."""
        at = start
        while at < stop:
            data = self._log.read(at, min(stop - at, _CHUNK_BYTES))
            size, why, records, _ms = self._module.scan(data, at, True)
            if not size and why != SCAN_BLANK and len(data) == _CHUNK_BYTES:
                size, why, records, _ms = self._module.scan(self._log.read(at, stop - at), at, True)
            if size:
                at += size
            elif why == SCAN_BLANK:
                at += self._log.segment_bytes - at % self._log.segment_bytes
            else:
                return
            yield at, records

    def _next_end(self, at: int) -> int | None:
        """The end of the record or batch that begins at `at`."""
        end = None
        for found in self._log.scan(at):
            if not isinstance(found, Found):
                return end
            end = found.offset + found.size
            if self._module.scan(self._log.read(at, end - at), at, True)[0]:
                return end
        return end

    # -- changes -----------------------------------------------------------------------------------------------------------

    def carry_out(self, cut: Cut, log: CommitLog) -> None:
        """`log` must not be loaded yet. Afterwards the store is as after a crash, and recovery does the rest."""
        AbortFile(self._root, self._files).create()
        self._keep(cut)
        self._drop_snapshots(cut)
        self._drop_timers(cut)
        self._drop_index(cut.log_offset)
        self._lower_position(cut.log_offset)
        try:
            log.load()
            log.open_end(cut.log_offset)
        finally:
            log.close()

    def _keep(self, cut: Cut) -> None:
        """Copy everything from the cut on, including bytes that are not good records."""
        stop = self._last_byte(cut)
        if stop == cut.log_offset:
            return
        path = self._free_name(cut.log_offset, stop)
        fd = self._files.open(path, create=True)
        try:
            at = cut.log_offset
            while at < stop:
                data = self._raw(at, min(stop - at, _CHUNK_BYTES))
                self._files.pwrite(fd, data, at - cut.log_offset)
                at += len(data)
            self._files.sync(fd)
        finally:
            self._files.close(fd)
        self._files.sync_folder(self._root)
        cut.kept = path

    def _last_byte(self, cut: Cut) -> int:
        """One past the last byte that is not zero, or past the log's end."""
        for start in reversed(self._log.starts):
            at = start + self._log.segment_bytes
            low = max(start, cut.log_end)
            while at > low:
                begin = max(low, at - _CHUNK_BYTES)
                used = self._raw(begin, at - begin).rstrip(b"\0")
                if used:
                    return begin + len(used)
                at = begin
        return cut.log_end

    def _raw(self, at: int, count: int) -> bytes:
        """Bytes of the log as they are, within one file."""
        start = at - at % self._log.segment_bytes
        fd = self._files.open(self._log.folder / file_name(start), writable=False)
        try:
            data = self._files.pread(fd, min(count, start + self._log.segment_bytes - at), at - start)
        finally:
            self._files.close(fd)
        if not data:
            raise StoreError(f"the log cannot be read at {at}: its file is shorter than the others")
        return data

    def _free_name(self, start: int, stop: int) -> Path:
        for number in range(1, _ASIDE_MAX):
            path = self._root / f"cut-{start}-{stop}-{number}.bin"
            if not self._files.exists(path):
                return path
        raise StoreError(f"{self._root} holds {_ASIDE_MAX} files of what was cut at {start}: remove some")

    def _drop_snapshots(self, cut: Cut) -> None:
        folder = self._root / "config"
        names = {
            name.removesuffix(_BACKUP)
            for name in self._files.list(folder)
            if name.endswith((".json", f".json{_BACKUP}"))
        }
        for name in sorted(names):
            file, backup = (self._snapshot(folder / place) for place in (name, name + _BACKUP))
            newer = {name + _BACKUP: backup, name: file}
            newer = {place: found for place, found in newer.items() if _knows_more(found, cut.log_offset)}
            if not newer:
                continue
            has_older = any(found is not None and not _knows_more(found, cut.log_offset) for found in (file, backup))
            if not has_older and self._log.min > 0:
                # The log does not contain every change in the table, so an older state cannot be rebuilt.
                table = next(found.table for found in newer.values() if found is not None)
                Snapshots(folder, self._files).save(name, table, cut.log_offset)
                self._files.remove(folder / (name + _BACKUP))
                cut.notes.append(f"config/{name} may know of changes that were cut: there is no older state of it")
                continue
            for place in newer:
                self._files.remove(folder / place)
            cut.notes.append(
                f"config/{name} was taken back: {'its backup' if has_older else 'the log'} says what it was"
            )
        if self._files.exists(folder):
            self._files.sync_folder(folder)

    def _snapshot(self, path: Path) -> Snapshot | None:
        if not self._files.exists(path):
            return None
        fd = self._files.open(path, writable=False)
        try:
            return decode(self._files.pread(fd, self._files.size(fd), 0))
        except ProtocolError:
            return None
        finally:
            self._files.close(fd)

    def _drop_timers(self, cut: Cut) -> None:
        """Remove the timer files if they may refer to cut records; the broker rebuilds them from the timer topic's queue."""
        if cut.kept is None or not self._files.exists(self._root / "timerwheel"):
            return
        name, at, overlap = TIMER_TOPIC.encode(), cut.log_offset, b""
        while at < cut.log_end:
            data = self._raw(at, min(cut.log_end - at, _CHUNK_BYTES))
            if name in overlap + data:
                break
            overlap, at = data[-len(name) :], at + len(data)
        else:
            return
        self._files.remove(self._root / "config" / "timercheck")
        self._files.sync_folder(self._root / "config")
        self._files.remove(self._root / "timerwheel")
        self._files.remove_tree(self._root / "timerlog")
        cut.notes.append("timer files were removed: the next start makes them from the timers that are left")

    def _drop_index(self, log_offset: int) -> None:
        """Recovery removes keys from the newest file, but its header would keep the times of cut records."""
        folder = self._root / "index"
        for path in reversed(list_index_files(folder, self._files)):
            fd = self._files.open(path, writable=False)
            try:
                data = self._files.pread(fd, INDEX_HEADER.size, 0)
            finally:
                self._files.close(fd)
            if len(data) == INDEX_HEADER.size and IndexHeader.decode(data).end_offset < log_offset:
                break
            self._files.remove(path)
            self._files.sync_folder(folder)

    def _lower_position(self, log_offset: int) -> None:
        """Lower it to where the queue files are complete for what is left; recovery removes entries and keys behind that."""
        path, log = self._root / POSITION_NAME, self._log
        position, _why = Position.load(path, self._files)
        checkpoint = Checkpoint.load(self._root / "checkpoint", self._files).encode()[:40]
        known = position is not None and fingerprint(log, position.dispatched) == position.last_crc
        if position is None or not known or not position.wrote(checkpoint):
            # Written last by another broker, or by an unknown one: recovery dispatches everything again, so nothing may be missing on disk.
            self._sync_log()
            position = Position(
                dispatched=log.min,
                synced=log.min,
                flushed=log_offset,
                index=log.min,
                queues=0,
                entries=0,
                checkpoint=checkpoint,
                checkpoint_before=checkpoint,
                last_crc=0,
                boot_id="",
            )
        dispatched, synced = min(position.dispatched, log_offset), min(position.synced, log_offset)
        replace(
            position,
            dispatched=dispatched,
            last_crc=fingerprint(log, dispatched),
            synced=synced,
            synced_crc=fingerprint(log, synced),
            flushed=min(position.flushed, log_offset),
            index=min(position.index, log_offset),
            queues=0,  # at least this many: files have more, and entries behind the cut are removed
            entries=0,
            synced_queues=0,
            synced_entries=0,
        ).save(path, self._files, sync=True)

    def _sync_log(self) -> None:
        for start in self._log.starts:
            fd = self._files.open(self._log.folder / file_name(start), writable=False)
            try:
                self._files.sync(fd)
            finally:
                self._files.close(fd)


def _knows_more(found: Snapshot | None, log_offset: int) -> bool:
    return found is not None and found.log_offset is not None and found.log_offset > log_offset
