"""Damage found while the broker runs: counted, logged, and repaired where the log has the right data.

Three parts find damage: readers of mapped log files (a page that cannot be read comes as zeros, see native/mapping.c), pulls whose
queue entry does not lead to a message of that queue, and the scrub.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

from kappamq.broker.events import Tick
from kappamq.store.log.commit_log import Segment
from kappamq.store.log.log_reader import Found, LogReader, Pread
from kappamq.store.log.pread_around import PreadAround
from kappamq.store.message_store import MessageStore
from kappamq.store.queues.entry_repair import BoundedRead, SearchEnded, entry_of, find_record

log = logging.getLogger(__name__)

Worker = Callable[..., Awaitable[Any]]
Run = Callable[[Coroutine[Any, Any, None]], None]
Entry = tuple[str, int, int]
"""Topic, queue id, number of a message."""

_REMEMBERED_MAX = 10_000
_SEARCH_BYTES_MAX = 16 << 20  # of the log, while a consumer waits; then the search goes on in the background
_SEARCH_SLICE_S = 0.001
_SEARCH_WAIT_S = 1.0  # for a search in the background, before a consumer's pull is tried again
_PROBE_BYTES = 64 << 10
_PROBE_MAX = 64 << 20


@dataclass(slots=True)
class Counts:
    """Since the broker started."""

    found: int = 0  # damaged places
    repaired: int = 0  # of these, brought back from the log or from memory
    unreadable_bytes: int = 0  # of log files: the disk cannot read them, or they were cut off

    def table(self) -> dict[str, str]:
        """For the runtime info."""
        return {
            "kappamqDamageFound": str(self.found),
            "kappamqDamageRepaired": str(self.repaired),
            "kappamqUnreadableBytes": str(self.unreadable_bytes),
        }


class LostPages:
    """Pages of log files that could not be read: asked for on every tick, told once per stretch."""

    def __init__(
        self,
        store: MessageStore,
        counts: Counts,
        read: Worker,
        run: Run,
        on_failed: Callable[[], object],
        on_lost: Callable[[int], object],
    ) -> None:
        """`on_lost`: told a place in the log that cannot be read."""
        self._on_lost = on_lost
        self._store = store
        self._counts = counts
        self._read = read
        self._run = run
        self._on_failed = on_failed
        self._seen = 0
        self._told: dict[int, list[tuple[int, int]]] = {}  # start of a log file -> stretches of it
        self._is_looking = False
        self._lock = threading.Lock()

    def ticked(self, event: Tick) -> None:
        store = self._store
        if store.failed is None and (size := store.log.cut_to) is not None:
            # The bytes after this were acknowledged and are gone; appending there would leave a hole that looks like the log's end.
            store.fail(f"the log file that is written to was cut under the broker, it has {size} bytes left")
            self._on_failed()
        count = store.log.lost_count
        if count != self._seen and not self._is_looking:
            self._seen = count
            self._is_looking = True
            self._run(self._look())

    async def _look(self) -> None:
        try:
            for segment in list(self._store.log.segments()):
                if segment.view.lost_count:
                    await self._read(self.look_at, segment)
                    for start, _stop in self._told.get(segment.start, ())[:1]:
                        self._on_lost(segment.start + start)
        finally:
            self._is_looking = False
            self._seen = min(self._seen, self._store.log.lost_count)

    def look_at(self, segment: Segment) -> None:
        """Worker: tell what is lost; what can be read again is shown again."""
        with self._lock:
            self._look_at(segment)

    def _look_at(self, segment: Segment) -> None:
        told = self._told.setdefault(segment.start, [])
        for start, stop in segment.view.lost():
            if any(low <= start and stop <= high for low, high in told):
                continue
            if self._is_readable(segment, start, stop) and self._restore(segment, start, stop):
                log.warning("%s: bytes %d to %d can be read again", segment.path, start, stop)
                self._counts.found += 1
                self._counts.repaired += 1
                continue
            self._tell(segment, start, stop)

    def _restore(self, segment: Segment, start: int, stop: int) -> bool:
        try:
            segment.view.restore(start, stop, segment.fd)
        except OSError:
            return False
        return True

    def _is_readable(self, segment: Segment, start: int, stop: int) -> bool:
        try:
            return len(self._store.files.pread(segment.fd, stop - start, start)) == stop - start
        except OSError:
            return False

    def mended(self, start: int, stop: int) -> None:
        """Worker: these bytes of the log were written anew. What could not be read among them is shown again."""
        with self._lock:
            for segment in list(self._store.log.segments()):
                low, high = start - segment.start, stop - segment.start
                if high <= 0 or low >= self._store.config.segment_bytes:
                    continue
                told = self._told.get(segment.start, [])
                again = [(begin, end) for begin, end in told if begin < high and low < end]
                self._told[segment.start] = [stretch for stretch in told if stretch not in again]
                self._counts.unreadable_bytes -= sum(end - begin for begin, end in again)
                if segment.view.lost_count:
                    self._look_at(segment)

    def _tell(self, segment: Segment, start: int, stop: int) -> None:
        told = self._told[segment.start]
        size = self._store.files.size(segment.fd)
        if size < stop:
            stop, why = self._store.config.segment_bytes, f"the file was cut to {size} bytes"
        else:
            why = "the disk reports an error"
            while stop < self._store.config.segment_bytes and stop - start < _PROBE_MAX:
                if self._is_readable(segment, stop, min(stop + _PROBE_BYTES, self._store.config.segment_bytes)):
                    break
                stop = min(stop + _PROBE_BYTES, self._store.config.segment_bytes)
        new_bytes = (stop - start) - sum(max(0, min(stop, high) - max(start, low)) for low, high in told)
        told.append((start, stop))
        self._counts.found += 1
        self._counts.unreadable_bytes += new_bytes
        log.error(
            "%s: bytes %d to %d cannot be read (%s). Messages there are skipped, all others are served. Check the disk; to get "
            "them back, stop the broker and restore the file from a copy. To start without them: --set store.skip_damage=true",
            *(segment.path, start, stop, why),
        )

    def stretch_end(self, log_offset: int) -> int | None:
        """Worker: one past the end of the unreadable stretch that holds `log_offset`; None if it is not in one."""
        start = log_offset - log_offset % self._store.config.segment_bytes
        for segment in list(self._store.log.segments()):
            if segment.start == start and segment.view.lost_count:
                self.look_at(segment)
        ends = [high for low, high in self._told.get(start, ()) if low <= log_offset - start < high]
        return start + max(ends) if ends else None


class _Pace:
    """Leaves half of a core to the loop while the log is searched in the background, in slices of a millisecond."""

    def __init__(self, stopping: threading.Event) -> None:
        self._stopping = stopping
        self._began = time.thread_time()

    def step(self) -> None:
        used_s = time.thread_time() - self._began
        if used_s >= _SEARCH_SLICE_S:
            self._stopping.wait(used_s)
            self._began = time.thread_time()
        if self._stopping.is_set():
            raise SearchEnded

    def pread(self, pread: Pread, fd: int, count: int, position: int) -> bytes:
        self.step()
        return pread(fd, count, position)


class EntryRepair:
    """Queue entries that do not lead to their message.

    While a consumer waits, the log is searched as far as takes a moment. What that does not find is searched for on a thread of its
    own, one queue after the other; consumers are asked to try again until it is found, or all of the log where it can be was read."""

    def __init__(
        self,
        store: MessageStore,
        counts: Counts,
        lost_pages: LostPages,
        read: Worker,
        write: Worker,
        run: Run,
        delays_ms: Sequence[int],
        from_copy: Callable[[int], Awaitable[bool]],
    ) -> None:
        """`delays_ms`: of the delay levels, which the entries of delayed messages tell. `from_copy`: have what is damaged around a place
        of the log brought from another copy; whether anything came."""
        self._delays_ms = delays_ms
        self._from_copy = from_copy
        self._store = store
        self._counts = counts
        self._lost_pages = lost_pages
        self._read = read
        self._write = write
        self._run = run
        self._repairing = asyncio.Lock()
        self._stopping = threading.Event()
        self._thread = ThreadPoolExecutor(1, "kappamq-search")
        # Queues for which the log is searched -> set when that is over.
        self._searched: dict[tuple[str, int], asyncio.Event] = {}
        self._lost: OrderedDict[Entry, int] = OrderedDict()  # messages that the log does not have -> where to go on
        self._found: OrderedDict[Entry, int] = OrderedDict()  # messages that it has -> where

    def stop(self) -> None:
        """End the searches that are under way; consumers that wait for one are asked to try again."""
        self._stopping.set()
        self._thread.shutdown(wait=False)

    def known_lost(self, topic: str, queue_id: int, number: int) -> int | None:
        """The next message that may be there, if this one is known to be gone for good."""
        return self._lost.get((topic, queue_id, number))

    def go_on_at(self, topic: str, queue_id: int, number: int, asked: int) -> int:
        """Where a consumer goes on that asked for `asked` on and cannot have message `number`: behind it if the search is over, else it
        asks again."""
        known = self.known_lost(topic, queue_id, number)
        if known is None and (topic, queue_id, number) not in self._found:
            return asked
        return max(number + 1, known or 0)

    async def repair(self, topic: str, queue_id: int, number: int) -> int | None:
        """Make the entry lead to its message again: None if it does now, or if the search goes on (then `go_on_at` says so); else the
        next message that may be there."""
        async with self._repairing:
            known = self.known_lost(topic, queue_id, number)
            if known is None and (topic, queue_id) not in self._searched:
                known = await self._repair(topic, queue_id, number)
        searched = self._searched.get((topic, queue_id))
        if known is None and searched is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(searched.wait(), _SEARCH_WAIT_S)
            known = self.known_lost(topic, queue_id, number)
        return known

    async def _repair(self, topic: str, queue_id: int, number: int) -> int | None:
        low, end, _next, _stored = self._store.queue_state(topic, queue_id)
        if not low <= number < end:
            return None  # deleted meanwhile: the next pull is answered with where the queue begins
        try:
            found: Found | int = await self._read(self._find_soon, topic, queue_id, number, (low, end))
            if not isinstance(found, Found):
                entry = await self._read(self._store.entry, topic, queue_id, number)
                if entry is not None and await self._from_copy(entry[0]):
                    found = await self._read(self._find_soon, topic, queue_id, number, (low, end))
        except SearchEnded:
            self._search_on(topic, queue_id, number, (low, end))
            return None
        return await self._settle(topic, queue_id, number, found)

    def _search_on(self, topic: str, queue_id: int, number: int, bounds: tuple[int, int]) -> None:
        if self._stopping.is_set():
            raise _stopped()
        log.warning(
            "topic %s queue %d: the queue entry of message %d is damaged, and its record is not in the %d MiB of the log that were "
            "searched; the search goes on, consumers of this queue wait there until it is over",
            *(topic, queue_id, number, _SEARCH_BYTES_MAX >> 20),
        )
        self._searched[topic, queue_id] = asyncio.Event()
        loop = asyncio.get_running_loop()
        search = loop.run_in_executor(self._thread, self._find_all, topic, queue_id, number, bounds)
        self._run(self._finish(topic, queue_id, number, search))

    async def _finish(self, topic: str, queue_id: int, number: int, search: asyncio.Future[Found | int]) -> None:
        try:
            await self._settle(topic, queue_id, number, await search)
        except OSError as error:
            if not self._stopping.is_set():
                log.error(
                    "topic %s queue %d: the search of the log for message %d failed: %s. It begins again when a consumer asks for "
                    "the message; check the broker's disk",
                    *(topic, queue_id, number, error),
                )
        finally:
            self._searched.pop((topic, queue_id)).set()

    async def _settle(self, topic: str, queue_id: int, number: int, found: Found | int) -> int | None:
        """Write what the search has found into the queue's file, or remember it as lost."""
        if isinstance(found, Found):
            right = entry_of(found, self._delays_ms)
            wrong = await self._write(self._replace, topic, queue_id, number, right)
            self._store.entries_were_replaced(topic, queue_id)
            _remember(self._found, (topic, queue_id, number), found.offset)
            if wrong:
                self._counts.found += 1
                self._counts.repaired += 1
                log.warning(
                    "topic %s queue %d: the queue entry of message %d was damaged, it is rebuilt from the log record at %d; "
                    "the disk may be failing: check it, and run `kappamq store verify`",
                    *(topic, queue_id, number, found.offset),
                )
            return None
        _remember(self._lost, (topic, queue_id, number), found)
        if self._store.queue_state(topic, queue_id).first <= number:
            self._counts.found += 1
            log.error(
                "topic %s queue %d: message %d cannot be read, its log record is damaged or gone; consumers continue at message %d. "
                "`kappamq store verify` lists all damage; a copy of the log file brings a damaged record back",
                *(topic, queue_id, number, found),
            )
        return found

    def _find_soon(self, topic: str, queue_id: int, number: int, bounds: tuple[int, int]) -> Found | int:
        """Worker: as `_find`. Raises SearchEnded if that would take long."""
        bounded = BoundedRead(PreadAround(self._store.files).pread, _SEARCH_BYTES_MAX, self._stopping.is_set)
        try:
            return self._find(topic, queue_id, number, bounds, bounded.pread, lambda: None)
        except SearchEnded:
            if self._stopping.is_set():
                raise _stopped() from None
            raise

    def _find_all(self, topic: str, queue_id: int, number: int, bounds: tuple[int, int]) -> Found | int:
        """Thread of the searches: as `_find`, however long it takes."""
        pace = _Pace(self._stopping)
        pread = partial(pace.pread, PreadAround(self._store.files).pread)
        try:
            return self._find(topic, queue_id, number, bounds, pread, pace.step)
        except SearchEnded:
            raise _stopped() from None

    def _find(
        self, topic: str, queue_id: int, number: int, bounds: tuple[int, int], pread: Pread, pace: Callable[[], object]
    ) -> Found | int:
        """The record of a message, else the number of the next one that may be there."""
        store = self._store
        entry = store.entry(topic, queue_id, number)
        if entry is not None and (lost_to := self._lost_pages.stretch_end(entry[0])) is not None:
            return max(number + 1, store.first_at_or_behind(topic, queue_id, lost_to))
        reader = LogReader(store.log.folder, store.files, store.config.segment_bytes, pread)
        try:
            # The entry may be right by now, or the record may have been unreadable for a moment only.
            found = find_record(
                reader,
                topic,
                queue_id,
                number,
                bounds,
                store.marks.dispatched.offset,
                lambda n: store.entry(topic, queue_id, n),
                pace,
            )
        finally:
            reader.close()
        if not isinstance(found, Found) and entry is not None and entry[0] < store.log.min:
            return max(number + 1, store.first_at_or_behind(topic, queue_id, store.log.min))
        return found

    def _replace(self, topic: str, queue_id: int, number: int, right: bytes) -> bool:
        """Writer: put the right entry into the queue's file; False if it was there, or its queue is gone meanwhile."""
        low, _end, _next, stored = self._store.queue_state(topic, queue_id)
        if not low <= number < stored or self._store.queues.read(topic, queue_id, number, 1) == right:
            return False
        self._store.queues.replace(topic, queue_id, number, right)
        return True


def _remember(table: OrderedDict[Entry, int], entry: Entry, value: int) -> None:
    table[entry] = value
    while len(table) > _REMEMBERED_MAX:
        table.popitem(last=False)


def _stopped() -> OSError:
    return OSError(errno.ECANCELED, "the broker stops")
