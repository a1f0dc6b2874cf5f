"""Builds new queue and index files beside the old ones, from the parts of the log in log order, and swaps them in.

    store/.rebuild/parts/            results of the range readers
    store/.rebuild/consumequeue/     the new files
    store/.rebuild/index/

A rebuild can be killed at any moment: until the swap the store is unchanged, each of the two folders is swapped in one step, and
old and new ones are both right for this log. The next run removes what a killed one left. Needs the store's lock.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Self

from kappamq.errors import StoreFormatError
from kappamq.native.interface import KernelModule
from kappamq.native.layout import ENTRY, FILLER_BYTES, GAP_ENTRIES_MAX
from kappamq.protocol.names import LMQ_PREFIX, METADATA_TOPIC
from kappamq.protocol.records.entries import index_file_bytes
from kappamq.protocol.records.record import RecordError
from kappamq.store.files import Files
from kappamq.store.index.index_file import IndexFiles, list_index_files
from kappamq.store.log.log_end import POSITION_NAME, fingerprint
from kappamq.store.log.log_ranges import Part
from kappamq.store.log.log_reader import LogReader
from kappamq.store.position import Position
from kappamq.store.queues.queues import QueueFiles, is_folder_name

ASIDE: Final = ".rebuild"
QUEUES: Final = "consumequeue"
INDEX: Final = "index"
_PARTS: Final = "parts"
_OPEN_MAX: Final = 512
_FOREVER: Final = (1 << 63) - 1
_NAME_DIGITS: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """File sizes as configured in the broker."""

    queue_file_entries: int = 300_000
    index_slots: int = 5_000_000
    index_entries: int = 20_000_000

    def checked(self, root: Path, files: Files) -> Self:
        """The same, with the size of existing queue files, if there are any. Raises StoreFormatError for unknown files, and for index
        files of another size."""
        entries = _queue_file_entries(root / QUEUES, files) or self.queue_file_entries
        expected = index_file_bytes(self.index_slots, self.index_entries)
        for path in list_index_files(root / INDEX, files):
            if files.size_of(path) not in (0, expected):
                raise StoreFormatError(
                    f"{path} has {files.size_of(path)} bytes, but with {self.index_slots} slots and {self.index_entries} entries it would "
                    f"have {expected}: name the sizes that the broker is configured with (--set maxHashSlotNum=..., maxIndexNum=...)"
                )
        return replace(self, queue_file_entries=entries)


def _queue_file_entries(folder: Path, files: Files) -> int:
    """How many entries the queue files hold, 0 if there are none. Raises StoreFormatError for anything else in the folder."""
    found = 0
    for topic in files.list(folder):
        for queue in _inside(folder / topic, files):
            for name in _inside(folder / topic / queue, files):
                path = folder / topic / queue / name
                size = files.size_of(path)
                if not queue.isdigit() or len(name) != _NAME_DIGITS or not name.isdigit() or size % ENTRY.size:
                    raise StoreFormatError(f"{path} is not a queue file: move it to another folder")
                found = found or size // ENTRY.size
    return found


def _inside(folder: Path, files: Files) -> list[str]:
    try:
        return files.list(folder)
    except NotADirectoryError:
        raise StoreFormatError(f"{folder} is not a folder of queue files: move it to another folder") from None


class NewFiles:
    """Queue and index files being built. `keys`: also the index."""

    def __init__(self, root: Path, sizes: Sizes, module: KernelModule, files: Files, *, keys: bool = True) -> None:
        self._root = root
        self._files = files
        self._keys = keys
        self.folder = root / ASIDE
        files.remove_tree(self.folder)
        files.make_folder(self.folder / _PARTS)
        self.queues = QueueFiles(self.folder / QUEUES, sizes.queue_file_entries, _OPEN_MAX, files)
        self.index = IndexFiles(
            self.folder / INDEX,
            sizes.index_slots,
            sizes.index_entries,
            files,
            index_apply=module.index_apply,
            index_link=module.index_link,
        )
        self.ends: dict[tuple[str, int], int] = {}  # one past the last entry of each queue
        self._begins: dict[tuple[str, int], int] = {}  # its first entry
        self.entries = 0
        self.left_out: set[str] = set()  # topics whose names are not valid folder names

    def part_path(self, start: int) -> Path:
        return self.folder / _PARTS / f"{start:0{_NAME_DIGITS}d}"

    def add(self, part: Part) -> None:
        """Enter the next part in log order."""
        for topic, queue_id, first, entries in part.queues:
            if not is_folder_name(topic):
                self.left_out.add(topic)
                continue
            self._enter(topic, queue_id, first, memoryview(entries))
        if part.keys:
            self.index.apply(part.keys)

    def _enter(self, topic: str, queue_id: int, first: int, entries: memoryview) -> None:
        """Continue a queue as dispatch does: repeated entries are skipped, a gap gets filler, and if the numbering jumps, the
        earlier messages were never in this log."""
        queue = (topic, queue_id)
        end = self.ends.get(queue)
        if end is not None and first < end:
            entries = entries[(end - first) * ENTRY.size :]
            first = end
        elif end is not None and first - end > GAP_ENTRIES_MAX:
            self.queues.cut(topic, queue_id, 0)
            del self._begins[queue]
        elif end is not None and first > end:
            log_offset = ENTRY.unpack_from(entries)[0]
            filler = ENTRY.pack(log_offset, FILLER_BYTES, 0) * (first - end)
            self.queues.write(topic, queue_id, end, filler, self._begins[queue])
        if entries:
            self.queues.write(topic, queue_id, first, entries, self._begins.setdefault(queue, first))  # type: ignore[arg-type]
            self.ends[queue] = first + len(entries) // ENTRY.size
            self.entries += len(entries) // ENTRY.size

    def metadata(self, log: LogReader, stamp: int) -> Iterator[bytes]:
        """Bodies of the broker's own metadata records that lie at or behind `stamp`."""
        low = 0
        high = end = self.ends.get((METADATA_TOPIC, 0), 0)
        while low < high:
            middle = (low + high) // 2
            log_offset, size, _code = self.queues.entry(METADATA_TOPIC, 0, middle)
            if not size or size == FILLER_BYTES or log_offset < stamp:
                low = middle + 1
            else:
                high = middle
        for number in range(low, end):
            log_offset, size, _code = self.queues.entry(METADATA_TOPIC, 0, number)
            if size not in (0, FILLER_BYTES):
                try:
                    yield log.record(log_offset).record.body
                except RecordError:
                    continue

    def drop_topics(self, names: Collection[str]) -> list[str]:
        """Remove the queues of deleted topics; returns their names."""
        gone = sorted({topic for topic, _queue_id in self.ends if topic in names})
        for topic in gone:
            self.queues.delete_topic(topic)
            self.ends = {key: end for key, end in self.ends.items() if key[0] != topic}
        return gone

    def keep_queues(self, log_min: int, deleted: Collection[str]) -> list[tuple[str, int]]:
        """Keep old files of queues without messages in the log: they show where the numbering of a queue ended whose messages have all
        expired, or they belong to a queue that lists messages of other topics (LMQ)."""
        kept: list[tuple[str, int]] = []
        old = QueueFiles(self._root / QUEUES, self.queues.file_entries, _OPEN_MAX, self._files)
        for topic, queue_id in list(old.queues()):
            if (topic, queue_id) in self.ends or topic in deleted:
                continue
            low, end = old.bounds(topic, queue_id, log_min, _FOREVER)
            if end and (low == end or topic.startswith(LMQ_PREFIX)):
                place = self.folder / QUEUES / topic / str(queue_id)
                self._files.make_folder(place)
                for name in self._files.list(old.folder / topic / str(queue_id)):
                    self._files.link(old.folder / topic / str(queue_id) / name, place / name)
                self.ends[topic, queue_id] = end
                kept.append((topic, queue_id))
        return kept

    # -- taking their place --------------------------------------------------------------------------------------------------

    def sync(self) -> None:
        """Make everything that was written durable."""
        self.index.flush()
        for name in self._names:
            self._files.make_folder(self.folder / name)
        self.queues.sync()
        self.index.sync()
        for name in self._names:
            self._files.sync_folder(self.folder / name)
        self._files.sync_folder(self.folder)

    @property
    def _names(self) -> tuple[str, ...]:
        return (QUEUES, INDEX) if self._keys else (QUEUES,)

    def swap(self, log: LogReader, end: int, position: Position | None) -> None:
        """Replace the old files by the new ones, durably, and record in the position file how far they go."""
        noted = None if position is None else self._noted(log, end, position)
        self.close()
        for name in self._names:
            live = self._root / name
            if self._files.exists(live):
                self._files.exchange(self.folder / name, live)
            else:
                self._files.rename(self.folder / name, live)
        self._files.sync_folder(self._root)
        if noted is not None:
            noted.save(self._root / POSITION_NAME, self._files, sync=True)

    def _noted(self, log: LogReader, end: int, before: Position) -> Position:
        """Queues and index are complete and on disk, but the position goes only as far as the broker's did. After a crash the log has more:
        the broker scans that itself, and so finds the newest store time."""
        at = before.dispatched if fingerprint(log, before.dispatched) == before.last_crc else before.synced
        at = min(at, end)
        for start in log.starts:
            if start + log.segment_bytes > before.flushed and start < at:
                fd = self._files.open(log.folder / f"{start:0{_NAME_DIGITS}d}", writable=False)
                try:
                    self._files.sync(fd)
                finally:
                    self._files.close(fd)
        ends = list(self.ends.values())
        if at < end:
            ends = [self.queues.bounds(*key, log.min, at)[1] for key in self.ends]
        queues, entries, crc = sum(map(bool, ends)), sum(ends), fingerprint(log, at)
        return replace(
            before,
            dispatched=at,
            synced=at,
            flushed=max(before.flushed, at),
            index=at if self._keys else min(before.index, at),
            queues=queues,
            entries=entries,
            last_crc=crc,
            synced_crc=crc,
            synced_queues=queues,
            synced_entries=entries,
        )

    def close(self) -> None:
        self.queues.close()
        self.index.close()

    def remove(self) -> None:
        """Remove what is no longer needed: parts, and after the swap the old files."""
        self.close()
        self._files.remove_tree(self.folder)
