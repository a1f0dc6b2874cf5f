"""Writing queue and index files after the log: the loop collects entries, a worker writes them, and the position records how far.

A *sweep* writes every queue that had new entries when it began; only then does the position move to where the log was at that
moment. With many queues a sweep takes several rounds; entries that arrive meanwhile belong to the next one.

`collect` runs on the loop, everything else on the one worker thread that writes files; only the worker uses the
fields after `_sweep`.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from kappamq.native.interface import Kernel
from kappamq.native.layout import ENTRY
from kappamq.store.checkpoint import Checkpoint
from kappamq.store.files import Files
from kappamq.store.index.index_file import IndexFiles
from kappamq.store.position import Position
from kappamq.store.queues.queues import QueueFiles

log = logging.getLogger(__name__)

_QUEUES_PER_ROUND = 2048


@dataclass(slots=True)
class DerivedWork:
    """One round: entries and keys for the files."""

    entries: list[tuple[str, int, int, bytes]]
    index: bytes
    complete: bool  # the last round of its sweep: then every record below `dispatched` has its entry in a file
    dispatched: int
    index_at: int  # the same for keys
    store_ms: int
    first: bool = True  # round of its sweep


class Derived:
    def __init__(
        self,
        root: Path,
        kernel: Kernel,
        queues: QueueFiles,
        index: IndexFiles,
        files: Files,
        fingerprint: Callable[[int], int],
        flushed: Callable[[], tuple[int, int]],
    ) -> None:
        """`fingerprint`: returns the CRC of the log's bytes before an offset; `flushed`: returns (log offset on disk, store time there)."""
        self._root = root
        self._kernel = kernel
        self._queues = queues
        self._index = index
        self._files = files
        self.position_path = root / "kappamq.position"
        self._fingerprint = fingerprint
        self._flushed = flushed
        self._unwritten: DerivedWork | None = None  # taken from the kernel, and not yet in the files
        self._sweep_left = 0
        self._sweep = DerivedWork([], b"", True, 0, 0, 0)
        self._checkpoint = Checkpoint()
        self._noted = Position(
            dispatched=0,
            synced=0,
            flushed=0,
            index=0,
            queues=0,
            entries=0,
            checkpoint=bytes(40),
            last_crc=0,
            boot_id="",
        )
        self._ends: dict[tuple[str, int], int] = {}
        self._entries = 0
        self._unsyncable: str | None = None  # why queue and index files can no longer be made durable

    def open(self, checkpoint: Checkpoint, boot_id: str, position: Position | None, log_min: int) -> None:
        """Take over the result of recovery: the kernel knows the queue files' contents, `position` (None: not ours) what is synced."""
        self._checkpoint = checkpoint
        for topic, queue_id in self._queues.queues():
            stored = self._kernel.queue_state(topic, queue_id).stored
            if stored:
                self._ends[topic, queue_id] = stored
                self._entries += stored
        # Without our own position file no entry is known to be on disk: the log begins at a file start, and counts are zero.
        known = position or replace(self._noted, synced=log_min)
        self._noted = replace(
            known, checkpoint=checkpoint.encode(), checkpoint_before=checkpoint.encode(), boot_id=boot_id
        )

    @property
    def noted(self) -> Position:
        """The current contents of the position file."""
        return self._noted

    def write_marks_again(self) -> None:
        """Worker: write position file and checkpoint again."""
        self._noted.save(self.position_path, self._files, sync=True)
        checkpoint = Checkpoint.decode(self._noted.checkpoint)
        checkpoint.write(self._root / "checkpoint", self._files, sync=True)

    def lower(self, log_end: int) -> None:
        """The log will be cut to `log_end`: durably lower the offset up to which it is known to be on disk."""
        assert self._noted.dispatched <= log_end, "entries of what is cut off are in the files"
        self._noted = replace(self._noted, flushed=min(self._noted.flushed, log_end))
        self._noted.save(self.position_path, self._files, sync=True)

    # -- the loop ----------------------------------------------------------------------------------------------------------

    def collect(self, dispatched: int, index_at: int, store_ms: int) -> DerivedWork:
        """The next round for `write`. If that fails, the next call returns the same."""
        if self._unwritten is not None:
            return self._unwritten
        if not self._sweep_left:
            self._sweep_left = self._kernel.dirty_queues()
            self._sweep = DerivedWork([], b"", False, dispatched, index_at, store_ms)
        else:
            self._sweep.first = False
        count = min(self._sweep_left, _QUEUES_PER_ROUND)
        self._sweep_left -= count
        work = replace(
            self._sweep,
            entries=self._kernel.take_entries(count),
            index=self._kernel.take_index(),
            complete=not self._sweep_left,
        )
        if work.entries or work.index:
            self._unwritten = work
        return work

    # -- the worker --------------------------------------------------------------------------------------------------------

    def write(self, work: DerivedWork) -> None:
        """Put entries and keys into their files and record the position. Idempotent."""
        for topic, queue_id, first, entries in work.entries:
            low = self._kernel.queue_state(topic, queue_id).first  # may be higher by now: messages below are deleted
            if not self._queues.write(topic, queue_id, first, entries, low):
                continue
            end = first + len(entries) // ENTRY.size
            self._entries += end - self._ends.get((topic, queue_id), 0)
            self._ends[topic, queue_id] = end
        if work.index:
            self._index.apply(work.index)
        if work.complete:
            # After several rounds files hold more entries than belong below `dispatched`. The counts in the position must not exceed
            # what is in the files, so the smaller counts from before are kept.
            counts = (len(self._ends), self._entries) if work.first else (self._noted.queues, self._noted.entries)
            self._note(work, *counts)
        self._unwritten = None

    def sync(self, work: DerivedWork) -> None:
        """Make queue and index files durable up to `work`, then record that for us and for a Java broker."""
        if self._unsyncable is not None:
            return
        part: QueueFiles | IndexFiles = self._queues
        try:
            part.sync()
            part = self._index
            part.sync()
        except OSError as error:
            if part is self._index and error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise  # there was no space for its slots: they are written again
            # A retry would succeed and prove nothing: the system has dropped the pages that it could not write.
            self._unsyncable = str(error)
            log.error("queue files may not be on disk (%s); after a power cut they are rebuilt from the log", error)
            return
        before = self._checkpoint.encode()
        self._checkpoint.physic_ms = self._flushed()[1]
        # A Java broker that opens this store rebuilds what is newer, including keys that our index files do not have yet.
        behind = self._index.behind
        self._checkpoint.logics_ms = min(work.store_ms, self._index.end_ms) if behind else work.store_ms
        self._checkpoint.index_ms = self._index.end_ms
        noted = self._noted
        self._noted = replace(
            noted,
            synced=noted.dispatched,
            synced_crc=noted.last_crc,
            synced_queues=noted.queues,
            synced_entries=noted.entries,
            checkpoint=self._checkpoint.encode(),
            checkpoint_before=before,
        )
        # The position first: after a crash between the two writes the older checkpoint is still recognized as ours.
        self._noted.save(self.position_path, self._files, sync=True)
        self._checkpoint.write(self._root / "checkpoint", self._files, sync=True)

    def _note(self, work: DerivedWork, queues: int, entries: int) -> None:
        self._noted = replace(
            self._noted,
            dispatched=work.dispatched,
            synced=min(self._noted.synced, work.dispatched),
            flushed=self._flushed()[0],
            index=work.index_at,
            queues=queues,
            entries=entries,
            last_crc=self._fingerprint(work.dispatched),
        )
        self._noted.save(self.position_path, self._files)

    def forget_topic(self, topic: str) -> None:
        """Remove a deleted topic's queue files, and first their entries from the counts in the position."""
        for key in [key for key in self._ends if key[0] == topic]:
            self._entries -= self._ends.pop(key)
        noted, queues, entries = self._noted, len(self._ends), self._entries
        self._noted = replace(
            noted,
            queues=min(noted.queues, queues),
            entries=min(noted.entries, entries),
            synced_queues=min(noted.synced_queues, queues),
            synced_entries=min(noted.synced_entries, entries),
        )
        self._noted.save(self.position_path, self._files)
        self._queues.delete_topic(topic)
