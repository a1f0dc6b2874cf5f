"""What a power cut leaves: that which was synced, and of the rest any part, but names and sizes as a journal keeps them."""

from pathlib import Path
from random import Random

from kappamq.sim.brokers.crash_disk import CrashDisk, crashes

ROOT = Path("/d")


def made() -> CrashDisk:
    disk = CrashDisk()
    disk.make_folder(ROOT)
    return disk


def test_what_was_synced_is_there_and_the_rest_may_be() -> None:
    disk = made()
    fd = disk.open(ROOT / "file", create=True)
    disk.pwrite(fd, b"safe", 0)
    disk.sync(fd)
    disk.pwrite(fd, b"lost", 4)
    found = {disk.after_crash(Random(seed), 0.5).tree(ROOT)["file"] for seed in range(20)}
    assert found == {b"safe", b"safelost"}
    assert disk.durable(ROOT / "file", 0, 9) == b"safe"


def test_a_sync_covers_what_was_written_when_it_began() -> None:
    disk = made()
    fd = disk.open(ROOT / "file", create=True)
    disk.pwrite(fd, b"one", 0)
    begun = disk.begin_sync(fd)
    disk.pwrite(fd, b"two", 3)
    disk.end_sync(begun)
    assert disk.after_crash(Random(1), 0).tree(ROOT) == {"file": b"one"}
    disk.sync(fd)
    disk.end_sync(begun)  # of no use any more
    assert disk.after_crash(Random(1), 0).tree(ROOT) == {"file": b"onetwo"}


def test_a_name_that_was_removed_and_made_again_is_there() -> None:
    disk = made()
    disk.sync(disk.open(ROOT / "file", create=True))
    disk.remove(ROOT / "file")
    disk.sync(disk.open(ROOT / "file", create=True))
    disk.sync_folder(ROOT)
    assert disk.after_crash(Random(1), 0).tree(ROOT) == {"file": b""}


def test_a_rename_is_one_step_also_of_a_folder() -> None:
    disk = made()
    disk.make_folder(ROOT / "old")
    for name in ("a", "b"):
        fd = disk.open(ROOT / "old" / name, create=True)
        disk.pwrite(fd, name.encode(), 0)
        disk.sync(fd)
    disk.rename(ROOT / "old", ROOT / "new")
    files = [
        {name: data for name, data in disk.after_crash(Random(seed), 0.5).tree(ROOT).items() if data is not None}
        for seed in range(20)
    ]
    assert {tuple(sorted(found)) for found in files} == {("new/a", "new/b"), ("old/a", "old/b")}


def test_a_size_that_is_lost_is_not_made_good_by_what_was_written_behind_it() -> None:
    disk = made()
    fd = disk.open(ROOT / "file", create=True)
    disk.sync(fd)
    disk.allocate(fd, 100)
    disk.pwrite(fd, b"x" * 50, 0)
    sizes = {len(found.tree(ROOT)["file"] or b"") for found in crashes(disk, 1, 40)}
    assert sizes == {0, 100}


def test_what_was_found_is_durable_from_then_on() -> None:
    disk = made()
    disk.pwrite(disk.open(ROOT / "file", create=True), b"kept", 0)
    found = CrashDisk()
    disk.after_crash(Random(1), 1.0, found)
    assert found.after_crash(Random(1), 0.0).tree(ROOT) == {"file": b"kept"}
