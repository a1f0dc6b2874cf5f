"""Settings, offsets and locks as log records: changed here, told to the log, and found again by folding the log.

A change takes effect in memory at once and is appended as a record of a system topic in the same turn, so it is exactly as
durable as a message. The JSON files in config/ are snapshots: the tables as of a log offset. Opening a store loads them and
applies the records behind that offset. A snapshot without our stamp was written by a Java broker and is the truth as it is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from kappamq.broker.burst import Bursts
from kappamq.clock import Clock
from kappamq.errors import ProtocolError
from kappamq.protocol.record import decode
from kappamq.store.message_store import MessageStore
from kappamq.store.snapshots import Snapshots

log = logging.getLogger(__name__)

TOPIC = "rmq_sys_kappamq_metadata"


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


class Metadata:
    def __init__(self, store: MessageStore, snapshots: Snapshots, clock: Clock, born: bytes) -> None:
        self._store = store
        self._snapshots = snapshots
        self._clock = clock
        self._born = born
        self._tables: list[Table] = []
        self._stamps: dict[str, int] = {}
        self._append: Callable[[Callable[[], tuple[int, int, int]]], tuple[int, int, int]] | None = None
        self._set_turn: Callable[[], None] = lambda: None

    def add(self, table: Table) -> None:
        self._tables.append(table)

    def go_live(self, bursts: Bursts) -> None:
        """From now on changes are recorded; before, tables only repeat what the log says."""
        self._append = bursts.append
        self._set_turn = bursts.set_turn

    # -- recording ---------------------------------------------------------------------------------------------------------

    def record(self, kind: str, change: Any) -> int:
        """Append a change that has just been made in memory; returns the log offset at which it is safe."""
        if self._append is None:
            return self._store.log.end
        body = msgspec.json.encode({"kind": kind, "change": change})
        kernel = self._store.kernel
        now = self._clock.message_ms()
        log_offset, _queue_offset, size = self._append(
            lambda: kernel.append(TOPIC, 0, 0, 0, now, self._born, 0, 0, body, b"", now)
        )
        self._set_turn()
        return log_offset + size

    # -- folding -----------------------------------------------------------------------------------------------------------

    def load(self) -> list[str]:
        """Bring every table to the state at the log's end; returns remarks for the operator."""
        notes: list[str] = []
        oldest: int | None = None
        for table in self._tables:
            snapshot = self._snapshots.load(table.file)
            stamp = 0
            if snapshot is not None:
                if snapshot.note:
                    notes.append(snapshot.note)
                table.from_snapshot(snapshot.table)
                stamp = self._store.log.end if snapshot.log_offset is None else snapshot.log_offset
                if snapshot.log_offset is None:
                    notes.append(f"{table.file} was written by another broker: taken as it is")
                    table.dirty = True
            self._stamps[table.file] = stamp
            oldest = stamp if oldest is None else min(oldest, stamp)
        if oldest is not None:
            self._replay(oldest)
        return notes

    def _replay(self, oldest: int) -> None:
        by_kind = {kind: table for table in self._tables for kind in table.kinds}
        end = self._store.kernel.queue_state(TOPIC, 0)[1]
        at = self._store.first_at_or_behind(TOPIC, 0, oldest)
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
                if table is not None and found[0] >= self._stamps[table.file]:
                    table.apply(content["kind"], content["change"])
                    table.dirty = True
            except (msgspec.DecodeError, ProtocolError, KeyError, TypeError, ValueError) as error:
                log.warning("the metadata record at %d makes no sense (%s): passed over", found[0], error)

    # -- snapshots ---------------------------------------------------------------------------------------------------------

    def collect(self) -> list[tuple[str, dict[str, Any], int]]:
        """Tables that changed since their last snapshot, as of now; for `save` on a worker."""
        stamp = self._store.log.end  # everything recorded so far lies below it or is still pending behind it
        work = []
        for table in self._tables:
            if table.dirty:
                table.dirty = False
                work.append((table.file, table.to_snapshot(), stamp))
        return work

    def save(self, work: list[tuple[str, dict[str, Any], int]]) -> None:
        """Worker: write snapshots."""
        for name, table, stamp in work:
            self._snapshots.save(name, table, stamp)
            self._stamps[name] = stamp

    @property
    def needed_from(self) -> int:
        """The log must not lose what lies behind this: some snapshot does not have it yet."""
        return min(self._stamps.values(), default=0)
