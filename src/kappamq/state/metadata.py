"""Settings, offsets and locks as log records: changed here, told to the log, and found again by folding the log.

A change takes effect in memory at once and is appended as a record of a system topic in the same turn, so it is exactly as
durable as a message. The JSON files in config/ are snapshots: the tables as of a log offset. Opening a store loads them and
applies the records behind that offset. A snapshot without our stamp was written by a Java broker and is the truth as it is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import Any, Protocol, runtime_checkable

import msgspec

from kappamq.clock import Clock
from kappamq.errors import ProtocolError, StoreError
from kappamq.native.pure_record import GroupMember
from kappamq.protocol.names import METADATA_TOPIC
from kappamq.protocol.records.record import decode
from kappamq.store.message_store import MessageStore, unusable
from kappamq.store.snapshots import Snapshots

log = logging.getLogger(__name__)

TOPIC = METADATA_TOPIC
_NONSENSE = (msgspec.DecodeError, ProtocolError, LookupError, AttributeError, TypeError, ValueError)
"""What a table may say to something that was not written by one."""
_RECORDS_BEHIND_MAX = 5000
"""A start folds the records behind the oldest snapshot: also tables that never change are written anew once there are so
many."""


class Writer(Protocol):
    """Where records of changes go: the broker's one way into the log."""

    def append(self, append: Callable[[], Any], *, own: bool = False) -> Any: ...


class Table(Protocol):
    """State that is a fold over the metadata records of its kinds."""

    @property
    def file(self) -> str:
        """Name of the snapshot."""
        ...

    @property
    def kinds(self) -> tuple[str, ...]: ...

    dirty: bool  # changed since the last snapshot

    def to_snapshot(self) -> dict[str, Any]: ...

    def from_snapshot(self, table: dict[str, Any]) -> None: ...

    def apply(self, kind: str, change: Any) -> None:
        """Repeat a change found in the log. Doing it twice must do no harm."""
        ...


@runtime_checkable
class Large(Protocol):
    """A table that is told in two steps, because all at once would keep the loop for too long."""

    def freeze(self) -> Callable[[], dict[str, Any]]:
        """Copy what there is now, quickly; a worker calls what this returns and gets what `to_snapshot` would have said."""
        ...


Collected = tuple[str, dict[str, Any] | Callable[[], dict[str, Any]], int]
"""File, table or how to get it, and the log offset that it reflects."""


class Metadata:
    def __init__(self, store: MessageStore, snapshots: Snapshots, clock: Clock, born: bytes) -> None:
        self._store = store
        self._snapshots = snapshots
        self._clock = clock
        self._born = born
        self._tables: list[Table] = []
        self._records: dict[str, int] = {}  # how many metadata records there were when a table was last written
        self._writer: Writer | None = None

    def add(self, table: Table) -> None:
        self._tables.append(table)

    def go_live(self, writer: Writer) -> None:
        """From now on changes are recorded; before, tables only repeat what the log says."""
        self._writer = writer

    # -- recording ---------------------------------------------------------------------------------------------------------

    def record(self, kind: str, change: Any) -> int:
        """Append a change that has just been made in memory; returns the log offset at which it is safe."""
        writer = self._writer
        if writer is None:
            return self._store.log.end
        now = self._clock.message_ms()
        member = self.member(kind, change, now)
        log_offset: int
        log_offset, _queue_offset, size = writer.append(lambda: self._store.kernel.append(*member, now), own=True)
        return log_offset + int(size)

    def member(self, kind: str, change: Any, now_ms: int) -> GroupMember:
        """The record of a change, for a group of records that are to be stored together."""
        body = msgspec.json.encode({"kind": kind, "change": change})
        return TOPIC, 0, 0, 0, now_ms, self._born, 0, 0, body, b""

    # -- folding -----------------------------------------------------------------------------------------------------------

    def load(self, fit: Callable[[], None] = lambda: None) -> list[str]:
        """Bring every table to the state at the log's end; returns remarks for the operator. Raises StoreError.

        `fit` then takes back what tables know of messages that the log has lost."""
        notes: list[str] = []
        stamps: dict[str, int] = {}
        end = self._store.log.end
        new_baseline = False
        adopted: set[str] = set()
        for table in self._tables:
            told = len(self._snapshots.notes)
            snapshot = self._snapshots.load(table.file, log_is_whole=self._store.log.min == 0)
            damaged = self._snapshots.notes[told:]
            if damaged:  # it is written anew at once: the next damage must find a good backup
                notes.append("; ".join(damaged))
                table.dirty = new_baseline = True
            if snapshot is None:
                stamps[table.file] = 0
                continue
            try:
                table.from_snapshot(snapshot.table)
            except _NONSENSE as error:
                path = self._snapshots.folder / table.file
                raise StoreError(
                    f"{path} makes no sense ({error}). Correct it; or move it away, and what the log says will do"
                ) from error
            stamp = snapshot.log_offset
            if stamp is None:
                adopted.add(table.file)
                notes.append(f"{table.file} was written by another broker: taken as it is")
            elif stamp > end:
                notes.append(f"{table.file} reflects the log up to {stamp}, but that ends at {end} now: taken as it is")
            if stamp is None or stamp > end:
                table.dirty = new_baseline = True
            stamps[table.file] = end if stamp is None else min(stamp, end)
        self._replay(stamps)
        fit()
        if new_baseline:
            # At once: a crash before the next snapshot would make today's records look older than these files.
            try:
                work = self.collect()
                self.save(work)
                # A backup that another broker wrote would be older than anything: ours is one of ours from the beginning.
                self.save([item for item in work if item[0] in adopted])
            except OSError as error:
                raise unusable(self._snapshots.folder, error) from error
        return notes

    def _replay(self, stamps: dict[str, int]) -> None:
        by_kind = {kind: table for table in self._tables for kind in table.kinds}
        end = self._store.kernel.queue_state(TOPIC, 0).end
        at = self._store.first_at_or_behind(TOPIC, 0, min(stamps.values(), default=0))
        while at < end:
            found = self._store.entry(TOPIC, 0, at)
            at += 1
            if found is None:
                continue
            data = self._store.record(found[0])
            if data is None:
                log.warning("a metadata record at %d cannot be read: the change in it is missing", found[0])
                continue
            try:
                content = msgspec.json.decode(decode(data).body)
                table = by_kind.get(content["kind"])
                if table is not None and found[0] >= stamps[table.file]:
                    table.apply(content["kind"], content["change"])
                    table.dirty = True
            except _NONSENSE as error:
                log.warning("the metadata record at %d makes no sense (%s): passed over", found[0], error)

    # -- snapshots ---------------------------------------------------------------------------------------------------------

    def collect(self, renew_below: int = 0, leave: Collection[str] = ()) -> list[Collected]:
        """Tables as of now that changed since their last snapshot, or have not been written for long, or still need the
        log below `renew_below`; for `save` on a worker. Those to `leave` are in the log, and may wait although they changed."""
        stamp = self._store.log.end  # everything recorded so far lies below it or is still pending behind it
        records = self._store.kernel.queue_state(TOPIC, 0).next
        work: list[Collected] = []
        for table in self._tables:
            behind = records - self._records.get(table.file, 0)
            due = table.dirty and table.file not in leave
            if due or behind > _RECORDS_BEHIND_MAX or self._snapshots.oldest(table.file) < renew_below:
                table.dirty = False
                self._records[table.file] = records
                content = table.freeze() if isinstance(table, Large) else table.to_snapshot()
                work.append((table.file, content, stamp))
        return work

    def has_table(self, name: str) -> bool:
        """Whether the file is one of ours, and can be written from memory."""
        return any(table.file == name for table in self._tables)

    def due_again(self, names: Collection[str]) -> None:
        """These were collected, but not saved."""
        for table in self._tables:
            if table.file in names:
                table.dirty = True

    def save(self, work: list[Collected]) -> None:
        """Worker: write snapshots. On an OSError those that were not written are due again."""
        unsaved = {name for name, _table, _stamp in work}
        try:
            for name, table, stamp in work:
                self._snapshots.save(name, table() if callable(table) else table, stamp)
                unsaved.discard(name)
        finally:
            self.due_again(unsaved)

    @property
    def needed_from(self) -> int:
        """The log must not lose what lies behind this: some snapshot does not have it yet."""
        return min((self._snapshots.oldest(table.file) for table in self._tables), default=0)
