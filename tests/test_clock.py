from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kappamq.clock import (
    SETTLE_MS,
    STALL_MS,
    TOLERANCE_MS,
    Clock,
    Discipline,
    Jump,
    SystemClock,
    VirtualClock,
    WatchedClock,
)

DAY_MS = 86_400_000


def test_system_clock_tells_the_time() -> None:
    clock: Clock = SystemClock()
    before = time.time_ns() // 1_000_000
    assert before <= clock.message_ms() <= time.time_ns() // 1_000_000
    assert clock.liveness() <= clock.liveness()
    assert 0 < clock.uptime_ms() <= clock.uptime_ms()


def test_the_uptime_counts_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that slept for a night has seen no jump: both witnesses have."""
    asked: list[int] = []
    monkeypatch.setattr(time, "clock_gettime_ns", lambda which: asked.append(which) or 7_000_000)
    assert SystemClock().uptime_ms() == 7
    assert asked == [time.CLOCK_BOOTTIME]


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
    assert (clock.message_ms(), clock.uptime_ms()) == (3000, 3000)
    clock.jump(-1, ms=-500)
    assert (clock.message_ms(), clock.uptime_ms()) == (1500, 3000)
    clock.stand_still(2)
    assert (clock.message_ms(), clock.uptime_ms(), clock.liveness()) == (1500, 5000, pytest.approx(14.52))


def test_virtual_time_does_not_go_back() -> None:
    clock = VirtualClock()
    for move in (lambda: clock.advance(-1), lambda: clock.advance_liveness(-0.1)):
        with pytest.raises(ValueError, match="cannot advance by -"):
            move()


# --- the discipline -----------------------------------------------------------------------------------------------------


def test_message_time_is_the_wall_clocks_while_the_witnesses_agree() -> None:
    clock = Discipline(1_000_000, 500)
    assert [clock.read(1_000_000 + ms, 500 + ms) for ms in (0, 1, 700, 5_000_000)] == [
        1_000_000, 1_000_001, 1_000_700, 6_000_000,
    ]  # fmt: skip
    assert clock.adopt(6_000_001, 5_000_501) is None


def test_a_small_step_is_followed_forward_and_waited_for_backward() -> None:
    clock = Discipline(1_000_000, 0)
    assert clock.read(1_000_910, 10) == 1_000_910  # 900 ms forward
    assert clock.read(1_000_120, 20) == 1_000_910  # 800 ms back: it stands still
    assert clock.pending_ms == 0
    assert clock.read(1_000_911, 811) == 1_000_911


def test_small_steps_back_do_not_add_up_to_a_clock_that_is_hours_ahead() -> None:
    clock = Discipline(1_000_000, 0)
    for number in range(1, 100):
        clock.read(1_000_000 - 900 * number, number)
        clock.adopt(1_000_000 - 900 * number, number)
        assert clock.read(1_000_000 - 900 * number, number) - (1_000_000 - 900 * number) <= TOLERANCE_MS


def test_a_jump_is_followed_when_it_is_adopted_and_time_goes_on_until_then() -> None:
    clock = Discipline(1_000_000, 0)
    ahead = 1_000_000 + DAY_MS
    assert clock.read(ahead + 50, 50) == 1_000_050
    assert clock.pending_ms == DAY_MS
    assert clock.adopt(ahead + 60, 60) == Jump(1_000_060, ahead + 60)
    assert clock.read(ahead + 70, 70) == ahead + 70
    assert clock.read(1_001_000, 1000) == ahead + 1000  # back again
    assert clock.adopt(1_001_000, 1000) == Jump(ahead + 1000, 1_001_000)
    assert clock.read(1_001_001, 1001) == 1_001_001


def test_a_glitch_that_nobody_adopted_has_not_happened() -> None:
    clock = Discipline(1_000_000, 0)
    assert clock.read(5, 10) == 1_000_010
    assert clock.read(1_000_020, 20) == 1_000_020
    assert clock.adopt(1_000_030, 30) is None


def test_a_clock_that_stands_still_is_passed_by() -> None:
    clock = Discipline(1_000_000, 0)
    assert [clock.read(1_000_000, ms) for ms in range(0, STALL_MS + 1, 100)] == [1_000_000] * 21
    assert not clock.is_stalled
    assert clock.read(1_000_000, STALL_MS + 1) == 1_000_000 + STALL_MS + 1
    assert clock.is_stalled
    assert clock.adopt(1_000_000, 60_000) is None
    assert clock.read(1_000_000, 60_000) == 1_060_000
    # It goes on from where it stood: it was set back, in effect.
    assert clock.adopt(1_000_001, 60_001) == Jump(1_060_001, 1_000_001)
    assert not clock.is_stalled


def test_a_clock_that_stood_still_and_is_right_again_made_no_jump() -> None:
    clock = Discipline(1_000_000, 0)
    assert clock.read(1_000_000, 10_000) == 1_010_000
    assert clock.adopt(1_011_000, 11_000) is None
    assert clock.read(1_011_000, 11_000) == 1_011_000


def test_an_uptime_that_lies_as_well_does_not_hold_time_up() -> None:
    """Both witnesses go a day ahead, as after a sleep, and back again, as never: message time is the wall clock's."""
    clock = Discipline(1_000_000, 0)
    assert clock.read(1_000_000 + DAY_MS, DAY_MS) == 1_000_000 + DAY_MS
    assert clock.adopt(1_001_000, 1000) == Jump(1_000_000 + DAY_MS, 1_001_000)
    assert clock.read(1_002_000, 2000) == 1_002_000


def test_a_jump_forward_counts_for_deleting_only_when_it_was_kept() -> None:
    clock = Discipline(0, 0)
    clock.adopt(DAY_MS, 0)
    assert clock.settled_ms(0) == 0
    assert clock.read(DAY_MS + 5000, 5000) - clock.settled_ms(5000) == DAY_MS
    assert clock.settled_ms(SETTLE_MS) == DAY_MS + 5000
    clock = Discipline(0, 0)
    clock.adopt(DAY_MS, 0)
    clock.adopt(1000, 1000)  # the jump is taken back, and with it what nobody vouched for
    assert clock.settled_ms(1000) == 1000


def test_time_that_nobody_watched_is_not_settled_either() -> None:
    clock = Discipline(DAY_MS, 0)
    clock.unwitnessed(DAY_MS, 0)
    assert clock.settled_ms(10) == 0
    clock.unwitnessed(-5, 10)
    assert clock.settled_ms(SETTLE_MS) == DAY_MS


class Worlds(RuleBasedStateMachine):
    """A machine whose wall clock is set at will. What message time does must be explained by jumps that were told of."""

    @initialize()
    def begin(self) -> None:
        self.wall = 1_700_000_000_000
        self.up = 1000
        self.clock = Discipline(self.wall, self.up)
        self.last = self.clock.read(self.wall, self.up)
        self.settled = self.clock.settled_ms(self.up)
        self.told = 0  # sum of all jumps that were adopted
        self.small = 0  # at most so much was stepped in ways that are no jump

    def look(self) -> None:
        now = self.clock.read(self.wall, self.up)
        assert now >= self.last, "message time goes back only when a jump is adopted"
        self.last = now

    @rule(ms=st.integers(0, 5_000))
    def time_passes(self, ms: int) -> None:
        self.wall += ms
        self.up += ms
        self.look()

    @rule(ms=st.integers(-400 * DAY_MS, 400 * DAY_MS))
    def the_clock_is_set(self, ms: int) -> None:
        self.wall += ms
        self.small += min(abs(ms), TOLERANCE_MS)
        self.look()

    @rule(ms=st.integers(-900, 900))
    def the_clock_is_slewed(self, ms: int) -> None:
        self.wall += ms
        self.small += abs(ms)
        self.look()

    @rule(ms=st.integers(0, 10_000))
    def the_clock_stands_still(self, ms: int) -> None:
        self.up += ms
        self.small += ms
        self.look()

    @rule()
    def the_broker_looks(self) -> None:
        before = self.clock.read(self.wall, self.up)
        jump = self.clock.adopt(self.wall, self.up)
        self.last = self.clock.read(self.wall, self.up)
        if jump is None:
            assert self.last == before
        else:
            assert jump == Jump(before, self.wall)
            assert abs(jump.step_ms) > 0
            self.told += jump.step_ms
        if not self.clock.is_stalled:
            assert 0 <= self.last - self.wall <= TOLERANCE_MS, "within a second of the wall clock"

    @invariant()
    def all_is_explained(self) -> None:
        """Message time is the time that passed, and the jumps."""
        unexplained = self.last - 1_700_000_000_000 - (self.up - 1000) - self.told
        assert abs(unexplained) <= self.small + TOLERANCE_MS

    @invariant()
    def what_is_settled_is_not_ahead(self) -> None:
        assert self.clock.settled_ms(self.up) <= self.last


TestWorlds = Worlds.TestCase


@given(st.lists(st.integers(1, 2000), min_size=1, max_size=50))
def test_slewing_is_no_jump(steps: list[int]) -> None:
    """NTP and adjtime slow both witnesses alike; even a clock that runs at half speed is just followed."""
    clock = Discipline(0, 0)
    wall = up = 0
    for ms in steps:
        wall, up = wall + ms, up + 2 * min(ms, 900)
        if abs(2 * min(ms, 900) - ms) <= TOLERANCE_MS:
            assert clock.read(wall, up) == wall
            assert clock.adopt(wall, up) is None
        else:
            wall, up = wall - ms, up - 2 * min(ms, 900)


# --- on a machine -------------------------------------------------------------------------------------------------------


def test_a_watched_clock_follows_a_clock_that_is_set() -> None:
    machine = VirtualClock(message_ms=1_000_000)
    clock = WatchedClock(machine)
    machine.jump(86_400)
    machine.advance(0.1)
    assert clock.message_ms() == 1_000_100
    assert clock.adopt() == Jump(1_000_100, 1_000_100 + DAY_MS)
    assert clock.message_ms() == 1_000_100 + DAY_MS
    assert clock.settled_ms() == 1_000_100
    machine.jump(-86_400)
    assert clock.adopt() is not None
    assert clock.message_ms() == clock.settled_ms() == 1_000_100
    machine.stand_still(3)
    clock.message_ms()
    assert clock.is_stalled


def test_a_process_that_was_stopped_between_two_readings_has_seen_no_jump() -> None:
    class Stopped(VirtualClock):
        """Each reading of the wall clock is followed by a long pause, for a while."""

        __slots__ = ("pauses",)

        def __init__(self) -> None:
            super().__init__(message_ms=1_000_000)
            self.pauses = 0

        def message_ms(self) -> int:
            shown = super().message_ms()
            if self.pauses:
                self.pauses -= 1
                self.advance(5)
            return shown

    machine = Stopped()
    clock = WatchedClock(machine)
    machine.pauses = 3
    clock.message_ms()
    assert clock.adopt() is None
