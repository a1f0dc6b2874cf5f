"""Queue entries that are only on disk: read, and lent to the kernel, which then answers the pull.

Consumers read on: before they need more entries, a worker brings them to memory, and the loop does not wait for the disk."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from typing import Protocol

from kappamq.broker.pulling.waking import Run
from kappamq.broker.upkeep.slices import Worker
from kappamq.native.interface import Kernel
from kappamq.native.layout import ENTRY
from kappamq.store.message_store import MessageStore

_ENTRIES_AT_ONCE = 4096
_ENTRIES_AHEAD = 4 * _ENTRIES_AT_ONCE  # brought to memory by a worker before they are needed
_LENT_MAX = 1024


class Reads(Protocol):
    """The attributes of a pull that are needed here."""

    group: str
    topic: str
    queue_id: int
    offset: int
    count: int


class Lending:
    def __init__(self, store: MessageStore, kernel: Kernel, worker: Worker, run: Run) -> None:
        self._store = store
        self._kernel = kernel
        self._worker = worker
        self._run = run
        self._lent: OrderedDict[tuple[str, int], None] = OrderedDict()  # queues; the one lent longest ago first
        # Up to where entries were read ahead: (group, topic, queue id) -> queue offset.
        self._read_to: OrderedDict[tuple[str, str, int], int] = OrderedDict()

    def lend_resident(self, request: Reads) -> bool:
        """Lend entries that can be read without waiting for the disk; False if there are none."""
        try:
            entries = self._store.queues.read_resident(
                request.topic, request.queue_id, request.offset, _ENTRIES_AT_ONCE
            )
        except OSError:
            return False  # `fetch` will say why
        return entries is not None and self._lend(request, entries)

    def _lend(self, request: Reads, entries: bytes) -> bool:
        """Lend the kernel entries read from disk; False if they are not on disk yet."""
        usable = len(entries) - len(entries) % ENTRY.size
        end = self._kernel.queue_state(request.topic, request.queue_id).stored
        usable = min(usable, max(0, (end - request.offset) * ENTRY.size))
        # Entries on their way to the file read as zeros: only what is real may be lent.
        while usable and int.from_bytes(entries[usable - 12 : usable - 8], "big") == 0:
            usable -= ENTRY.size
        if not usable:
            return False
        key = (request.topic, request.queue_id)
        self._kernel.lend_entries(request.topic, request.queue_id, request.offset, entries[:usable])
        self._lent[key] = None
        self._lent.move_to_end(key)
        lent_to = request.offset + usable // ENTRY.size
        if lent_to < end:
            self._read_on(request, lent_to)
        if len(self._lent) > _LENT_MAX:
            (topic, queue_id), _ = self._lent.popitem(last=False)
            self._kernel.lend_entries(topic, queue_id, 0, b"")
        return True

    def _read_on(self, request: Reads, lent_to: int) -> None:
        """Read ahead: a consumer that has read this far will need the next entries."""
        key = (request.group, request.topic, request.queue_id)
        read_to = self._read_to.pop(key, 0)
        if not lent_to <= read_to <= lent_to + _ENTRIES_AHEAD:
            read_to = lent_to  # what was read ahead is not what is wanted now
        if read_to - lent_to < _ENTRIES_AT_ONCE:
            self._run(self._warm_entries(request.topic, request.queue_id, read_to))
            read_to += _ENTRIES_AHEAD
        self._read_to[key] = read_to
        if len(self._read_to) > _LENT_MAX:
            self._read_to.popitem(last=False)

    async def _warm_entries(self, topic: str, queue_id: int, first: int) -> None:
        with contextlib.suppress(OSError):  # `fetch` will say so when they are needed
            await self._worker(self._store.queues.read, topic, queue_id, first, _ENTRIES_AHEAD)

    async def fetch(self, request: Reads) -> bool:
        """Read entries in a worker, and lend them; returns whether there were any. Raises OSError."""
        entries = await self._worker(
            self._store.queues.read, request.topic, request.queue_id, request.offset, _ENTRIES_AT_ONCE
        )
        return self._lend(request, entries)

    def read_records(self, request: Reads) -> None:
        """Worker: read just the records of one pull, so that they are in memory when the loop gathers them."""
        data = self._kernel.tail_entries(request.topic, request.queue_id, request.offset, request.count)
        data = data or self._store.queues.read(request.topic, request.queue_id, request.offset, request.count)
        segment_bytes = self._store.config.segment_bytes
        for log_offset, size, _code in ENTRY.iter_unpack(data[: len(data) - len(data) % ENTRY.size]):
            if 0 < size <= segment_bytes:
                self._store.warm(log_offset, size)
