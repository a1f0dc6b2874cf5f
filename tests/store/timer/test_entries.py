"""Bytes of the timer files, as RocketMQ writes and reads them."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st

from kappamq.store.timer.entries import (
    CANCEL,
    CHECKPOINT_BYTES,
    END_MARK,
    PLAIN,
    ROLL,
    ROLL_MS,
    SLOT,
    SLOTS,
    STAMPED_BYTES,
    UNIT,
    Stamp,
    TimerCheckpoint,
    Unit,
    decode_unit,
    encode_unit,
    read_stamp,
    roll_ms,
    slot_ms,
)

T = 1_700_000_000_000
NOBODY = Stamp(False, False, False)


def test_sizes_are_rocketmqs() -> None:
    assert (SLOT.size, UNIT.size, END_MARK.size, SLOTS * SLOT.size) == (32, 52, 16, 38_707_200)


@given(st.integers(1, 1 << 50))
def test_a_slot_is_over_when_its_messages_are_due(due_ms: int) -> None:
    """RocketMQ reads a slot when the next second has begun: at or after the time, by less than a second."""
    start = slot_ms(due_ms)
    assert start % 1000 == 0
    assert 0 <= start + 1000 - due_ms < 1000


def test_units() -> None:
    data = encode_unit(104, PLAIN | CANCEL, T + 17, T + 5000, 77, 300, -5)
    assert data == struct.pack(">iqiqiqiiq", 52, 104, 5, T, 4000, 77, 300, -5, T + 5000)
    assert decode_unit(b"xx" + data, 2, 156) == Unit(156, 104, 5, T, T + 4000, 77, 300, -5, T + 5000)
    # As RocketMQ writes it: it does not know the millisecond.
    theirs = struct.pack(">iqiqiqiiq", 52, -1, PLAIN, T, 4000, 77, 300, 9, 0)
    found = decode_unit(theirs, 0, 0)
    assert found is not None
    assert (found.slot_ms, found.due_ms) == (T + 4000, 0)
    for bad in (bytes(52), struct.pack(">iqiqiqiiq", 52, -1, 16, T, 0, 7, 3, 9, 0), b"\xff" * 52):
        assert decode_unit(bad, 0, 0) is None


def test_long_ways_have_stations() -> None:
    assert roll_ms(T + ROLL_MS - 1, T) is None
    assert roll_ms(T + ROLL_MS, T) == T + ROLL_MS // 2, "else the rest of the way would be too short for one more"
    assert roll_ms(T + 10 * ROLL_MS, T) == T + ROLL_MS
    for due in range(T + ROLL_MS, T + 3 * ROLL_MS, ROLL_MS // 7):
        at: int | None = T
        while at is not None and (after := roll_ms(due, at)) is not None:
            assert at < after < due
            at = after


def test_the_checkpoint() -> None:
    point = TimerCheckpoint(T, 52, 3, 3, 0, T, 8)
    data = point.encode()
    assert (len(data), struct.unpack(">7q", data)) == (CHECKPOINT_BYTES, (T, 52, 3, 3, 0, T, 8))
    assert TimerCheckpoint.decode(data) == point
    assert TimerCheckpoint.decode(b"") == TimerCheckpoint()
    assert point.next(T + 1, T + 1000, 104, 4) == TimerCheckpoint(T + 1000, 104, 4, 4, 0, T + 1, 9)


def test_whose_checkpoint_it_is() -> None:
    data = TimerCheckpoint(T, 52, 3, 3).stamped("boot", 5200, clean=True)
    assert len(data) == STAMPED_BYTES
    assert read_stamp(data, "boot") == Stamp(True, True, True, 5200)
    assert read_stamp(data, "another boot") == Stamp(True, False, True, 5200)
    assert read_stamp(TimerCheckpoint().stamped("b", 0, clean=False), "b") == Stamp(True, True, False)
    changed = TimerCheckpoint(T + 1000, 52, 3, 3).encode() + data[CHECKPOINT_BYTES:]
    for other in (changed, data[:-1], data[:56], bytes(200), b""):
        assert read_stamp(other, "boot") == NOBODY


def test_kinds_are_bits() -> None:
    assert (PLAIN, ROLL, CANCEL) == (1, 2, 4)
