"""New queue and index files beside the old ones. What whole runs do is tested in tests/spark/jobs/test_rebuild.py."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kappamq import native
from kappamq.errors import StoreFormatError
from kappamq.native.layout import ENTRY, FILLER_BYTES, GAP_ENTRIES_MAX
from kappamq.store.files import Files
from kappamq.store.log.log_ranges import Part
from kappamq.store.queues.queues import QueueFiles
from kappamq.store.rebuilding import ASIDE, NewFiles, Sizes

SIZES = Sizes(queue_file_entries=64, index_slots=97, index_entries=1000)


def entry(log_offset: int) -> bytes:
    return ENTRY.pack(log_offset, 100, 0)


def part(topic: str, first: int, *log_offsets: int) -> Part:
    return Part(0, 0, queues=[(topic, 0, first, b"".join(map(entry, log_offsets)))])


@pytest.fixture
def new(tmp_path: Path) -> NewFiles:
    return NewFiles(tmp_path, SIZES, native.load("twin"), Files())


def test_gaps_repetitions_and_jumps(new: NewFiles) -> None:
    new.add(part("t", 3, 100, 200))
    new.add(part("t", 3, 100, 200))
    new.add(part("t", 4, 200, 300))
    new.add(part("t", 8, 700))
    assert new.ends == {("t", 0): 9}
    numbers = [new.queues.entry("t", 0, number)[:2] for number in range(9)]
    filler = (0, FILLER_BYTES)
    assert numbers == [filler] * 3 + [(100, 100), (200, 100), (300, 100)] + [(700, FILLER_BYTES)] * 2 + [(700, 100)]
    new.add(part("t", 9 + GAP_ENTRIES_MAX + 1, 900))
    assert new.queues.entry("t", 0, 5) == (0, 0, 0), "what lies before a jump was never here"
    assert new.ends == {("t", 0): 11 + GAP_ENTRIES_MAX}


def test_a_topic_that_is_no_name_of_a_folder(new: NewFiles, tmp_path: Path) -> None:
    for topic in ("../../t", "a/b", "..", ""):
        new.add(part(topic, 0, 100))
    assert new.left_out == {"../../t", "a/b", "..", ""}
    assert new.ends == {}


def test_what_a_killed_run_left_is_removed(new: NewFiles, tmp_path: Path) -> None:
    new.add(part("t", 0, 100))
    again = NewFiles(tmp_path, SIZES, native.load("twin"), Files())
    assert [path.name for path in (tmp_path / ASIDE).iterdir()] == ["parts"]
    again.remove()
    assert not (tmp_path / ASIDE).exists()


def test_deleted_topics_go_and_queues_that_only_files_know_stay(new: NewFiles, tmp_path: Path) -> None:
    old = QueueFiles(tmp_path / "consumequeue", 64, 8, Files())
    for topic in ("expired", "deleted", "%LMQ%lite"):
        old.write(topic, 0, 0, entry(10) + entry(20), 0)
    old.write("ahead", 0, 0, entry(5000), 0)
    old.write("%LMQ%lite", 0, 2, entry(5000), 2)
    new.add(part("gone", 0, 5000))
    new.add(part("t", 0, 5000))
    assert new.drop_topics({"gone", "deleted"}) == ["gone"]
    assert new.keep_queues(1000, {"gone", "deleted"}) == [("%LMQ%lite", 0), ("expired", 0)]
    assert new.ends == {("t", 0): 1, ("expired", 0): 2, ("%LMQ%lite", 0): 3}
    assert sorted(path.name for path in new.queues.folder.iterdir()) == ["%LMQ%lite", "expired", "t"]
    assert new.queues.entry("expired", 0, 1) == (20, 100, 0)


def test_sizes_are_those_of_the_files(tmp_path: Path) -> None:
    assert Sizes().checked(tmp_path, Files()) == Sizes()
    QueueFiles(tmp_path / "consumequeue", 16, 8, Files()).write("t", 0, 0, entry(1), 0)
    (tmp_path / "index").mkdir()
    index = tmp_path / "index" / "20231114221320001"
    index.touch()
    assert SIZES.checked(tmp_path, Files()) == Sizes(queue_file_entries=16, index_slots=97, index_entries=1000)
    os.truncate(index, 1234)
    with pytest.raises(StoreFormatError, match=r"1234 bytes, but with 97 slots and 1000 entries.*maxHashSlotNum"):
        SIZES.checked(tmp_path, Files())


@pytest.mark.parametrize("place", ["n", "t/n", "t/0/n", "t/x/00000000000000000000", "t/0/00000000000000000320"])
def test_what_is_no_queue_file_is_not_replaced(tmp_path: Path, place: str) -> None:
    path = tmp_path / "consumequeue" / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"odd")
    with pytest.raises(StoreFormatError, match="move it to another folder"):
        SIZES.checked(tmp_path, Files())
