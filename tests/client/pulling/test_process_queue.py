from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kappamq.client.pulling.process_queue import Limits, ProcessQueue
from kappamq.message import MessageQueue, ReceivedMessage
from tests.client.messages import block

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


class Obvious:
    """What a process queue means, message by message."""

    def __init__(self) -> None:
        self.next_offset, self.seen, self.left = 0, [-1], dict[int, int]()

    def add(self, messages: list[ReceivedMessage], next_offset: int) -> list[int]:
        fresh = []
        for one in messages:
            if one.queue_offset >= self.next_offset and (not self.left or one.queue_offset > max(self.seen)):
                self.seen.append(one.queue_offset)
                self.left[one.queue_offset] = len(one.body)
                fresh.append(one.queue_offset)
        self.next_offset = max(self.next_offset, next_offset)
        return fresh

    def acknowledge(self, offsets: list[int]) -> int:
        return sum(self.left.pop(offset, None) is not None for offset in offsets)


@given(st.data())
def test_blocks_and_lists_mean_the_same_as_message_by_message(data: st.DataObject) -> None:
    queue, model = ProcessQueue(QUEUE, 0, Limits()), Obvious()
    for _ in range(data.draw(st.integers(1, 12))):
        if data.draw(st.booleans()):
            first = max(0, queue.next_offset + data.draw(st.integers(-4, 4)))
            count = data.draw(st.integers(0, 14))
            given = block(first, count) if data.draw(st.booleans()) else [message(first + n) for n in range(count)]
            behind = first + count + data.draw(st.integers(0, 3))
            expected = model.add(list(given), behind)
            assert [one.queue_offset for one in queue.add(given, behind)] == expected
        else:
            low = data.draw(st.integers(0, queue.next_offset + 2))
            chosen = list(range(low, low + data.draw(st.integers(0, 20))))
            if data.draw(st.booleans()):
                chosen = data.draw(st.permutations(chosen)) + chosen[:2]
            assert queue.acknowledge_all(chosen) == model.acknowledge(chosen)
        assert queue.committable == min(model.left, default=model.next_offset)
        assert (queue.count, queue.bytes) == (len(model.left), sum(model.left.values()))
        assert queue.range[0] == min(model.left, default=0)


def test_acknowledging_a_list_wakes_the_pull_once() -> None:
    queue, woken = held(*range(10), limits=Limits(messages_max=3)), []
    assert queue.when_room(lambda: woken.append(queue.count))
    queue.acknowledge_all([90, 91])
    assert woken == []
    assert queue.acknowledge_all(list(range(9))) == 9
    assert woken == [1]
