"""The only way to change the broker's tables: a change is appended to the log as a record, and the table applies it.

`commit` does both in one turn, so a change is exactly as durable as a message. Opening a store applies the records that are not
in the snapshots yet. While running and at a start, a table is changed only by its `apply`, in the order of the log, so both give
the same table. The JSON files in config/ are snapshots: a table, stamped with a log offset. The stamp is exact: the table
contains every record of its kinds below it and none behind it, and the log below it is confirmed.
A snapshot without our stamp was written by a Java broker and is taken as it is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from typing import Any, Protocol, runtime_checkable

import msgspec

from kappamq.clock import Clock
from kappamq.errors import KappaError, NotMaster, ProtocolError, StoreError
from kappamq.native.pure_record import GroupMember
from kappamq.protocol.names import METADATA_TOPIC
from kappamq.protocol.records.record import decode
from kappamq.store.lock import unusable
from kappamq.store.message_store import MessageStore
from kappamq.store.snapshots import Snapshots

log = logging.getLogger(__name__)

TOPIC = METADATA_TOPIC
_NONSENSE = (msgspec.DecodeError, ProtocolError, LookupError, AttributeError, TypeError, ValueError)
"""What a table may raise for content that was not written by a table."""
_RECORDS_BEHIND_MAX = 5000
"""A start applies the records after the oldest snapshot, so unchanged tables are also written again after this
many records."""


class Writer(Protocol):
    """Where records of changes are appended: the broker's only way into the log."""

    def append(self, append: Callable[[], Any], *, own: bool = False) -> Any: ...


class Commit(Protocol):
    """How a table changes itself: the part of `Metadata` that a table gets."""

    def __call__(self, kind: str, change: Any, *, anyway: bool = False) -> int: ...


Change = tuple[str, Any]
"""A kind and the change."""


class Table(Protocol):
    """State that is a fold over the metadata records of its kinds.

    Only `apply`, `reset` and `from_snapshot` change what `to_snapshot` returns (`tests/state/test_one_way.py`)."""

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
        """Apply a change that was just appended to the log, or was found in it. The result depends only on the table and the change."""
        ...

    def reset(self) -> None:
        """Return to the state of a new store; then the table can be loaded again."""
        ...


@runtime_checkable
class Large(Protocol):
    """A table whose snapshot is made in two steps, because one step would block the loop for too long."""

    def freeze(self) -> Callable[[], dict[str, Any]]:
        """Copy the present state, quickly; a worker calls the returned function and gets what `to_snapshot` would have returned."""
        ...


Collected = tuple[str, dict[str, Any] | Callable[[], dict[str, Any]], int, int]
"""File, table or a function that returns it, the log offset that it reflects, and the life of the tables: see `distrust`."""


class Metadata:
    def __init__(self, store: MessageStore, snapshots: Snapshots, clock: Clock, born: bytes, writer: Writer) -> None:
        self._store = store
        self._writer = writer
        self._snapshots = snapshots
        self._clock = clock
        self._born = born
        self._tables: list[Table] = []
        self._by_kind: dict[str, Table] = {}
        self._records: dict[str, int] = {}  # number of metadata records when a table was last written
        self._changed_to: dict[str, int] = {}  # by file: the end of the last record that the table has applied
        self._is_loaded = False
        self._early: list[Change] = []  # made while the tables were loaded; recorded afterwards
        self._applying_ms: int | None = None
        self._at = 0  # metadata records from here on are not applied yet, unless they are our own
        self._loaded_to: dict[
            str, int
        ] = {}  # by file: the stamp that it was loaded with; it may come before the log it reflects
        self._life = 0  # of the tables: each `distrust` begins a new one
        self._is_distrusted = False
        self._is_for_good = False  # at that moment, everything the tables had applied was confirmed
        self._unrecorded = False  # a change was applied that is not in the log

    def add(self, table: Table) -> None:
        self._tables.append(table)
        for kind in table.kinds:
            self._by_kind[kind] = table

    def _record_early(self) -> None:
        """Record changes from now on, beginning with those that loading the tables has made."""
        self._is_loaded = True
        early, self._early = self._early, []
        for kind, change in early:
            try:
                self._changed_to[self._by_kind[kind].file] = self._append(kind, change, self._clock.message_ms())
            except NotMaster:
                pass  # the master records its own changes, and they arrive with its log
            except KappaError as error:
                log.warning("a change made at start (%s) is not in the log, only in the snapshot: %s", kind, error)

    # -- changing ----------------------------------------------------------------------------------------------------------

    def commit(self, kind: str, change: Any, *, anyway: bool = False) -> int:
        """Append the record of a change and apply it; returns the log offset at which it is safe.

        Raises KappaError if the log takes no records, and then nothing has changed; with `anyway` (the change has already happened) the
        table changes all the same, and only the snapshot will have it. A node that may not write changes nothing in either case
        (NotMaster): its tables follow the master's records. The same holds for a node whose tables must be loaded again."""
        table = self._by_kind[kind]
        if self._is_distrusted:
            raise NotMaster("this broker's tables are to be loaded again: it changes nothing until then")
        now = self._clock.message_ms()
        end = self._store.append_offset
        if not self._is_loaded:
            self._early.append((kind, change))
        else:
            try:
                end = self._append(kind, change, now)
                self._changed_to[table.file] = end
            except NotMaster:
                raise
            except KappaError as error:
                if not anyway:
                    raise
                self._unrecorded = True
                log.info("could not record a change in the log (%s), the snapshot will have it: %s", kind, error)
        self._apply(table, kind, change, now)
        return end

    def applied(self, changes: Iterable[Change], now_ms: int, end: int) -> None:
        """Apply changes whose records (see `member`) were just appended as part of a group that ends at `end`."""
        for kind, change in changes:
            table = self._by_kind[kind]
            self._changed_to[table.file] = end
            self._apply(table, kind, change, now_ms)

    def now_ms(self) -> int:
        """Message time for tables: while a record is applied, the time it was stored, so that a replay gives the same result."""
        return self._clock.message_ms() if self._applying_ms is None else self._applying_ms

    def _append(self, kind: str, change: Any, now_ms: int) -> int:
        member = self.member(kind, change, now_ms)
        log_offset, _queue_offset, size = self._writer.append(lambda: self._store.append(member, now_ms), own=True)
        return int(log_offset) + int(size)

    def _apply(self, table: Table, kind: str, change: Any, now_ms: int) -> None:
        self._applying_ms = now_ms
        try:
            table.apply(kind, change)
        finally:
            self._applying_ms = None
        table.dirty = True

    def member(self, kind: str, change: Any, now_ms: int) -> GroupMember:
        """The record of a change, to be stored in a group with other records."""
        body = msgspec.json.encode({"kind": kind, "change": change})
        return TOPIC, 0, 0, 0, now_ms, self._born, 0, 0, body, b""

    # -- folding -----------------------------------------------------------------------------------------------------------

    def distrust(self) -> None:
        """This node is no longer the leader: its log may lose records that the tables have applied. From now on no change is applied on
        top of that and no snapshot is made of it, until `reset` and `load` have restored the state of the log. What was collected
        before is not saved either: by the time the log passes its stamp, it may be another log."""
        if not self._is_distrusted:
            applied = max(self._changed_to.values(), default=0)
            # Only what is confirmed now counts: what is confirmed later, under another leader, may be other bytes.
            self._is_for_good = not self._unrecorded and applied <= self._store.marks.confirmed.offset
            self._at = self._store.queue_state(TOPIC, 0).end  # behind its own changes; later ones are the new leader's
        self._is_distrusted = True
        self._life += 1

    def trust_again(self) -> bool:
        """Trust the tables again if everything they had applied when this node stopped leading was confirmed then: nothing of it can be
        lost, and they need not be loaded again. Returns whether they are trusted."""
        if self._is_distrusted and self._is_for_good:
            self._is_distrusted = False
        return not self._is_distrusted

    def is_trusted(self) -> bool:
        """Whether the tables agree with the log."""
        return not self._is_distrusted

    def reset(self) -> None:
        """Return every table to its initial state, so that `load` can build it again."""
        self._is_loaded = False
        self._early.clear()
        self._changed_to.clear()
        self._loaded_to.clear()
        for table in self._tables:
            table.reset()
            table.dirty = False

    def load(self, fit: Callable[[], None] = lambda: None, *, filling: bool = False) -> list[str]:
        """Bring every table to the state at the log's end; returns remarks for the operator. Raises StoreError.

        Then `fit` removes from the tables what refers to messages that the log has lost. The changes it makes are recorded at the end, and
        from then on every change is. `filling`: snapshots may be ahead of the log, which is still arriving; they contain everything of
        it below their stamps. After an error nothing is changed or saved until `load` has succeeded."""
        self._is_distrusted = self._unrecorded = False
        try:
            return self._load(fit, filling)
        except BaseException:
            self._is_distrusted = True
            raise

    def _load(self, fit: Callable[[], None], filling: bool) -> list[str]:
        notes: list[str] = []
        stamps: dict[str, int] = {}
        end = self._store.log.end
        new_baseline = False
        adopted: set[str] = set()
        for table in self._tables:
            before = len(self._snapshots.notes)
            snapshot = self._snapshots.load(table.file, log_is_whole=self._store.log.min == 0)
            damaged = self._snapshots.notes[before:]
            if damaged:  # rewritten at once, so that there is a good backup
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
            elif stamp > end and filling:
                stamps[table.file] = stamp
                continue
            elif stamp > end:
                notes.append(f"{table.file} reflects the log up to {stamp}, but that ends at {end} now: taken as it is")
            if stamp is None or stamp > end:
                table.dirty = new_baseline = True
            stamps[table.file] = end if stamp is None else min(stamp, end)
        self._loaded_to = stamps
        self._at = self._store.first_at_or_behind(TOPIC, 0, min(stamps.values(), default=0))
        self._apply_stored()
        fit()
        if new_baseline:
            # At once: a crash before the next snapshot would make today's records look older than these files.
            try:
                work = self.collect()
                self.save(work)
                saved = {item[0] for item in work}  # these have the changes that loading made: no record is needed
                self._early = [early for early in self._early if self._by_kind[early[0]].file not in saved]
                # A backup that another broker wrote would be older than anything: write twice, so that the backup is ours, too.
                self.save([item for item in work if item[0] in adopted])
            except OSError as error:
                raise unusable(self._snapshots.folder, error) from error
        self._record_early()
        return notes

    def follow(self) -> list[Change]:
        """Apply the records of another node that were added to the queues since the last call, and return them. Records that this node
        wrote itself, or that a snapshot already reflects, are skipped: each record is applied once."""
        return [] if self._is_distrusted else self._apply_stored()

    def adopt(self, file: str, content: dict[str, Any], *, whole: bool) -> None:
        """Take over a table from a master that does not record its changes; they are not recorded here either. With `whole`, entries
        that are not in `content` are removed."""
        table = next(table for table in self._tables if table.file == file)
        if whole:
            table.reset()
        table.from_snapshot(content)
        table.dirty = True

    def follow_from_here(self) -> None:
        """Skip the records in the queues: each was applied when it was recorded."""
        self._at = self._store.queue_state(TOPIC, 0).end

    def _is_reflected(self, file: str, log_offset: int) -> bool:
        """A table applies its records in log order: it has applied all records up to its last one."""
        return log_offset < max(self._loaded_to.get(file, 0), self._changed_to.get(file, 0))

    def _apply_stored(self) -> list[Change]:
        """Apply records of the metadata topic that are not reflected yet."""
        state = self._store.queue_state(TOPIC, 0)
        end = state.end
        self._at = max(self._at, state.first)
        applied: list[Change] = []
        while self._at < end:
            found = self._store.entry(TOPIC, 0, self._at)
            self._at += 1
            if found is None:
                continue
            data = self._store.record(found[0])
            if data is None:
                log.warning("a metadata record at %d cannot be read: the change in it is missing", found[0])
                continue
            try:
                record = decode(data)
                content = msgspec.json.decode(record.body)
                table = self._by_kind.get(content["kind"])
                if table is not None and not self._is_reflected(table.file, found[0]):
                    self._changed_to[table.file] = found[0] + len(data)
                    self._apply(table, content["kind"], content["change"], record.stored_ms)
                    applied.append((content["kind"], content["change"]))
            except _NONSENSE as error:
                log.warning("the metadata record at %d is malformed (%s) and was skipped", found[0], error)
        return applied

    # -- snapshots ---------------------------------------------------------------------------------------------------------

    def collect(
        self, renew_below: int = 0, leave: Collection[str] = (), only: Collection[str] | None = None
    ) -> list[Collected]:
        """Take those tables that changed since their last snapshot, have not been written for long, or still need the log below
        `renew_below`. Those in `leave` may wait although they changed: their changes are in the log. Give them to `save` on a worker,
        each as soon as `confirmed` has passed its stamp. Returns nothing while the tables are not trusted."""
        if self._is_distrusted:
            return []
        confirmed = self._store.marks.confirmed.offset
        records = self._store.queue_state(TOPIC, 0).next
        work: list[Collected] = []
        for table in self._tables:
            if only is not None and table.file not in only:
                continue
            if self._loaded_to.get(table.file, 0) > confirmed:
                continue  # its file is as good, and its stamp is right
            behind = records - self._records.get(table.file, 0)
            due = table.dirty and table.file not in leave
            if due or behind > _RECORDS_BEHIND_MAX or self._snapshots.oldest(table.file) < renew_below:
                table.dirty = False
                self._records[table.file] = records
                content = table.freeze() if isinstance(table, Large) else table.to_snapshot()
                # The table has applied no record behind its last change, and all records below `confirmed`.
                stamp = max(self._changed_to.get(table.file, 0), confirmed)
                work.append((table.file, content, stamp, self._life))
        return work

    def files(self) -> list[str]:
        """The snapshot files of all tables."""
        return [table.file for table in self._tables]

    def stamp(self, name: str) -> int:
        """The log offset that a snapshot reflects; -1 if there is none, or it is not ours."""
        return self._snapshots.stamp(name)

    def has_table(self, name: str) -> bool:
        """Whether the file belongs to one of these tables, so that it can be written from memory."""
        return any(table.file == name for table in self._tables)

    def due_again(self, names: Collection[str]) -> None:
        """These tables were collected, but not saved."""
        for table in self._tables:
            if table.file in names:
                table.dirty = True

    def save(self, work: list[Collected]) -> None:
        """Worker: write snapshots. After an OSError the unwritten ones are due again, as are those collected before a `distrust`."""
        unsaved = {item[0] for item in work}
        failed: OSError | None = None
        try:
            for name, table, stamp, life in work:
                if life != self._life:
                    continue
                assert stamp <= self._store.marks.confirmed.offset, f"{name} would know more than the disk"
                try:
                    self._snapshots.save(name, table() if callable(table) else table, stamp)
                    unsaved.discard(name)
                except OSError as error:  # the others must not wait for one that cannot be written
                    failed = failed or error
        finally:
            self.due_again(unsaved)
        if failed is not None:
            raise failed

    @property
    def needed_from(self) -> int:
        """Retention must keep the log from this offset on: a snapshot lacks these records."""
        return min((self._snapshots.oldest(table.file) for table in self._tables), default=0)
