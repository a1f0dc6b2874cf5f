from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from kappamq.client.consumer.waiting import Delivery, Hand, Waiting
from tests.client.messages import block, held, message


@given(st.lists(st.integers(1, 12), max_size=8), st.randoms())
def test_what_is_taken_is_what_came_in_its_order(sizes: list[int], dice: random.Random) -> None:
    waiting, expected, queue, at = Waiting(), [], held(0), 0
    for size in sizes:
        part = block(at, size) if dice.random() < 0.5 else [message(number) for number in range(at, at + size)]
        assert waiting.append(part) == size
        expected += range(at, at + size)
        at += size
    assert len(waiting) == at
    while expected:
        if dice.random() < 0.2:  # tried again: it is the next one to be handed out
            waiting.put_first([message(at)])
            expected.insert(0, at)
            at += 1
        count = dice.randint(1, 15)
        delivery = waiting.take(queue, count)
        assert delivery.offsets == [one.queue_offset for one in delivery.messages] == expected[:count]
        del expected[:count]
        assert len(waiting) == len(expected)
    assert not waiting


def test_nothing_is_no_part() -> None:
    waiting = Waiting()
    assert waiting.append([]) == 0
    waiting.put_first([])
    assert not waiting


def test_a_delivery_acknowledges_all_of_it_or_a_part() -> None:
    queue = held(6)
    delivery = Delivery(queue, [message(number) for number in range(5)])
    delivery.acknowledge(0, 2)
    assert queue.committable == 2
    delivery.messages.clear()  # the list belongs to the listener
    delivery.acknowledge()
    assert queue.committable == 5


def test_whoever_takes_what_is_left_of_a_hand_takes_nothing_that_another_has() -> None:
    hand = Hand(Delivery(held(6), [message(number) for number in range(6)]), whole=False)
    assert (hand.left.popleft(), hand.left.pop()) == (0, 5)  # the thread has one, and a second taker the other
    del hand.left[2]  # and one between
    assert [part.offsets for part in hand.take_left()] == [[1, 2], [4]]
    assert hand.take_left() == []
    whole = Hand(Delivery(held(3), [message(number) for number in range(3)]), whole=True)
    assert [part.offsets for part in whole.take_left()] == [[0, 1, 2]]
