from __future__ import annotations

from pathlib import Path

import pytest

from kappamq.errors import StoreError
from kappamq.native.layout import ENTRY, FILLER_BYTES
from kappamq.store.files import Files
from kappamq.store.queues.queues import QueueFiles

FILE_ENTRIES = 16


@pytest.fixture
def queues(tmp_path: Path) -> QueueFiles:
    return QueueFiles(tmp_path / "consumequeue", FILE_ENTRIES, 16, Files())


def entries(first: int, count: int, step: int = 100) -> bytes:
    return b"".join(ENTRY.pack((first + n) * step, step, n) for n in range(count))


def test_entries_lie_at_their_number_times_20_across_files(queues: QueueFiles, tmp_path: Path) -> None:
    queues.write("t", 3, 0, entries(0, 40), 0)
    names = sorted(path.name for path in (tmp_path / "consumequeue" / "t" / "3").iterdir())
    assert names == ["00000000000000000000", "00000000000000000320", "00000000000000000640"]
    assert {path.stat().st_size for path in (tmp_path / "consumequeue" / "t" / "3").iterdir()} == {FILE_ENTRIES * 20}
    assert queues.entry("t", 3, 33) == (3300, 100, 33)
    assert queues.read("t", 3, 30, 100) == entries(0, 40)[30 * 20 : 32 * 20], "a read stays within one file"
    assert queues.read_resident("t", 3, 39, 1) == entries(39, 1)[:16] + (39).to_bytes(4, "big")


def test_bounds_are_found_by_what_the_log_still_and_already_has(queues: QueueFiles) -> None:
    queues.write("t", 0, 0, entries(0, 40), 0)
    assert queues.bounds("t", 0, 0, 1 << 60) == (0, 40)
    assert queues.bounds("t", 0, 1000, 3500) == (10, 35)
    assert queues.bounds("t", 0, 99_999, 1 << 60) == (40, 40), "a queue whose records are gone keeps its numbering"
    assert queues.bounds("t", 1, 0, 1 << 60) == (0, 0)


def test_a_queue_that_begins_in_mid_file_gets_filler_before_it(queues: QueueFiles) -> None:
    queues.write("t", 0, 20, entries(20, 4), 20)
    assert queues.entry("t", 0, 19) == (0, FILLER_BYTES, 0)
    assert queues.bounds("t", 0, 0, 1 << 60) == (20, 24)


def test_filler_never_covers_an_entry_between_the_first_and_the_one_that_is_written(
    queues: QueueFiles, tmp_path: Path
) -> None:
    """An empty entry there is damage, and the log still has its message."""
    queues.write("t", 0, 0, entries(0, 10), 0)
    path = tmp_path / "consumequeue" / "t" / "0" / f"{0:020d}"
    with path.open("r+b") as file:
        file.seek(4 * 20)
        file.write(bytes(6 * 20))
    queues.replace("t", 0, 7, entries(7, 1))
    queues.write("t", 0, 10, entries(10, 2), 0)
    assert [queues.entry("t", 0, number)[1] for number in range(12)] == [100] * 4 + [0, 0, 0, 100, 0, 0, 100, 100]


def test_a_queue_whose_first_messages_have_gone_meanwhile_still_gets_its_filler(queues: QueueFiles) -> None:
    queues.write("t", 0, 20, entries(20, 4), 23)
    assert queues.entry("t", 0, 19) == (0, FILLER_BYTES, 0)


def test_filler_behind_older_entries_names_where_the_log_goes_on(queues: QueueFiles) -> None:
    """So it is gone when its neighbours are, and hides none of them from a start."""
    queues.write("t", 0, 0, entries(0, 5), 0)
    queues.write("t", 0, 12, entries(12, 3), 12)
    assert queues.entry("t", 0, 11) == (1200, FILLER_BYTES, 0)
    assert queues.bounds("t", 0, 0, 1 << 60) == (0, 15)
    assert queues.bounds("t", 0, 300, 1 << 60) == (3, 15)


@pytest.mark.parametrize("begin", [0, 16, 20])
@pytest.mark.parametrize("log_min", [0, 2500, 3700])
def test_wrong_filler_among_messages_hides_none_from_a_start(
    queues: QueueFiles, tmp_path: Path, begin: int, log_min: int
) -> None:
    """An earlier version wrote it where it repaired one entry of many."""
    queues.write("t", 0, begin, entries(begin, 45 - begin), begin)
    for number in range(26, 36):
        queues.replace("t", 0, number, ENTRY.pack(0, FILLER_BYTES, 0))
    low, end = queues.bounds("t", 0, log_min, 1 << 60)
    assert end == 45
    assert low <= max(begin, log_min // 100)
    assert low >= begin


def test_a_cut_removes_what_lies_behind_it(queues: QueueFiles) -> None:
    queues.write("t", 0, 0, entries(0, 40), 0)
    queues.cut("t", 0, 18)
    assert queues.bounds("t", 0, 0, 1 << 60) == (0, 18)
    assert queues.entry("t", 0, 18) == (0, 0, 0)
    queues.write("t", 0, 18, entries(18, 2), 0)
    assert queues.bounds("t", 0, 0, 1 << 60) == (0, 20)


def test_old_files_go_but_never_the_last(queues: QueueFiles) -> None:
    queues.write("t", 0, 0, entries(0, 40), 0)
    assert queues.delete_below("t", 0, 33) == 2
    assert queues.delete_below("t", 0, 1000) == 0
    assert queues.bounds("t", 0, 3300, 1 << 60) == (33, 40)


def test_a_file_of_another_size_is_refused_with_a_text(queues: QueueFiles, tmp_path: Path) -> None:
    queues.write("t", 0, 0, entries(0, 1), 0)
    path = tmp_path / "consumequeue" / "t" / "0" / "00000000000000000000"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(StoreError, match="mappedFileSizeConsumeQueue"):
        queues.bounds("t", 0, 0, 1)


def test_deleting_a_topic_leaves_nothing(queues: QueueFiles, tmp_path: Path) -> None:
    queues.write("t", 0, 0, entries(0, 1), 0)
    queues.write("u", 0, 0, entries(0, 1), 0)
    queues.delete_topic("t")
    assert list(queues.queues()) == [("u", 0)]
    assert queues.read("t", 0, 0, 1) == b""


def test_only_so_many_descriptors_stay_open(tmp_path: Path) -> None:
    opened: set[int] = set()

    class Counting(Files):
        def open(self, path: Path, create: bool = False, writable: bool = True) -> int:
            fd = super().open(path, create, writable)
            opened.add(fd)
            return fd

        def close(self, fd: int) -> None:
            opened.discard(fd)
            super().close(fd)

    queues = QueueFiles(tmp_path, FILE_ENTRIES, 32, Counting())
    for number in range(100):
        queues.write("t", number, 0, entries(0, 1), 0)
        queues.read_resident("t", number, 0, 1)
    assert len(opened) <= 32
    queues.close()
    assert not opened


def test_thousands_of_queues_are_synced_at_once(tmp_path: Path) -> None:
    """One by one, 20,000 of them kept a stopping broker busy for more than half a minute."""
    asked: list[str] = []

    class Watched(Files):
        def sync(self, fd: int) -> None:
            asked.append("one")
            super().sync(fd)

        def sync_file_system(self, path: Path) -> None:
            asked.append("all")
            super().sync_file_system(path)

    queues = QueueFiles(tmp_path / "consumequeue", FILE_ENTRIES, 16, Watched())
    for queue_id in range(300):
        queues.write("t", queue_id, 0, entries(0, 1), 0)
    queues.sync()
    queues.write("t", 7, 1, entries(1, 1), 0)
    queues.sync()
    queues.sync()
    assert asked == ["all", "one"]
