from __future__ import annotations

import time

import pytest

from kappamq.clock import Clock, SystemClock, VirtualClock


def test_system_clock_tells_the_time() -> None:
    clock: Clock = SystemClock()
    before = time.time_ns() // 1_000_000
    assert before <= clock.message_ms() <= time.time_ns() // 1_000_000
    assert clock.liveness() <= clock.liveness()


def test_message_time_stands_still_when_the_wall_clock_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SystemClock()
    now = iter([5_000_000_000, 3_000_000_000, 5_001_000_000, 6_000_000_000])
    monkeypatch.setattr(time, "time_ns", lambda: next(now))
    assert [clock.message_ms() for _ in range(4)] == [5000, 5000, 5001, 6000]


def test_message_time_never_precedes_the_last_record() -> None:
    future = time.time_ns() // 1_000_000 + 3_600_000
    assert SystemClock(not_before_ms=future).message_ms() == future
    clock = SystemClock()
    clock.not_before(future)
    clock.not_before(0)
    assert clock.message_ms() == future


def test_virtual_clock_moves_when_told() -> None:
    clock = VirtualClock(message_ms=1000, liveness=1.0)
    same: Clock = clock
    assert (same.message_ms(), same.liveness()) == (1000, 1.0)
    clock.advance(1.5)
    clock.advance(ms=20)
    assert (clock.message_ms(), clock.liveness()) == (2520, pytest.approx(2.52))
    clock.advance_liveness(10)
    assert (clock.message_ms(), clock.liveness()) == (2520, pytest.approx(12.52))
    clock.not_before(3000)
    clock.not_before(2000)
    assert clock.message_ms() == 3000


def test_virtual_time_does_not_go_back() -> None:
    clock = VirtualClock()
    for move in (lambda: clock.advance(-1), lambda: clock.advance_liveness(-0.1)):
        with pytest.raises(ValueError, match="does not go back"):
            move()
