"""Repair the problems that a check of a running store has found. Runs on the one thread that writes derived files.

A check runs beside the writers, so it may have seen half of a change. Each problem is therefore checked again here, where
nothing is written meanwhile, and only what is still wrong is repaired.
"""

from __future__ import annotations

from kappamq.native.layout import ENTRY
from kappamq.store.index.repair import IndexRepair
from kappamq.store.message_store import MessageStore
from kappamq.store.verify.config import CHECKPOINT, POSITION, check_position, check_snapshots
from kappamq.store.verify.queues import DeletedBelow, unknown
from kappamq.store.verify.report import BytesFix, EntryFix, Kind, Problem, Report, WriteAgain

MARKS = (POSITION, CHECKPOINT)  # files that are rewritten from the store's state in memory


class StoreRepair:
    def __init__(self, store: MessageStore, deleted_below: DeletedBelow = unknown) -> None:
        self._store = store
        self._deleted_below = deleted_below
        self._index = IndexRepair(store.index, store.files, self._stored_ms)

    def repair(self, problem: Problem) -> bool:
        """Return whether the problem still exists; if so, repair it, as far as files can be repaired from files."""
        fix = problem.fix
        if isinstance(fix, EntryFix):
            return self._entry(fix)
        if isinstance(fix, BytesFix):
            return self._bytes(fix)
        if isinstance(fix, WriteAgain) and fix.name in MARKS:
            return self._marks()
        if problem.kind is Kind.CONFIG:
            return self._is_wrong_snapshot(problem)
        return True

    def _entry(self, fix: EntryFix) -> bool:
        queues, key = self._store.queues, (fix.topic, fix.queue_id)
        low, _end, _next, stored = self._store.kernel.queue_state(*key)
        if ENTRY.unpack(fix.entry)[0] < self._store.log.min or fix.number >= stored:
            return False  # deleted meanwhile
        try:
            there = queues.read(*key, fix.number, 1)
        except OSError:
            there = b""
        if fix.number < low:
            # Deleted messages stay deleted: they have no entries. Otherwise damaged entries led to a wrong minimum at the start.
            deleted_below = self._deleted_below(*key)
            if there != fix.entry and (deleted_below is None or fix.number < deleted_below):
                return False
        elif there == fix.entry:
            return False
        if there != fix.entry:
            queues.replace(*key, fix.number, fix.entry)
        if fix.number < low:
            self._store.kernel.set_queue_min(*key, fix.number)
        return True

    def _bytes(self, fix: BytesFix) -> bool:
        files, is_index = self._store.files, fix.path.parent == self._store.index.folder
        try:
            fd = files.open(fix.path)
        except FileNotFoundError:
            return False
        try:
            if files.pread(fd, len(fix.wrong), fix.position) != fix.wrong:
                return False
            if is_index and not self._index.is_right(fix, fd):
                return False
            files.pwrite(fd, fix.right, fix.position)
            files.sync(fd)
        finally:
            files.close(fd)
        if is_index:
            self._index.was_repaired(fix)
        return True

    def _stored_ms(self, log_offset: int) -> int | None:
        found = self._store.decoded(log_offset)
        return None if found is None else found.stored_ms

    def _marks(self) -> bool:
        store = self._store
        report = Report(store.config.root, 1000)
        check_position(store.config.root, report, store.files, lambda position: True)
        if not report.ok:
            store.derived.write_marks_again()
        return not report.ok

    def _is_wrong_snapshot(self, problem: Problem) -> bool:
        store = self._store
        report = Report(store.config.root, 1000)
        check_snapshots(store.config.root, lambda: store.log.end, report, store.files)
        if problem.fix is None:
            return any(one.fix is None and one.place == problem.place for one in report.problems)
        return any(one.fix == problem.fix for one in report.problems)  # the file may have become the .bak meanwhile
