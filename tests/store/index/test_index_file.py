from __future__ import annotations

import os
import shutil
from itertools import pairwise
from pathlib import Path
from tempfile import mkdtemp

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kappamq import native
from kappamq.errors import StoreFormatError
from kappamq.native.layout import INDEX_PENDING
from kappamq.protocol.records.entries import key_hash
from kappamq.store.files import Files
from kappamq.store.index.index_file import IndexFiles
from kappamq.store.index.view import file_name
from tests.store.java_index import Key, build

BEGIN = 1_700_000_000_000
FOREVER = 1 << 62
SLOTS, ENTRIES = 5, 8  # seven entries to a file, long chains
NAMES = ["a", "b", "c", "order-7", "order-8", "中文"]
KERNEL = native.load()


def new_index(folder: Path, files: Files | None = None, entries: int = ENTRIES) -> IndexFiles:
    return IndexFiles(folder, SLOTS, entries, files or Files(), index_apply=KERNEL.index_apply)


def loaded(folder: Path, trusted_to: int = FOREVER) -> IndexFiles:
    index = new_index(folder)
    index.load(trusted_to)
    return index


def pending(keys: list[Key]) -> bytes:
    return b"".join(INDEX_PENDING.pack(*key) for key in keys)


def keys_of(count: int, step_ms: int = 400) -> list[Key]:
    """Records with one, two, three keys, one... in turn."""
    keys: list[Key] = []
    for number in range(count):
        names = NAMES[number % len(NAMES) :][: number % 3 + 1]
        keys += [(key_hash("T", name), 50 + number * 100, BEGIN + number * step_ms) for name in names]
    return keys


def images(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in sorted(os.listdir(folder))}


def java_images(keys: list[Key]) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    at = 0
    for file in build(keys, SLOTS, ENTRIES):
        name = file_name(keys[at][2], max(found, default=""))
        found[name] = file.image()
        at += ENTRIES - 1
    return found


def found_by_model(keys: list[Key], name: str, count_max: int = 64) -> list[int]:
    wanted = key_hash("T", name)
    offsets = [log_offset for key, log_offset, _ in reversed(keys) if key == wanted]
    return list(dict.fromkeys(offsets))[:count_max]


def test_bytes_are_javas(tmp_path: Path) -> None:
    keys = keys_of(30)
    index = new_index(tmp_path / "index")
    index.apply(pending(keys))
    index.flush()
    index.close()
    assert len(images(tmp_path / "index")) == len(keys) // (ENTRIES - 1) + 1
    assert images(tmp_path / "index") == java_images(keys)


@given(keys=st.integers(1, 40).map(keys_of), data=st.data())
@settings(max_examples=40)
def test_bytes_do_not_depend_on_how_they_came(
    tmp_path_factory: pytest.TempPathFactory, keys: list[Key], data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("index")
    index = new_index(folder)
    at = 0
    while at < len(keys):
        step = data.draw(st.integers(1, 20))
        index.apply(pending(keys[at : at + step]) if at + step < len(keys) else pending(keys[at:]))
        at += step
        if data.draw(st.booleans()):
            index.sync()
        # A batch never divides a record; if it did, the rest would be taken for known.
        while at < len(keys) and keys[at][1] == keys[at - 1][1]:
            keys = keys[:at] + keys[at + 1 :]
    index.flush()
    index.close()
    assert images(folder) == java_images(keys)


def test_follow_up_file_in_the_same_millisecond(tmp_path: Path) -> None:
    index = new_index(tmp_path)
    index.apply(pending([(1, number, BEGIN) for number in range(1, 30)]))
    index.close()
    names = sorted(os.listdir(tmp_path))
    assert len(names) == 5
    assert names[0] == file_name(BEGIN)
    assert all(later == file_name(0, earlier) for earlier, later in pairwise(names))


def test_nothing_is_made_before_there_is_a_key(tmp_path: Path) -> None:
    index = loaded(tmp_path / "index")
    index.apply(b"")
    index.flush()
    index.sync()
    assert index.query("T", "a", 10, 0, FOREVER) == []
    assert (index.indexed_to, index.total, index.end_ms, index.behind) == (0, 0, 0, False)
    index.close()
    assert not (tmp_path / "index").exists()


def test_finds_by_key_newest_first(tmp_path: Path) -> None:
    keys = keys_of(40)
    index = new_index(tmp_path)
    index.apply(pending(keys))
    for name in [*NAMES, "unknown"]:
        assert index.query("T", name, 64, 0, FOREVER) == found_by_model(keys, name)
        assert index.query("T", name, 3, 0, FOREVER) == found_by_model(keys, name, 3)
    assert index.query("other topic", "a", 64, 0, FOREVER) == []
    assert 0 < len(index.query("T", "a", 64, 0, FOREVER, walk_max=5)) < len(found_by_model(keys, "a"))
    index.close()


@given(st.integers(-2000, 20_000), st.integers(0, 20_000), st.sampled_from(NAMES), st.integers(1, 2500))
def test_finds_by_time(
    tmp_path_factory: pytest.TempPathFactory, begin: int, length: int, name: str, step_ms: int
) -> None:
    keys = keys_of(40, step_ms)
    folder = tmp_path_factory.mktemp("index")
    index = new_index(folder)
    index.apply(pending(keys))
    begin += BEGIN
    offsets = index.query("T", name, 64, begin, begin + length)
    wanted = key_hash("T", name)
    sure = {offset for key, offset, ms in keys if key == wanted and begin <= ms <= begin + length}
    possible = {offset for key, offset, ms in keys if key == wanted and begin - 1000 < ms < begin + length + 1000}
    assert sure <= set(offsets) <= possible
    assert offsets == sorted(offsets, reverse=True)
    index.close()
    shutil.rmtree(folder)


def test_a_key_twice_on_one_record_is_one_hit(tmp_path: Path) -> None:
    index = new_index(tmp_path)
    index.apply(pending([(key_hash("T", "a"), 10, BEGIN)] * 3 + [(key_hash("T", "a"), 20, BEGIN)]))
    assert index.query("T", "a", 64, 0, FOREVER) == [20, 10]
    index.close()


def test_what_is_known_is_passed_over(tmp_path: Path) -> None:
    keys = keys_of(20)
    index = new_index(tmp_path)
    index.apply(pending(keys))
    assert index.indexed_to == keys[-1][1] + 1
    total = index.total
    index.apply(pending(keys))
    index.apply(pending(keys[5:]))
    assert index.total == total == len(keys)
    index.flush()
    index.close()
    again = loaded(tmp_path)
    assert (again.indexed_to, again.total) == (keys[-1][1] + 1, total)
    again.apply(pending(keys))
    assert again.total == total
    again.close()


@pytest.mark.parametrize("trusted_records", [0, 1, 2, 9, 10, 29, 30])
@pytest.mark.parametrize("by_java", [False, True])
def test_killed_and_loaded_again(tmp_path: Path, trusted_records: int, by_java: bool) -> None:
    keys = keys_of(30)
    trusted_to = keys_of(trusted_records)[-1][1] + 1 if trusted_records else 0
    if by_java:
        at = 0
        for file in build(keys, SLOTS, ENTRIES):
            name = file_name(keys[at][2], max(os.listdir(tmp_path), default=""))
            (tmp_path / name).write_bytes(file.image(counters=False))
            at += ENTRIES - 1
    else:
        index = new_index(tmp_path)
        index.apply(pending(keys))
        index.close()  # without a flush: as kill -9 leaves it
    known = keys_of(trusted_records)
    again = loaded(tmp_path, trusted_to)
    assert again.indexed_to == trusted_to
    assert again.total == len(known)
    for name in NAMES:
        assert again.query("T", name, 64, 0, FOREVER) == found_by_model(known, name)
    more = keys_of(33)
    again.apply(pending(more))
    for name in NAMES:
        assert again.query("T", name, 64, 0, FOREVER) == found_by_model(more, name)
    again.flush()
    again.close()
    assert images(tmp_path) == java_images(more)


def test_what_the_checkpoint_may_say(tmp_path: Path) -> None:
    keys = keys_of(12)
    index = new_index(tmp_path)
    index.apply(pending(keys[:3]))
    assert (index.end_ms, index.behind) == (0, True)
    index.flush()
    assert (index.end_ms, index.behind) == (keys[2][2], False)
    index.apply(pending(keys[3:8]))  # the first file is full with the seventh
    assert (index.end_ms, index.behind) == (keys[6][2], True)
    index.sync()
    assert (index.end_ms, index.behind) == (keys[7][2], False)
    index.close()
    again = loaded(tmp_path)
    assert (again.end_ms, again.behind) == (keys[7][2], False)
    again.close()


def test_expiry_goes_by_what_the_log_still_holds(tmp_path: Path) -> None:
    keys = keys_of(30)
    index = new_index(tmp_path)
    index.apply(pending(keys))
    names = [info.name for info in index.infos()]
    ends = [info.end_offset for info in index.infos()]
    assert index.expire(ends[0]) == []
    assert index.expire(ends[0] + 1) == names[:1]
    assert index.expire(ends[3] + 1) == names[1:4]
    left = [key for key in keys if key[1] > ends[3]]
    for name in NAMES:
        assert index.query("T", name, 64, 0, FOREVER)[: len(left)][:1] == found_by_model(left, name)[:1]
    assert index.expire(FOREVER) == names[4:-1]
    assert sorted(os.listdir(tmp_path)) == names[-1:]
    index.sync()
    index.close()


def test_a_file_that_expires_during_a_query(tmp_path: Path) -> None:
    index = new_index(tmp_path)
    index.apply(pending(keys_of(30)))
    for name in sorted(os.listdir(tmp_path))[:-1]:
        (tmp_path / name).unlink()
    index.query("T", "a", 64, 0, FOREVER)
    index.sync()
    index.close()


def test_infos(tmp_path: Path) -> None:
    keys = [(1, 10, BEGIN), (2, 20, BEGIN + 5), (6, 30, BEGIN + 9)]
    index = new_index(tmp_path)
    index.apply(pending(keys))
    (info,) = index.infos()
    assert (info.name, info.entries, info.used_slots) == (file_name(BEGIN), 3, 2)
    assert (info.begin_ms, info.end_ms, info.begin_offset, info.end_offset) == (BEGIN, BEGIN + 9, 10, 30)
    index.close()


def test_foreign_files_and_sizes_are_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(StoreFormatError, match=r"notes\.txt is not an index file"):
        loaded(tmp_path)
    (tmp_path / "notes.txt").unlink()
    for name in (file_name(BEGIN), file_name(BEGIN + 1)):
        (tmp_path / name).write_bytes(bytes(100))
        with pytest.raises(StoreFormatError, match=f"{name} has 100 bytes"):
            loaded(tmp_path)
    assert len(os.listdir(tmp_path)) == 2


class Trouble(Files):
    """A disk that is full from the n-th write on."""

    left = 1 << 30

    def pwrite(self, fd: int, data: bytes | memoryview, at: int) -> None:
        self.left -= 1
        if self.left < 0:
            super().pwrite(fd, bytes(data)[: len(data) // 2], at)
            raise OSError(28, "No space left on device")
        super().pwrite(fd, data, at)

    def truncate(self, fd: int, size: int) -> None:
        self.left -= 1
        if self.left < 0:
            raise OSError(28, "No space left on device")
        super().truncate(fd, size)


@pytest.mark.parametrize("fail_at", range(18))
def test_a_disk_that_is_full_for_a_while(tmp_path: Path, fail_at: int) -> None:
    keys = keys_of(14)
    files = Trouble()
    index = new_index(tmp_path, files)
    index.apply(pending(keys[:3]))
    files.left = fail_at
    try:
        index.apply(pending(keys))
        assert index.indexed_to == keys[-1][1] + 1
    except OSError:
        assert index.indexed_to <= keys[-1][1]
    files.left = 1 << 30
    index.apply(pending(keys))  # the same again, as the contract says
    for name in NAMES:
        assert index.query("T", name, 64, 0, FOREVER) == found_by_model(keys, name)
    index.flush()
    index.close()
    again = loaded(tmp_path)
    for name in NAMES:
        assert again.query("T", name, 64, 0, FOREVER) == found_by_model(keys, name)
    again.close()


class IndexMachine(RuleBasedStateMachine):
    """Any order of growing, flushing, crashing, stopping and expiring, against a list."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(mkdtemp(prefix="kappamq-index-"))
        self.keys: list[Key] = []
        self.promised = 0  # what a position file would say
        self.log_min = 0
        self.log_end = 0
        self.now = BEGIN
        self.index = loaded(self.folder)

    @rule(records=st.lists(st.tuples(st.lists(st.sampled_from(NAMES), max_size=3), st.integers(0, 2000)), max_size=8))
    def apply(self, records: list[tuple[list[str], int]]) -> None:
        batch: list[Key] = []
        for names, pause in records:
            self.now += pause
            batch += [(key_hash("T", name), self.log_end, self.now) for name in names]
            self.log_end += 100
        self.index.apply(pending(batch))
        self.keys += batch

    @rule()
    def promise(self) -> None:
        self.promised = self.log_end

    @rule()
    def flush(self) -> None:
        self.index.flush()
        assert not self.index.behind

    @rule()
    def sync(self) -> None:
        self.index.sync()

    @rule()
    def stop_and_start(self) -> None:
        self.index.flush()
        self.index.sync()
        self.index.close()
        self.index = loaded(self.folder, self.log_end)

    @rule(lost=st.integers(0, 3))
    def crash(self, lost: int) -> None:
        self.index.close()
        trusted_to = max(self.promised, self.log_min, self.log_end - lost * 100)
        self.keys = [key for key in self.keys if key[1] < trusted_to]
        self.log_end = trusted_to
        self.index = loaded(self.folder, trusted_to)

    @precondition(lambda self: self.log_end > 0)
    @rule(part=st.integers(0, 100))
    def expire(self, part: int) -> None:
        self.log_min = max(self.log_min, self.log_end * part // 100 // 100 * 100)
        self.index.expire(self.log_min)

    @rule(name=st.sampled_from(NAMES), count_max=st.integers(1, 64))
    def query(self, name: str, count_max: int) -> None:
        offsets = self.index.query("T", name, count_max, 0, FOREVER)
        expected = found_by_model(self.keys, name, count_max)
        # Files go as a whole: what has expired may still be found.
        kept = [offset for offset in expected if offset >= self.log_min]
        assert offsets[: len(kept)] == kept
        assert offsets == expected[: len(offsets)]

    @invariant()
    def numbers(self) -> None:
        last = max((key[1] for key in self.keys), default=-1)
        # With every file gone nothing is known but that it begins anew.
        assert self.index.indexed_to == last + 1 or (self.index.total == 0 and last < self.log_min)
        assert self.index.total <= len(self.keys)

    def teardown(self) -> None:
        self.index.close()
        shutil.rmtree(self.folder)


TestIndexMachine = IndexMachine.TestCase
TestIndexMachine.settings = settings(max_examples=60, stateful_step_count=30)
