from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kappamq.client.pulling.process_queue import Limits, ProcessQueue
from kappamq.message import MessageQueue, ReceivedMessage

QUEUE = MessageQueue("tea", "b", 0)


def message(offset: int, size: int = 10) -> ReceivedMessage:
    return ReceivedMessage(
        topic="tea", body=b"x" * size, queue=QUEUE, queue_offset=offset, log_offset=0, message_id="", offset_id=""
    )


def held(*offsets: int, next_offset: int | None = None, limits: Limits | None = None) -> ProcessQueue:
    queue = ProcessQueue(QUEUE, 0, limits or Limits())
    queue.add([message(offset) for offset in offsets], offsets[-1] + 1 if next_offset is None else next_offset)
    return queue


def test_the_lowest_unacknowledged_message_holds_the_offset_back() -> None:
    queue = held(3, 4, 5)
    assert queue.committable == 3
    queue.acknowledge(4)
    assert queue.committable == 3
    queue.acknowledge(3)
    assert queue.committable == 5
    queue.acknowledge(5)
    assert queue.committable == 6


def test_what_was_filtered_away_is_committed_once_nothing_is_held() -> None:
    queue = held(3, next_offset=40)
    assert queue.committable == 3
    queue.acknowledge(3)
    assert queue.committable == 40


def test_messages_come_in_once() -> None:
    queue = held(3, 4)
    assert queue.add([message(3), message(4), message(5)], 6) == [message(5)]
    assert queue.count == 3


def test_acknowledging_twice_or_a_stranger_changes_nothing() -> None:
    queue = held(3, 4)
    assert queue.acknowledge(3)
    assert not queue.acknowledge(3)
    assert not queue.acknowledge(99)
    assert (queue.committable, queue.count, queue.bytes) == (4, 1, 10)


def test_each_limit_stops_the_pulls_and_says_so() -> None:
    assert held(0, 1).full() is None
    assert "2 messages" in (held(0, 1, limits=Limits(messages_max=2)).full() or "")
    assert "20 bytes" in (held(0, 1, limits=Limits(bytes_max=15)).full() or "")
    assert "is 100 offsets behind" in (held(0, 100, limits=Limits(span_max=100)).full() or "")


def test_whoever_makes_room_wakes_the_pull_once() -> None:
    queue, woken = held(0, 1, limits=Limits(messages_max=2)), []
    assert queue.when_room(lambda: woken.append(1))
    queue.acknowledge(1)
    queue.acknowledge(0)
    assert woken == [1]
    assert not queue.when_room(lambda: woken.append(2))


def test_a_paused_queue_counts_as_full_until_it_is_woken() -> None:
    queue, woken = held(0), []
    queue.paused = True
    assert queue.full() == "it is paused"
    assert queue.when_room(lambda: woken.append(1))
    queue.paused = False
    queue.woken()
    queue.woken()
    assert woken == [1]


def test_the_range_is_what_is_held() -> None:
    queue = held(3, 4, 9)
    assert queue.range == (3, 9)
    queue.acknowledge(3)
    assert queue.range == (4, 9)
    queue.acknowledge(4)
    queue.acknowledge(9)
    assert queue.range == (0, 0)


@given(st.lists(st.integers(0, 200), unique=True, min_size=1).map(sorted), st.randoms())
def test_committable_is_the_obvious_minimum(offsets: list[int], dice) -> None:
    queue = held(*offsets)
    left = list(offsets)
    dice.shuffle(left)
    while left:
        assert queue.committable == min(left)
        assert queue.count == len(left)
        queue.acknowledge(left.pop())
    assert queue.committable == offsets[-1] + 1
    assert queue.bytes == 0
