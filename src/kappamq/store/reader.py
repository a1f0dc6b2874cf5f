"""Read-only access to a store for Spark, the command line and tests. Ours or a Java broker's, running or stopped.

Takes no lock and writes nothing. A broker may run meanwhile: queue files follow the log within about a second, and what a queue
refers to is complete in the log. Records that retention deletes meanwhile are skipped, like those deleted before.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from kappamq.errors import ProtocolError, StoreDamaged, StoreError, StoreFormatError
from kappamq.native.layout import FILLER_BYTES
from kappamq.protocol import fastjson
from kappamq.protocol.records import ids, properties
from kappamq.protocol.records.entries import QUEUE_ENTRY, key_hash
from kappamq.protocol.records.record import Record, RecordError
from kappamq.protocol.records.tags import keys_of
from kappamq.store.files import Files
from kappamq.store.index.index_file import IndexFileInfo, info, list_index_files
from kappamq.store.index.view import IndexView, Search
from kappamq.store.log.clock_steps import CLOCK_FILE, ClockSteps, likely_ms
from kappamq.store.log.log_reader import Damage, Found, LogReader
from kappamq.store.queues.queues import QueueFiles

FOREVER: Final = (1 << 63) - 1
_CHUNK_ENTRIES = 512
_DEFAULT_QUEUE_ENTRIES = 300_000
_CLOCK_BYTES_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class QueueRange:
    """Messages [min, max) of a queue can be read."""

    topic: str
    queue_id: int
    min: int
    max: int

    @property
    def count(self) -> int:
        return self.max - self.min


def check_is_store(root: Path, files: Files | None = None) -> None:
    """Raises StoreError if this is not a broker's data directory."""
    if not (files or Files()).exists(root / "commitlog"):
        raise StoreError(f"{root} is not a data directory: no commitlog folder found. Pass the broker's data directory")


class StoreReader:
    """`index_slots` and `index_entries` are those the store was written with; only `by_key` needs them."""

    def __init__(
        self,
        root: Path | str,
        *,
        index_slots: int = 5_000_000,
        index_entries: int = 20_000_000,
        files: Files | None = None,
    ) -> None:
        self.root = Path(root)
        self.index_slots = index_slots
        self.index_entries = index_entries
        self._files = files or Files()
        check_is_store(self.root, self._files)
        self.log = LogReader(self.root / "commitlog", self._files)
        self._queue_files: QueueFiles | None = None

    def close(self) -> None:
        self.log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- queues ------------------------------------------------------------------------------------------------------------

    @property
    def queue_files(self) -> QueueFiles:
        if self._queue_files is None:
            folder = self.root / "consumequeue"
            found = self._queue_file_entries(folder)
            files = QueueFiles(folder, found or _DEFAULT_QUEUE_ENTRIES, 8, self._files)
            if not found:
                return files  # not cached: there is no file yet
            self._queue_files = files
        return self._queue_files

    def _queue_file_entries(self, folder: Path) -> int:
        """Entries per file, from the size of any file."""
        for topic in self._files.list(folder):
            for queue in self._files.list(folder / topic):
                for name in self._files.list(folder / topic / queue):
                    path = folder / topic / queue / name
                    try:
                        fd = self._files.open(path, writable=False)
                    except OSError:
                        continue
                    try:
                        size = self._files.size(fd)
                    finally:
                        self._files.close(fd)
                    if size % QUEUE_ENTRY.size:
                        raise StoreFormatError(f"{path} has {size} bytes, which is not a whole number of entries")
                    if size:
                        return size // QUEUE_ENTRY.size
        return 0

    def topics(self) -> list[str]:
        """Topics that have queues, sorted."""
        return sorted({topic for topic, _queue_id in self.queue_files.queues()})

    def queues(self, topic: str | None = None) -> list[QueueRange]:
        """Every queue (of a topic) with its readable range."""
        self.log.refresh()
        wanted = [key for key in self.queue_files.queues() if topic is None or key[0] == topic]
        return [self._range(*key) for key in sorted(wanted)]

    def queue(self, topic: str, queue_id: int) -> QueueRange:
        """One queue; an empty range if there is none of that name."""
        self.log.refresh()
        return self._range(topic, queue_id)

    def _range(self, topic: str, queue_id: int) -> QueueRange:
        if "/" in topic:
            return QueueRange(topic, queue_id, 0, 0)  # not a valid topic name: never use it as a path
        low, end = self.queue_files.bounds(topic, queue_id, self.log.min, FOREVER)
        return QueueRange(topic, queue_id, low, end)

    def entries(self, topic: str, queue_id: int, start: int, stop: int) -> Iterator[tuple[int, int, int, int]]:
        """(offset, log offset, record bytes, tag code) of the messages [start, stop) that the queue's files hold."""
        files = self.queue_files
        while start < stop:
            data = files.read(topic, queue_id, start, min(_CHUNK_ENTRIES, stop - start))
            if not data:
                return
            for number, (log_offset, size, code) in enumerate(QUEUE_ENTRY.iter_unpack(data)):
                if size <= 0:
                    return
                if size != FILLER_BYTES:
                    yield start + number, log_offset, size, code
            start += len(data) // QUEUE_ENTRY.size

    def read(
        self, topic: str, queue_id: int, start: int = 0, stop: int = FOREVER, *, skip_damage: bool = False
    ) -> Iterator[Record]:
        """The messages [start, stop) of a queue that exist, in order.

        Raises StoreDamaged at a record that does not match its entry, unless `skip_damage` skips it."""
        bounds = self.queue(topic, queue_id)
        start, stop = max(start, bounds.min), min(stop, bounds.max)
        while start < stop:
            chunk = list(self.entries(topic, queue_id, start, min(stop, start + _CHUNK_ENTRIES)))
            places = [(log_offset, size) for _offset, log_offset, size, _code in chunk if log_offset >= self.log.min]
            numbers = {log_offset: offset for offset, log_offset, _size, _code in chunk}
            for log_offset, found in self.log.records_at(places):
                offset = numbers[log_offset]
                if isinstance(found, Found):
                    record = found.record
                    if (record.topic, record.queue_id, record.queue_offset) == (topic, queue_id, offset):
                        yield record
                        continue
                    why = f"it holds message {record.queue_offset} of {record.topic}/{record.queue_id}"
                elif self._deleted(log_offset):
                    continue
                else:
                    why = str(found)
                if not skip_damage:
                    raise StoreDamaged(
                        f"message {offset} of {topic}/{queue_id} should lie at {log_offset} of the log: {why}. "
                        f"`kappamq store verify` lists all damage"
                    )
            start += _CHUNK_ENTRIES

    def _deleted(self, log_offset: int) -> bool:
        self.log.refresh()
        return log_offset < self.log.min

    def offset_at(self, topic: str, queue_id: int, ms: int) -> int:
        """The first message of a queue that was stored at or after `ms`; the queue's end if there is none."""
        bounds = self.queue(topic, queue_id)
        low, high = bounds.min, bounds.max
        steps = self.clock_steps()

        def stored_at(offset: int) -> int | None:
            entry = next(self.entries(topic, queue_id, offset, offset + 1), None) if offset >= bounds.min else None
            record = self.at(entry[1]) if entry is not None else None
            return None if record is None else record.stored_ms + steps.shift_ms(record.log_offset)

        while low < high:
            middle = (low + high) // 2
            stored = likely_ms(stored_at, middle)
            if stored is None or stored < ms:
                low = middle + 1
            else:
                high = middle
        return low

    def clock_steps(self) -> ClockSteps:
        """Where in the log the wall clock was set, according to the broker's snapshot."""
        try:
            fd = self._files.open(self.root / "config" / CLOCK_FILE, writable=False)
            try:
                table: Any = fastjson.loads(self._files.pread(fd, _CLOCK_BYTES_MAX, 0))
            finally:
                self._files.close(fd)
            return ClockSteps.of(table["steps"])
        except (OSError, ProtocolError, LookupError, TypeError, ValueError):
            return ClockSteps()  # then the times of the records are used

    # -- the log -----------------------------------------------------------------------------------------------------------

    def read_log(
        self, start: int | None = None, stop: int | None = None, *, skip_damage: bool = False
    ) -> Iterator[Record]:
        """The records of a range of the log, of all topics and in the order they were stored; see `read` for damage."""
        for found in self.log.scan(start, stop):
            if isinstance(found, Found):
                yield found.record
            elif isinstance(found, Damage) and not found.tail and not skip_damage:
                raise StoreDamaged(f"bytes {found.start} to {found.stop} of the log are not records: {found.why}")

    def at(self, log_offset: int) -> Record | None:
        """The record that begins at `log_offset`, None if there is no good one."""
        try:
            return self.log.record(log_offset).record
        except RecordError:
            return None

    def by_id(self, message_id: str, topic: str | None = None) -> Record | None:
        """The message with this offset id; with `topic`, also by the id that its producer gave it."""
        try:
            record = self.at(ids.parse_offset_id(message_id).log_offset)
        except ProtocolError:
            record = None
        if record is not None and record.offset_id == message_id.upper():
            return record
        return next(iter(self.by_key(topic, message_id)), None) if topic is not None else None

    # -- the key index -----------------------------------------------------------------------------------------------------

    def by_key(
        self, topic: str, key: str, count_max: int = 64, begin_ms: int = 0, end_ms: int = FOREVER
    ) -> list[Record]:
        """The newest messages of a topic with this key (or this id of the producer's), oldest of them first."""
        # Twice as many, because another key may rarely have the same hash.
        steps = self.clock_steps() if begin_ms > 0 or end_ms < FOREVER else ClockSteps()

        def is_within(log_offset: int) -> bool:
            record = self.at(log_offset)
            return record is not None and steps.within(log_offset, record.stored_ms, begin_ms, end_ms)

        search = Search(key_hash(topic, key), 2 * count_max, begin_ms, end_ms, within=is_within if steps else None)
        for path in reversed(list_index_files(self.root / "index", self._files)):
            begun = self._search(path, search)
            if search.done or begun < search.begin_ms:
                break
        found = [self.at(log_offset) for log_offset in search.found]
        right = [record for record in found if record is not None and _has_key(record, topic, key)]
        right = [it for it in right if steps.within(it.log_offset, it.stored_ms, begin_ms, end_ms)]
        return right[:count_max][::-1]

    def _search(self, path: Path, search: Search) -> int:
        view = self._view(path)
        if view is None:
            return FOREVER
        try:
            header = view.header()
            unslotted = view.unslotted(header)
            if len(unslotted):
                header.end_ms = max(header.end_ms, search.begin_ms)  # it has entries beyond those of the header
            if search.wants(header):
                search.scan(view, header.begin_ms, unslotted)
                search.walk(view, header.begin_ms, view.slot(search.key), view.entries_max, below=unslotted.start)
            return header.begin_ms
        finally:
            self._files.close(view.fd)

    def _view(self, path: Path) -> IndexView | None:
        try:
            view = IndexView(
                path,
                self._files.open(path, writable=False),
                self.index_slots,
                self.index_entries,
                self._files,
            )
        except FileNotFoundError:
            return None  # deleted by retention meanwhile
        try:
            if self._files.size(view.fd) == 0:
                self._files.close(view.fd)
                return None  # being created
            view.check_size()
        except StoreFormatError:
            self._files.close(view.fd)
            raise
        return view

    def index_infos(self) -> list[IndexFileInfo]:
        """What the index files hold, oldest first, counted from their entries."""
        infos: list[IndexFileInfo] = []
        for path in list_index_files(self.root / "index", self._files):
            view = self._view(path)
            if view is None:
                continue
            try:
                header = view.header()
                header.count = view.end(FOREVER)
                infos.append(info(path.name, header))
            finally:
                self._files.close(view.fd)
        return infos


def _has_key(record: Record, topic: str, key: str) -> bool:
    names = record.property_map()
    return record.topic == topic and (
        names.get(properties.UNIQUE_KEY) == key or key in keys_of(names.get(properties.KEYS))
    )
