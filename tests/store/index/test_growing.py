"""One growing file; the row of files, crashes and the comparison with Java's bytes are in test_index_file.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from kappamq.errors import StoreFormatError
from kappamq.native.layout import INDEX_PENDING
from kappamq.native.pure import index_apply
from kappamq.store.files import Files
from kappamq.store.index import growing as index_growing
from kappamq.store.index.growing import GrowingIndexFile, OnDisk
from kappamq.store.index.view import IndexHeader, IndexView, Search
from tests.store.java_index import JavaIndexFile, build

BEGIN = 1_700_000_000_000
SLOTS, ENTRIES = 3000, 20_000  # a table of three pages
FOREVER = 1 << 62


def keys_of(count: int, first: int = 0) -> list[tuple[int, int, int]]:
    return [(1 + number * 977 % 2_000_003, number * 100, BEGIN + number * 40) for number in range(first, first + count)]


def pending(keys: list[tuple[int, int, int]]) -> bytes:
    return b"".join(INDEX_PENDING.pack(*key) for key in keys)


class Counting(Files):
    def __init__(self) -> None:
        self.written: list[tuple[int, int]] = []  # (position, bytes)
        self.syncs = 0

    def pwrite(self, fd: int, data: bytes | memoryview, at: int) -> None:
        self.written.append((at, len(data)))
        super().pwrite(fd, data, at)

    def sync(self, fd: int) -> None:
        self.syncs += 1
        super().sync(fd)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "20260101123045678"


def create(path: Path, files: Files | None = None) -> GrowingIndexFile:
    return GrowingIndexFile.create(path, SLOTS, ENTRIES, files or Files(), None)


def resume(path: Path, trusted_to: int = FOREVER) -> GrowingIndexFile:
    file = GrowingIndexFile.resume(path, SLOTS, ENTRIES, Files(), trusted_to)
    assert file is not None
    return file


def search(file: GrowingIndexFile, key: int) -> list[int]:
    files = Files()
    query = Search(key, 64, 0, FOREVER)
    view = IndexView(file.path, files.open(file.path, writable=False), SLOTS, ENTRIES, files)
    file.search(query, view)
    files.close(view.fd)
    return query.found


def test_takes_no_disk_space_before_it_is_used(path: Path) -> None:
    create(path).close()
    stat = path.stat()
    assert stat.st_size == 40 + SLOTS * 4 + ENTRIES * 20
    assert stat.st_blocks * 512 < 8192


def test_few_new_entries_cost_few_pages(path: Path) -> None:
    files = Counting()
    file = create(path, files)
    file.append(pending(keys_of(5000)), 0, index_apply)
    file.flush()
    files.written.clear()
    file.append(pending([(5, 600_000, BEGIN + 500_000)]), 0, index_apply)
    file.flush()
    # one entry, the page of slot 5, the header
    assert files.written == [(40 + SLOTS * 4 + 5001 * 20, 20), (40, 4096), (0, 40)]
    file.flush()
    assert len(files.written) == 3
    file.close()
    assert path.read_bytes() == build([*keys_of(5000), (5, 600_000, BEGIN + 500_000)], SLOTS, ENTRIES)[0].image()


def test_sync_writes_the_table_when_it_is_cheap_or_old(path: Path) -> None:
    files = Counting()
    file = create(path, files)
    file.append(pending(keys_of(100)), 0, index_apply)
    assert file.behind
    file.sync()
    assert not file.behind
    file.append(pending(keys_of(index_growing.FEW_ENTRIES + 1, 100)), 0, index_apply)
    assert file.header.end_ms - file.flushed_ms >= index_growing.FLUSH_EVERY_MS
    file.sync()
    assert not file.behind
    burst = [(key, offset, file.header.end_ms) for key, offset, _ in keys_of(index_growing.FEW_ENTRIES + 1, 5000)]
    file.append(pending(burst), 0, index_apply)
    before = files.syncs
    file.sync()
    assert file.behind
    assert files.syncs == before + 1
    file.sync()
    assert files.syncs == before + 1  # nothing new
    file.close()


def test_counters_never_run_ahead_of_slots(path: Path) -> None:
    """A power cut between the two steps must leave counters that show that the slots are not to be believed."""
    events: list[str] = []

    class Watching(Files):
        def pwrite(self, fd: int, data: bytes | memoryview, at: int) -> None:
            events.append("header" if at == 0 else "slots" if at < 40 + SLOTS * 4 else "entries")
            super().pwrite(fd, data, at)

        def sync(self, fd: int) -> None:
            events.append("sync")

    file = create(path, Watching())
    file.append(pending(keys_of(2)), 0, index_apply)
    assert events == ["header", "entries"]  # the begin time, then what counts from it
    events.clear()
    file.sync()
    assert events == ["slots", "slots", "sync", "header", "sync"] or events == ["slots", "sync", "header", "sync"]
    file.close()


def test_resumes_after_a_clean_end_without_computing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = create(path)
    file.append(pending(keys_of(3000)), 0, index_apply)
    file.flush()
    file.close()
    monkeypatch.setattr(index_growing, "rebuild_slots", None)
    file = resume(path)
    assert search(file, keys_of(3000)[7][0]) == [700]
    file.append(pending(keys_of(10, 3000)), 0, index_apply)
    file.flush()
    file.close()
    assert path.read_bytes() == build(keys_of(3010), SLOTS, ENTRIES)[0].image()


@pytest.mark.parametrize("flushed", [0, 1, 2500])
def test_resumes_after_a_crash(path: Path, flushed: int) -> None:
    file = create(path)
    position = 0
    if flushed:
        position = file.append(pending(keys_of(flushed)), 0, index_apply)
        file.flush()
    file.append(pending(keys_of(3000)), position, index_apply)
    file.close()
    file = resume(path, trusted_to=299_900)  # the last one is not vouched for
    assert (file.header.count, file.header.end_offset) == (3000, 299_800)
    assert 0 <= file.header.end_ms - (BEGIN + 2998 * 40) < 1000
    assert search(file, keys_of(3000)[2998][0]) == [299_800]  # before anybody computed the table
    assert search(file, keys_of(3000)[2999][0]) == []
    file.append(pending(keys_of(10, 2999)), 0, index_apply)
    file.flush()
    file.close()
    assert path.read_bytes() == build(keys_of(3009), SLOTS, ENTRIES)[0].image()


def test_what_is_cut_does_not_come_back(path: Path) -> None:
    """Even bits of it far behind a hole, as a power cut may leave them."""
    file = create(path)
    file.append(pending(keys_of(100)), 0, index_apply)
    file.flush()
    file.close()
    with path.open("r+b") as raw:
        raw.seek(40 + SLOTS * 4 + 90 * 20)
        raw.write(bytes(200))
        raw.seek(40 + SLOTS * 4 + 15_000 * 20)
        raw.write(b"stray")
    file = resume(path, trusted_to=8500)
    assert file.header.count == 86
    file.flush()
    file.close()
    data, expected = path.read_bytes(), build(keys_of(85), SLOTS, ENTRIES)[0].image()
    assert data[40:] == expected[40:]


def test_slots_of_what_is_cut_become_empty_on_disk(path: Path) -> None:
    """Also where a whole stretch of the table becomes empty."""
    slots = 50_000
    keys = [(number * 16_000, number * 100, BEGIN) for number in range(1, 4)]
    file = GrowingIndexFile.create(path, slots, ENTRIES, Files(), None)
    file.append(pending(keys), 0, index_apply)
    file.flush()
    file.close()
    again = GrowingIndexFile.resume(path, slots, ENTRIES, Files(), 250)
    assert again is not None
    again.flush()
    again.close()
    expected = build(keys[:2], slots, ENTRIES)[0].image()
    assert path.read_bytes()[32:] == expected[32:]


def test_a_hole_among_the_entries_is_noticed_when_the_table_is_computed(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    java = build(keys_of(100), SLOTS, ENTRIES)[0]
    image = bytearray(java.image(counters=False))
    image[40 + SLOTS * 4 + 50 * 20 : 40 + SLOTS * 4 + 52 * 20] = bytes(40)
    path.write_bytes(image)
    file = resume(path)
    file.flush()
    assert file.header.count == 50
    assert "entry 50 is damaged; 51 entries from there on are dropped" in caplog.text
    file.close()
    assert path.read_bytes()[40 + SLOTS * 4 :] == build(keys_of(49), SLOTS, ENTRIES)[0].image()[40 + SLOTS * 4 :]


def test_what_was_given_up_is_wiped_where_the_file_system_cannot_tell_holes(path: Path) -> None:
    class NoHoles(Files):
        def next_data(self, fd: int, at: int) -> int | None:
            raise OSError

    image = bytearray(build(keys_of(100), SLOTS, ENTRIES)[0].image(counters=False))
    image[40 + SLOTS * 4 + 50 * 20 : 40 + SLOTS * 4 + 52 * 20] = bytes(40)
    path.write_bytes(image)
    file = GrowingIndexFile.resume(path, SLOTS, ENTRIES, NoHoles(), FOREVER)
    assert file is not None
    file.flush()
    file.close()
    assert path.read_bytes()[40 + SLOTS * 4 :] == build(keys_of(49), SLOTS, ENTRIES)[0].image()[40 + SLOTS * 4 :]


@pytest.mark.parametrize(
    "image",
    [b"", bytes(40 + SLOTS * 4 + ENTRIES * 20), JavaIndexFile(SLOTS, ENTRIES, BEGIN, BEGIN, 5, 5).image()],
    ids=["no size yet", "zeros", "follows a full one, still empty"],
)
def test_nothing_to_resume(path: Path, image: bytes) -> None:
    path.write_bytes(image)
    assert GrowingIndexFile.resume(path, SLOTS, ENTRIES, Files(), FOREVER) is None


def test_entries_without_a_begin_time_are_useless(path: Path) -> None:
    path.write_bytes(bytes(40) + build(keys_of(5), SLOTS, ENTRIES)[0].image()[40:])
    assert GrowingIndexFile.resume(path, SLOTS, ENTRIES, Files(), FOREVER) is None


def test_wrong_size_is_refused(path: Path) -> None:
    path.write_bytes(bytes(1000))
    with pytest.raises(StoreFormatError, match="has 1000 bytes"):
        GrowingIndexFile.resume(path, SLOTS, ENTRIES, Files(), FOREVER)
    assert path.exists()


def test_a_full_disk_changes_nothing(path: Path) -> None:
    class Full(Files):
        full = False

        def pwrite(self, fd: int, data: bytes | memoryview, at: int) -> None:
            if self.full:
                super().pwrite(fd, bytes(data)[: len(data) // 2], at)
                raise OSError(28, "No space left on device")
            super().pwrite(fd, data, at)

    files = Full()
    file = create(path, files)
    position = file.append(pending(keys_of(10)), 0, index_apply)
    files.full = True
    with pytest.raises(OSError, match="No space"):
        file.append(pending(keys_of(20)), position, index_apply)
    assert file.header.count == 11
    assert search(file, keys_of(20)[9][0]) == [900]
    files.full = False
    file.append(pending(keys_of(20)), position, index_apply)
    file.flush()
    file.close()
    assert path.read_bytes() == build(keys_of(20), SLOTS, ENTRIES)[0].image()


def test_no_file_is_left_where_there_is_no_room_for_it(path: Path) -> None:
    class Full(Files):
        def truncate(self, fd: int, size: int) -> None:
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        create(path, Full())
    assert not path.exists()


def test_a_query_while_an_entry_is_on_its_way(path: Path) -> None:
    """The table knows an entry that is not in the file yet: older ones must be found all the same."""
    seen: list[list[int]] = []
    key = keys_of(1)[0][0]

    class Asking(Files):
        asking = False

        def pwrite(self, fd: int, data: bytes | memoryview, at: int) -> None:
            if self.asking:
                self.asking = False
                seen.append(search(file, key))
            super().pwrite(fd, data, at)

    files = Asking()
    file = create(path, files)
    file.append(pending([(key, 10, BEGIN), (key, 20, BEGIN)]), 0, index_apply)
    for flush in (False, True):
        if flush:
            file.flush()
        files.asking = True
        offset = file.header.end_offset + 10
        file.append(pending([(key, offset, BEGIN)]), 0, index_apply)
    file.close()
    assert seen == [[20, 10], [30, 20, 10]]


def test_a_query_that_is_overtaken(path: Path) -> None:
    """Between two steps of a query the other thread appends and flushes: what was there before must be found."""
    file = create(path)
    file.append(pending([(7, 10, BEGIN), (7, 20, BEGIN)]), 0, index_apply)
    file.flush()
    file.append(pending([(7, 30, BEGIN)]), 0, index_apply)

    class Overtaken(Search):
        @property
        def key(self) -> int:
            if file.header.count == 4:
                file.append(pending([(7, 40, BEGIN)]), 0, index_apply)
                file.flush()
            return 7

        @key.setter
        def key(self, _key: int) -> None:
            pass

    files = Files()
    view = IndexView(path, files.open(path, writable=False), SLOTS, ENTRIES, files)
    query = Overtaken(7, 64, 0, FOREVER)
    file.search(query, view)
    assert query.found == [30, 20, 10]
    files.close(view.fd)
    file.close()


def test_first_entry_counts_from_the_end_of_the_file_before(path: Path) -> None:
    before = IndexHeader(BEGIN - 9000, BEGIN - 5000, 1, 2, 1, ENTRIES)
    file = GrowingIndexFile.create(path, SLOTS, ENTRIES, Files(), before)
    file.append(pending([(1, 10, BEGIN), (2, 20, BEGIN + 1000)]), 0, index_apply)
    file.flush()
    java = JavaIndexFile(SLOTS, ENTRIES, BEGIN - 9000, BEGIN - 5000, 1, 2).following()
    java.put(1, 10, BEGIN)
    java.put(2, 20, BEGIN + 1000)
    assert path.read_bytes() == java.image()
    assert file.header.begin_ms == BEGIN
    file.close()


def test_whoever_reads_slots_beside_a_write_can_tell(path: Path) -> None:
    """What is said to be on disk is another thing before, during and after each write of slots or header."""
    seen: list[OnDisk] = []

    class Watching(Files):
        full = False

        def pwrite(self, fd: int, data: bytes | memoryview, at: int) -> None:
            if at < 40 + SLOTS * 4:
                seen.append(file.on_disk)
                if self.full:
                    raise OSError(28, "No space left on device")
            super().pwrite(fd, data, at)

    files = Watching()
    file = create(path, files)
    before = [file.on_disk]
    for first in (0, 100):
        file.append(pending(keys_of(100, first)), 0, index_apply)
        before.append(file.on_disk)
        file.sync()
        before.append(file.on_disk)
        assert file.on_disk.flushed == file.flushed == first + 101
    assert seen
    assert not any(on_disk.flushed for on_disk in seen)
    assert len(set(before)) == 4, "entries alone change nothing, but for the first one, which brings a begin time"
    file.append(pending(keys_of(100, 200)), 0, index_apply)
    files.full = True
    with pytest.raises(OSError, match="No space"):
        file.sync()
    assert file.on_disk.flushed == 0
    files.full = False
    file.sync()
    assert file.on_disk.flushed == 301
    assert file.on_disk not in before
    file.close()
