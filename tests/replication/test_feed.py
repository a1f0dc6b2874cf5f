from __future__ import annotations

import pytest

from kappamq.replication.feed import Feed
from kappamq.replication.frames import BadStream, Report


def test_room_is_what_was_not_reported_yet() -> None:
    feed = Feed(100, 50)
    assert feed.room == 50
    feed.took(30)
    assert feed.room == 20
    assert feed.reported(Report(0, 0, 120, 110))
    assert (feed.room, feed.written, feed.flushed) == (40, 120, 110)
    assert not feed.reported(Report(0, 0, 120, 110)), "nothing new"


def test_what_has_arrived_makes_room_before_it_is_stored() -> None:
    feed = Feed(100, 50)
    feed.took(50)
    assert feed.room == 0
    assert feed.reported(Report(0, 0, 100, 100, 150))
    assert (feed.room, feed.written) == (50, 100)
    with pytest.raises(BadStream, match="sent only up to 150"):
        feed.reported(Report(0, 0, 100, 100, 151))


def test_nobody_holds_what_was_not_sent() -> None:
    feed = Feed(100, 50)
    feed.took(10)
    with pytest.raises(BadStream, match="sent only up to 110"):
        feed.reported(Report(0, 0, 111, 100))


def test_reports_do_not_go_back() -> None:
    feed = Feed(100, 50)
    feed.took(20)
    feed.reported(Report(0, 0, 120, 110))
    for written, flushed in ((119, 110), (120, 109)):
        with pytest.raises(BadStream, match="go back"):
            feed.reported(Report(0, 0, written, flushed))


def test_a_report_of_another_generation_does_not_count() -> None:
    feed = Feed(100, 50, generation=2)
    feed.took(20)
    assert not feed.reported(Report(0, 1, 120, 120))
    assert feed.written == 100


def test_what_a_follower_holds_at_first_need_not_be_on_its_disk() -> None:
    feed = Feed(100, 50)
    assert (feed.written, feed.flushed) == (100, 0)
    assert feed.reported(Report(0, 0, 100, 40))
    assert (feed.written, feed.flushed) == (100, 40)
