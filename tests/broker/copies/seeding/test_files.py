"""The directory of a copy that is seeded: how far its log reaches, what is moved aside, what stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from kappamq.broker.copies.seeding.files import OWN_SETTINGS, SeedFiles
from kappamq.errors import StoreError
from kappamq.replication.seeding import COPYING, FILLING, MARKER_NAME, WANTED, Marker
from kappamq.store.files import Files

SEGMENT = 4096


@pytest.fixture
def there(tmp_path: Path) -> SeedFiles:
    return SeedFiles(tmp_path, SEGMENT, Files())


def put(path: Path, data: bytes = b"x") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def log_file(root: Path, start: int, data: bytes = b"x" * 100) -> None:
    put(root / "commitlog" / f"{start:020d}", data.ljust(SEGMENT, b"\0"))


def test_a_log_reaches_to_the_end_of_the_last_file_that_was_used(tmp_path: Path, there: SeedFiles) -> None:
    assert there.reaches() == 0
    log_file(tmp_path, 0, b"")
    assert there.reaches() == 0, "prepared, and never written to"
    log_file(tmp_path, 0)
    log_file(tmp_path, SEGMENT)
    log_file(tmp_path, 2 * SEGMENT, b"")
    put(tmp_path / "commitlog" / "other")
    assert there.reaches() == 2 * SEGMENT


def test_the_marker_is_replaced_as_a_whole(tmp_path: Path, there: SeedFiles) -> None:
    assert there.marker() is None
    for marker in (Marker(state=COPYING, aside="before-seeding-1"), Marker(state=FILLING, begin=5, until=9)):
        there.mark(marker)
        assert there.marker() == marker
    (tmp_path / MARKER_NAME).write_bytes(b"damaged")
    assert there.marker() == Marker(state=WANTED), "that there is one says enough"
    there.unmark()
    assert there.marker() is None


def test_what_belongs_to_the_store_is_moved_aside_and_nothing_else(tmp_path: Path, there: SeedFiles) -> None:
    log_file(tmp_path, 0)
    put(tmp_path / "config" / "topics.json", b"t")
    put(tmp_path / "config" / OWN_SETTINGS, b"own")
    put(tmp_path / "kappamq.vote", b"v")
    put(tmp_path / "broker.conf", b"c")
    there.mark(Marker(state=COPYING))
    aside = there.new_aside()
    assert aside == "before-seeding-1"
    assert there.move_aside(aside) == SEGMENT + len(b"townv")
    there.keep_settings(aside)
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    assert left == [
        f"before-seeding-1/commitlog/{0:020d}", f"before-seeding-1/config/{OWN_SETTINGS}",
        "before-seeding-1/config/topics.json", "before-seeding-1/kappamq.vote", "broker.conf", f"config/{OWN_SETTINGS}",
        MARKER_NAME,
    ]  # fmt: skip
    assert there.new_aside() == "before-seeding-2"


def test_after_a_crash_what_had_come_goes_and_what_was_there_stays(tmp_path: Path, there: SeedFiles) -> None:
    log_file(tmp_path, 0)
    put(tmp_path / "config" / "topics.json", b"before")
    there.move_aside("before-seeding-1")
    there.receive("topics.json", 0, b"half")
    put(tmp_path / "kappamq.terms", b"new")
    put(tmp_path / "before-seeding-1" / "kappamq.terms", b"old")
    there.move_aside("before-seeding-1")
    assert not (tmp_path / "config").exists()
    assert not (tmp_path / "kappamq.terms").exists()
    assert (tmp_path / "before-seeding-1" / "config" / "topics.json").read_bytes() == b"before"
    assert (tmp_path / "before-seeding-1" / "kappamq.terms").read_bytes() == b"old"


def test_empty_log_files_are_not_kept(tmp_path: Path, there: SeedFiles) -> None:
    log_file(tmp_path, 0, b"")
    put(tmp_path / "index" / "1")
    assert there.move_aside("before-seeding-1") == 0
    assert not (tmp_path / "commitlog").exists()


def test_without_room_nothing_is_begun(tmp_path: Path, there: SeedFiles) -> None:
    there.require_room(1000)
    with pytest.raises(StoreError, match="make room"):
        there.require_room(1 << 60)
