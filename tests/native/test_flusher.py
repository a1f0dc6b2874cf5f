"""Group commit: what is reported durable was synced before, in one sync for many; a failure is for good."""

from __future__ import annotations

import errno
import os
import select
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kappamq.native.flusher import Flusher
from tests.waiting import eventually


@pytest.fixture
def flusher(module: ModuleType) -> Iterator[Any]:
    made = module.Flusher()
    yield made
    made.close()


def wait(flusher: Any) -> tuple[int, int]:
    readable, _, _ = select.select([flusher], [], [], 10)
    assert readable, "nothing was reported within 10 s"
    result: tuple[int, int] = flusher.take()
    return result


def test_reports_what_was_asked_for(flusher: Any, tmp_path: Path) -> None:
    assert flusher.take() == (0, 0)
    with open(tmp_path / "log", "wb") as file:
        for offset in (100, 250):
            os.write(file.fileno(), b"x" * 100)
            flusher.request(file.fileno(), offset)
            assert wait(flusher) == (offset, 0)
        assert not select.select([flusher], [], [], 0)[0], "taken is taken"


def test_many_requests_end_at_the_newest(flusher: Any, tmp_path: Path) -> None:
    with open(tmp_path / "a", "wb") as first, open(tmp_path / "b", "wb") as second:
        for offset in range(1, 1000):
            flusher.request((first if offset < 500 else second).fileno(), offset)
        eventually(lambda: flusher.take() == (999, 0))


def test_a_failure_is_for_good(flusher: Any, tmp_path: Path) -> None:
    reader, writer = os.pipe()
    with open(tmp_path / "log", "wb") as file:
        flusher.request(file.fileno(), 10)
        assert wait(flusher) == (10, 0)
        flusher.request(writer, 20)
        assert wait(flusher) == (10, errno.EINVAL)  # a pipe cannot be synced
        flusher.request(file.fileno(), 30)
        assert flusher.take() == (10, errno.EINVAL)
    os.close(reader)
    os.close(writer)


def test_close_finishes_what_was_asked_for(module: ModuleType, tmp_path: Path) -> None:
    flusher = module.Flusher()
    descriptor = flusher.fileno()
    with open(tmp_path / "log", "wb") as file:
        flusher.request(file.fileno(), 77)
        flusher.close()
    assert flusher.take() == (77, 0)
    assert flusher.fileno() == -1
    with pytest.raises(OSError):
        os.fstat(descriptor)
    with pytest.raises(ValueError):
        flusher.request(0, 1)
    flusher.close()


def test_forgotten_ones_end_their_thread(native: ModuleType) -> None:
    before = set(os.listdir("/proc/self/task"))
    flusher = native.Flusher()
    own = set(os.listdir("/proc/self/task")) - before
    assert own
    del flusher
    eventually(lambda: not own & set(os.listdir("/proc/self/task")))  # threads of other tests may come and go


def test_requests_made_during_a_sync_share_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin only: its sync can be held up. flusher.c is the same loop."""
    synced: list[int] = []
    started, go_on = threading.Event(), threading.Event()

    def sync(fd: int) -> None:
        synced.append(fd)
        started.set()
        assert go_on.wait(10)

    monkeypatch.setattr(os, "fdatasync", sync)
    flusher = Flusher()
    flusher.request(101, 1)
    assert started.wait(10)
    for offset in range(2, 50):
        flusher.request(101 + offset % 2, offset)
    assert flusher.take() == (0, 0)
    go_on.set()
    eventually(lambda: flusher.take() == (49, 0))
    flusher.close()
    assert synced == [101, 101, 102]


def test_nothing_asked_for_before_a_cut_vouches_for_what_lies_behind_it(flusher: Any, tmp_path: Path) -> None:
    with open(tmp_path / "log", "wb") as file:
        flusher.request(file.fileno(), 2825)
        flusher.cut(2260)
        assert flusher.take() == (2260, 0), "reported or on its way: it is over when the cut is"
        flusher.request(file.fileno(), 2375)
        assert wait(flusher) == (2375, 0)
        flusher.cut(2400)
        assert flusher.take() == (2375, 0)
        for offset in range(3000, 3200):  # some of it is asked for while a sync runs
            flusher.request(file.fileno(), offset)
        flusher.cut(2376)
    flusher.request(file_number := os.open(tmp_path / "log", os.O_RDWR), 2377)  # the other one was not in use any more
    eventually(lambda: flusher.take() == (2377, 0))
    os.close(file_number)


def test_a_cut_after_a_failure_does_not_wait(flusher: Any) -> None:
    reader, writer = os.pipe()
    flusher.request(writer, 20)
    assert wait(flusher) == (0, errno.EINVAL)
    flusher.cut(10)
    assert flusher.take() == (0, errno.EINVAL)
    os.close(reader)
    os.close(writer)
