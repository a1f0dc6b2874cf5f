from __future__ import annotations

from kappamq.replication.gathering import Gathering


def test_what_waits_leaves_as_one_piece_in_order() -> None:
    gathering = Gathering()
    for data in (b"one", b"two", b"three"):
        gathering.add(data)
    assert gathering.size == len(b"onetwothree")
    assert (gathering.take(), gathering.size) == (b"onetwothree", 0)
    gathering.add(b"four")
    assert gathering.take() == b"four"
    gathering.add(b"five")
    gathering.clear()
    assert (gathering.size, gathering.take()) == (0, b"")


def test_a_follower_is_near_once_a_round_trip_was_short() -> None:
    gathering = Gathering()
    assert not gathering.is_near, "nothing is known of it yet"
    gathering.sent(100, 5.0)
    gathering.reported(99, 5.0001)
    assert not gathering.is_near, "the report of something else"
    gathering.reported(100, 5.0002)
    assert gathering.is_near


def test_one_late_report_does_not_move_it_away_and_many_do() -> None:
    gathering = Gathering()
    gathering.sent(100, 5.0)
    gathering.reported(100, 5.0005)
    gathering.sent(200, 6.0)
    gathering.reported(200, 6.5)
    assert gathering.is_near
    for number in range(3, 60):
        gathering.sent(number * 100, 10.0 * number)
        gathering.reported(number * 100, 10.0 * number + 0.5)
    assert not gathering.is_near
