"""The key index: key -> records, as a sequence of files; only the newest grows. See view.py for their bytes.

`apply` takes the keys that the kernel's dispatch collected. A file is named after the store time of its first record and depends on
nothing but the sequence of records: removed and built again from the log, it has the same bytes.

Only one thread at a time may change files; `query` may run beside it on another.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kappamq.errors import StoreFormatError
from kappamq.native.layout import INDEX_PENDING
from kappamq.native.pure_index import index_link
from kappamq.protocol.records.entries import key_hash
from kappamq.store.files import Files
from kappamq.store.index.growing import GrowingIndexFile, IndexApply, OnDisk
from kappamq.store.index.view import FIRST, WALK_MAX, IndexHeader, IndexLink, IndexView, Search, file_name, is_file_name

_FOREVER = 1 << 62


@dataclass(frozen=True, slots=True)
class IndexFileInfo:
    """One file for `store inspect`."""

    name: str
    begin_ms: int
    end_ms: int
    begin_offset: int
    end_offset: int
    entries: int
    used_slots: int


class IndexFiles:
    def __init__(
        self,
        folder: Path,
        slots: int,
        entries: int,
        files: Files,
        *,
        index_apply: IndexApply,
        index_link: IndexLink = index_link,
    ) -> None:
        self.folder = folder
        self.slots = slots
        self.entries_max = entries
        self._files = files
        self._apply = index_apply
        self._link = index_link
        self._full: list[tuple[Path, IndexHeader]] = []  # older files in log order; replaced, never changed
        self._newest: GrowingIndexFile | None = None
        self._unsynced_full: list[Path] = []
        self._new_names = False  # the folder has to be synced
        self.indexed_to = 0  # keys of records below are indexed; repeated ones are ignored

    def load(self, trusted_to: int) -> None:
        """Open the existing files, ours or Java's, and remove entries for records from `trusted_to` on.

        The caller guarantees that those below are in the files. Quick: slots are computed when first needed."""
        paths = list_index_files(self.folder, self._files)
        while paths and self._newest is None:
            path = paths.pop()
            self._newest = GrowingIndexFile.resume(
                path, self.slots, self.entries_max, self._files, trusted_to, self._link
            )
            if self._newest is None:
                self._files.remove(path)
                self._new_names = True
        for path in paths:
            self._full = [*self._full, (path, self._load_full(path))]
        if self._newest is not None:
            self.indexed_to = self._newest.header.end_offset + 1

    def _load_full(self, path: Path) -> IndexHeader:
        view = self._open(path, writable=True)
        try:
            view.check_size()
            header = view.header()
            count = view.end(_FOREVER) if header.count < self.entries_max else header.count
            if count > header.count:
                # A Java broker was killed before it wrote the counters; the next one would stop at them.
                header.count, header.used_slots = count, view.used_slots()
                self._files.pwrite(view.fd, header.encode(), 0)
                self._unsynced_full.append(path)
            return header
        finally:
            self._files.close(view.fd)

    def _open(self, path: Path, writable: bool = False) -> IndexView:
        fd = self._files.open(path, writable=writable)
        return IndexView(path, fd, self.slots, self.entries_max, self._files)

    # -- growing -----------------------------------------------------------------------------------------------------------

    def apply(self, pending: bytes) -> None:
        """Add the result of Kernel.take_index, in log order; records below `indexed_to` are skipped.

        After an OSError (disk full) nothing is lost: pass the same again, or all from `indexed_to` on."""
        position = self._first_unknown(pending)
        try:
            while position < len(pending):
                newest = self._newest
                if newest is None or newest.full:
                    newest = self._roll(INDEX_PENDING.unpack_from(pending, position)[2])
                position = newest.append(pending, position, self._apply)
        except OSError:
            # Some keys of the last record may be missing: it has to be passed again as a whole.
            self._advance(pending, position, 0)
            raise
        self._advance(pending, position, 1)

    def _advance(self, pending: bytes, position: int, beyond: int) -> None:
        if position >= INDEX_PENDING.size:
            _key, log_offset, _ms = INDEX_PENDING.unpack_from(pending, position - INDEX_PENDING.size)
            self.indexed_to = max(self.indexed_to, log_offset + beyond)

    def _first_unknown(self, pending: bytes) -> int:
        low, high = 0, len(pending) // INDEX_PENDING.size
        while low < high:
            middle = (low + high) // 2
            if INDEX_PENDING.unpack_from(pending, middle * INDEX_PENDING.size)[1] < self.indexed_to:
                low = middle + 1
            else:
                high = middle
        return low * INDEX_PENDING.size

    def _roll(self, store_ms: int) -> GrowingIndexFile:
        """Close the full file, if any, and begin the next one, whose first record was stored at `store_ms`."""
        old = self._newest
        if old is not None:
            old.flush()
            self._full = [*self._full, (old.path, old.header)]
            self._unsynced_full.append(old.path)
            self._newest = None
            old.close()
        name, header = (self._full[-1][0].name, self._full[-1][1]) if self._full else ("", None)
        self._files.make_folder(self.folder)
        path = self.folder / file_name(store_ms, after=name)
        self._newest = GrowingIndexFile.create(path, self.slots, self.entries_max, self._files, header, self._link)
        self._new_names = True
        return self._newest

    # -- to disk -----------------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Write slots and counters of the newest file: then a Java broker finds every key in it, too."""
        if self._newest is not None:
            self._newest.flush()

    def sync(self) -> None:
        """Make every entry durable. Slots and counters are written only from time to time; before a stop, call `flush`."""
        while self._unsynced_full:
            try:
                fd = self._files.open(self._unsynced_full[0])
            except FileNotFoundError:
                pass  # deleted by retention meanwhile
            else:
                try:
                    self._files.sync(fd)
                finally:
                    self._files.close(fd)
            del self._unsynced_full[0]
        if self._newest is not None:
            self._newest.sync()
        if self._new_names:
            self._files.sync_folder(self.folder)
            self._new_names = False

    @property
    def end_ms(self) -> int:
        """Store time up to which slots and counters are written: the checkpoint's value for the index.

        After a crash a Java broker deletes index files that end later than that."""
        if self._newest is not None and self._newest.flushed > FIRST:
            return self._newest.flushed_ms
        return self._full[-1][1].end_ms if self._full else 0

    def growing(self, path: Path) -> GrowingIndexFile | None:
        """The file at `path` if it is the one that grows."""
        newest = self._newest
        return newest if newest is not None and newest.path == path else None

    def on_disk(self, path: Path) -> OnDisk | None:
        """The state of slots and counters on disk if the file at `path` is the growing one; None if it is complete. For any
        thread."""
        growing = self.growing(path)
        return None if growing is None else growing.on_disk

    def read_header_again(self, path: Path) -> None:
        """The header of a file was repaired on disk: read it again."""
        growing = self.growing(path)
        if growing is not None:
            growing.read_begin_again()
            return
        self._full = [(known, self._load_full(path) if known == path else header) for known, header in self._full]

    @property
    def behind(self) -> bool:
        """Whether there are entries after `end_ms`: keys that a Java broker would not find after a crash now."""
        return self._newest is not None and self._newest.behind

    # -- reading -----------------------------------------------------------------------------------------------------------

    def query(
        self,
        topic: str,
        key: str,
        count_max: int,
        begin_ms: int,
        end_ms: int,
        walk_max: int = WALK_MAX,
        within: Callable[[int], bool] | None = None,
    ) -> list[int]:
        """Log offsets of records that may have this key and were stored in [begin_ms, end_ms], newest first.

        Other keys may have the same hash, and times are exact to a second: the caller checks the records. After the clock was set the
        files' own times are not reliable: then `within` decides by log offset. Waits for the disk: for a worker."""
        search = Search(key_hash(topic, key), count_max, begin_ms, end_ms, walk_max, within)
        # In this order: a file that becomes full in between is in both and not missed.
        newest, full = self._newest, self._full
        if newest is not None:
            begin = newest.header.begin_ms
            if search.wants(newest.header):
                self._search(search, newest.path, newest)
            if begin < search.begin_ms:
                return search.found
        for path, header in reversed(full):
            if search.done:
                break
            if search.wants(header) and (newest is None or path != newest.path):
                self._search(search, path, header)
            if header.begin_ms < search.begin_ms:
                break
        return search.found

    def _search(self, search: Search, path: Path, file: GrowingIndexFile | IndexHeader) -> None:
        try:
            view = self._open(path)
        except FileNotFoundError:
            return  # deleted by retention meanwhile
        try:
            if isinstance(file, GrowingIndexFile):
                file.search(search, view)
            else:
                search.walk(view, file.begin_ms, view.slot(search.key), file.count)
        finally:
            self._files.close(view.fd)

    @property
    def total(self) -> int:
        """Entries in all files."""
        return sum(info.entries for info in self.infos())

    def infos(self) -> list[IndexFileInfo]:
        """All files, oldest first."""
        files = list(self._full)
        if self._newest is not None:
            files.append((self._newest.path, self._newest.header))
        return [info(path.name, header) for path, header in files]

    # -- the end -----------------------------------------------------------------------------------------------------------

    def expire(self, log_min: int) -> list[str]:
        """Remove files whose records are all below `log_min`, but never the last: the names of the removed files."""
        gone: list[str] = []
        while self._full and self._full[0][1].end_offset < log_min and (self._newest or len(self._full) > 1):
            path, _header = self._full[0]
            self._full = self._full[1:]
            self._files.remove(path)
            self._new_names = True
            gone.append(path.name)
        return gone

    def close(self) -> None:
        """Close the files. Slots and counters must have been flushed."""
        if self._newest is not None:
            self._newest.close()
            self._newest = None
        self._full = []


def info(name: str, header: IndexHeader) -> IndexFileInfo:
    return IndexFileInfo(
        name=name,
        begin_ms=header.begin_ms,
        end_ms=header.end_ms,
        begin_offset=header.begin_offset,
        end_offset=header.end_offset,
        entries=header.count - FIRST,
        used_slots=header.used_slots,
    )


def list_index_files(folder: Path, files: Files) -> list[Path]:
    """The index files, oldest first. Raises StoreFormatError for anything else in the folder."""
    names = files.list(folder)
    for name in names:
        if not is_file_name(name):
            raise StoreFormatError(
                f"{folder / name} is not an index file (17 digits of a time): move it to another folder"
            )
    return [folder / name for name in names]
