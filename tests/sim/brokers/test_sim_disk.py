import errno
from pathlib import Path
from random import Random

import pytest

from kappamq import native
from kappamq.sim.brokers.loop import Loop
from kappamq.sim.brokers.settings import Faults
from kappamq.sim.brokers.sim_disk import SimDisk
from kappamq.sim.brokers.streams import Streams
from kappamq.sim.world import World

ROOT = Path("/d")


def made() -> tuple[World, SimDisk]:
    world = World(1)
    disk = SimDisk(world, lambda: 10.0)
    disk.loop = Loop(world, Streams(world, Faults()), "a", lambda: None)  # type: ignore[abstract]
    disk.make_folder(ROOT)
    return world, disk


def test_a_flush_takes_its_time_and_covers_what_was_there_when_it_began() -> None:
    world, disk = made()
    flusher = disk.flusher(native.load("twin"))
    fd = disk.open(ROOT / "log", create=True)
    disk.pwrite(fd, b"one", 0)
    flusher.request(fd, 3)
    disk.pwrite(fd, b"two", 3)
    flusher.request(fd, 6)
    world.run_until(9)
    assert flusher.take() == (0, 0)
    world.run_until(15)
    assert flusher.take() == (3, 0)
    assert disk.after_crash(Random(1), 0).tree(ROOT) == {"log": b"one"}
    world.run_until(25)
    assert flusher.take() == (6, 0)
    flusher.request(fd, 6)
    flusher.cut(2)
    assert flusher.take() == (2, 0)
    flusher.close()


def test_a_full_disk_takes_what_it_has_room_for() -> None:
    _world, disk = made()
    fd = disk.open(ROOT / "file", create=True)
    disk.pwrite(fd, b"12345", 0)
    disk.full = True
    disk.pwrite(fd, b"67", 0)
    for write in (lambda: disk.pwrite(fd, b"8", 5), lambda: disk.allocate(fd, 100)):
        with pytest.raises(OSError) as caught:
            write()
        assert caught.value.errno == errno.ENOSPC


def test_who_watches_is_told_of_names() -> None:
    _world, disk = made()
    told: list[str] = []
    disk.tell(told.append, told.append)
    disk.open(ROOT / "a", create=True)
    disk.rename(ROOT / "a", ROOT / "b")
    disk.remove(ROOT / "b")
    disk.remove_tree(ROOT)
    assert told == ["/d/b", "/d/b", "/d"]
