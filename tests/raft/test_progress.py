from __future__ import annotations

import pytest

from kappamq.raft.members import MemberId
from kappamq.raft.progress import Progress


def streaming(common: int = 50, flushed: int = 50) -> Progress:
    peer = Progress(MemberId("B", 1), now=0)
    peer.begin_stream(common, flushed)
    return peer


def test_a_report_counts_in_its_stream_up_to_what_was_sent_and_once() -> None:
    peer = streaming(50, 20)
    assert peer.flushed == 20
    peer.reading = True
    assert peer.was_sent(1, 80)
    assert peer.was_reported(1, 60)
    assert not peer.was_reported(1, 60), "once"
    assert not peer.was_reported(1, 55)
    assert peer.was_reported(1, 999)
    assert peer.flushed == 80, "no more than was sent"
    peer.begin_stream(70, 70)
    assert peer.flushed == 80, "what is on its disk stays there"
    assert not peer.was_reported(1, 90), "an earlier stream"
    peer.end_stream()
    assert not peer.was_reported(2, 90), "no stream"


def test_what_a_position_says_counts_up_to_where_the_logs_agree() -> None:
    assert streaming(50, 70).flushed == 50


def test_what_was_sent_belongs_to_a_stream() -> None:
    peer = streaming()
    assert not peer.was_sent(1, 60), "nothing was ordered"
    peer.reading = True
    assert not peer.was_sent(0, 60)
    with pytest.raises(AssertionError, match="nothing was sent"):
        peer.was_sent(1, 50)
    assert peer.was_sent(1, 60)
    assert (peer.sent, peer.reading) == (60, False)
