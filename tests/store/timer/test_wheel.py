"""The wheel: sparse, exact about which second a slot belongs to."""

from __future__ import annotations

from pathlib import Path

import pytest

from kappamq.errors import StoreFormatError
from kappamq.store.files import Files
from kappamq.store.timer.entries import SLOTS, Slot
from kappamq.store.timer.wheel import WHEEL_BYTES, TimerWheel

T = 1_700_000_000  # seconds


def opened(path: Path) -> TimerWheel:
    wheel = TimerWheel(path, Files())
    wheel.open()
    return wheel


def test_slots(tmp_path: Path) -> None:
    path = tmp_path / "timerwheel"
    wheel = opened(path)
    assert path.stat().st_size == WHEEL_BYTES == 38_707_200
    assert path.stat().st_blocks == 0
    slot = Slot(T, 52, 520, 3)
    wheel.put(slot)
    assert wheel.get(T * 1000) == wheel.get(T * 1000 + 999) == slot
    assert wheel.get((T + SLOTS) * 1000) is None, "the same place, two weeks later"
    wheel.close()
    wheel = opened(path)
    assert wheel.get(T * 1000) == slot
    wheel.clear(T * 1000)
    assert wheel.get(T * 1000) is None
    wheel.sync()
    wheel.close()
    assert path.stat().st_blocks * 512 < 100_000


def test_the_next_one(tmp_path: Path) -> None:
    wheel = opened(tmp_path / "timerwheel")
    assert wheel.next_used(T * 1000, (T + SLOTS) * 1000) is None
    seconds = [T, T + 1, T + 5000, T + SLOTS - T % SLOTS + 3, T + SLOTS - 1]
    for second in seconds:
        wheel.put(Slot(second, 0, 52, 1))
    wheel.put(Slot(T - 100 + SLOTS, 0, 52, 1))
    found = []
    at = T
    while (slot := wheel.next_used(at * 1000, (T + SLOTS) * 1000)) is not None:
        found.append(slot.second)
        at = slot.second + 1
    assert found == sorted({*seconds, T - 100 + SLOTS})
    assert wheel.next_used((T + 2) * 1000, (T + 5000) * 1000) is None
    assert wheel.next_used((T + 2) * 1000, (T + 5001) * 1000) == Slot(T + 5000, 0, 52, 1)
    assert wheel.next_used(T * 1000, T * 1000) is None
    wheel.close()


def test_slots_of_one_page_are_written_together(tmp_path: Path) -> None:
    class Counting(Files):
        writes = 0

        def pwrite(self, fd: int, data: bytes | memoryview, at: int) -> None:
            self.writes += 1
            super().pwrite(fd, data, at)

    files = Counting()
    wheel = TimerWheel(tmp_path / "timerwheel", files)
    wheel.open()
    first = T - T % SLOTS + 128 * 50
    kept = Slot(first + 3, 5, 6, 7)
    wheel.put(kept)
    assert wheel.get((first + 4) * 1000) is None, "its page has been read"
    slots = [Slot(first + n, n, n * 52, 1) for n in (0, 1, 127, 128, 1000)]
    files.writes = 0
    wheel.put_all(slots)
    assert files.writes == 3
    other = opened(tmp_path / "timerwheel")
    for each in (wheel, other):
        assert [each.get(slot.second * 1000) for slot in [*slots, kept]] == [*slots, kept]
        assert each.get((first + 2) * 1000) is None
    wheel.clear(first * 1000)
    assert wheel.get(first * 1000) is None
    wheel.close()
    other.close()


def test_what_was_read_is_bounded(tmp_path: Path) -> None:
    wheel = opened(tmp_path / "timerwheel")
    for page in range(3000):
        assert wheel.get((T - T % SLOTS + page * 128) * 1000) is None
    assert len(wheel._pages) <= 1024
    wheel.close()


def test_another_size_is_no_wheel(tmp_path: Path) -> None:
    path = tmp_path / "timerwheel"
    path.write_bytes(b"x")
    with pytest.raises(StoreFormatError, match="a timer wheel has 38707200"):
        opened(path)
    assert path.read_bytes() == b"x"


def test_years_are_looked_through_once(tmp_path: Path) -> None:
    """After a clock that was years behind; the wheel itself knows two weeks of seconds."""

    class Counting(Files):
        reads = 0

        def pread(self, fd: int, size: int, at: int) -> bytes:
            self.reads += 1
            return super().pread(fd, size, at)

    files = Counting()
    wheel = TimerWheel(tmp_path / "timerwheel", files)
    wheel.open()
    (tmp_path / "timerwheel").write_bytes(bytes(WHEEL_BYTES))  # not sparse, as after weeks of use
    years = 40 * 365 * 86_400
    assert wheel.next_used(T * 1000, (T + years) * 1000) is None
    for second in (T + 20 * SLOTS + 7, T + 3 * SLOTS + 9, T - 5, T + years):
        wheel.put(Slot(second, 0, 52, 1))
    files.reads = 0
    assert wheel.next_used(T * 1000, (T + years) * 1000) == Slot(T + 3 * SLOTS + 9, 0, 52, 1)
    assert wheel.next_used((T + 3 * SLOTS + 10) * 1000, (T + years) * 1000) == Slot(T + 20 * SLOTS + 7, 0, 52, 1)
    assert files.reads < 1000
    wheel.close()
