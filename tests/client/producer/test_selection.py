from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kappamq.client.core.routes import Route
from kappamq.client.producer.selection import RoundRobin, Sticky, by_key, key_hash, selection
from kappamq.client.producer.sending import Sending
from kappamq.config.client import ClientConfig
from kappamq.errors import ConfigError
from kappamq.message import MessageQueue

QUEUES = [MessageQueue("tea", broker, n) for broker in ("a", "b") for n in range(3)]


def test_round_robin_visits_every_queue_equally() -> None:
    turn = RoundRobin()
    assert set(Counter(turn.choose(QUEUES) for _ in range(60)).values()) == {10}


def test_round_robin_avoids_the_broker_that_failed_and_goes_on_behind_it() -> None:
    turn = RoundRobin(start=0)
    assert turn.choose(QUEUES, avoid="a") == QUEUES[3]
    assert turn.choose(QUEUES) == QUEUES[4]


@pytest.mark.parametrize("make", [RoundRobin, Sticky])
def test_the_only_broker_is_used_even_if_it_failed(make) -> None:
    only = QUEUES[:3]
    assert make().choose(only, avoid="a") in only


def test_round_robin_survives_a_list_that_shrinks() -> None:
    turn = RoundRobin(start=5)
    assert turn.choose(QUEUES) == QUEUES[5]
    assert turn.choose(QUEUES[:2]) in QUEUES[:2]


def test_sticky_stays_then_moves_on() -> None:
    sticky = Sticky(messages_max=3, start=0)
    assert [sticky.choose(QUEUES) for _ in range(7)] == [QUEUES[0]] * 3 + [QUEUES[1]] * 3 + [QUEUES[2]]


def test_sticky_leaves_a_broker_that_failed_and_a_queue_that_is_gone() -> None:
    sticky = Sticky(messages_max=100, start=0)
    assert sticky.choose(QUEUES).broker == "a"
    assert sticky.choose(QUEUES, avoid="a").broker == "b"
    assert sticky.choose(QUEUES[:2]) in QUEUES[:2]


def test_a_key_always_goes_to_the_same_queue_and_keys_spread() -> None:
    assert len({by_key(QUEUES, "order-42") for _ in range(5)}) == 1
    assert len({by_key(QUEUES, f"order-{n}") for n in range(100)}) == len(QUEUES)


@pytest.mark.parametrize(
    ("key", "expected"),
    [("TagA", 2598919), (42, 42), (-1, 0), ((1 << 32) + 5, 4), (1 << 31, -(1 << 31)), (b"hello", 907060870)],
)
def test_keys_hash_as_in_java(key, expected: int) -> None:
    assert key_hash(key) == expected


def test_the_smallest_hash_has_a_queue_too() -> None:
    assert by_key(QUEUES, 1 << 31) == QUEUES[(1 << 31) % len(QUEUES)]


def test_an_unknown_selection_is_named_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"'random'.*round-robin, sticky"):
        selection("random")
    with pytest.raises(ConfigError, match="at least 1"):
        Sticky(messages_max=0)


@given(
    st.lists(st.integers(1, 20), min_size=1, max_size=8), st.integers(1, 5), st.sampled_from(["round-robin", "sticky"])
)
def test_many_at_once_get_the_queues_that_one_after_the_other_would(counts: list[int], queues: int, name: str) -> None:
    publish = tuple(MessageQueue("tea", "b", number) for number in range(queues))
    route = Route("tea", {}, publish, publish)
    start = {"round-robin": lambda: RoundRobin(3), "sticky": lambda: Sticky(4, 3)}[name]
    together, single = (Sending(ClientConfig(), "g", start()) for _ in range(2))
    for count in counts:
        entries = list(range(count))
        found = together.choose_for_all(route, entries, 0.0)
        assert found is not None
        wanted: dict[MessageQueue, list[int]] = {}
        for entry in entries:
            wanted.setdefault(single.choose(route, None, None, None, 0.0), []).append(entry)
        assert dict(found) == wanted


def test_a_selection_of_an_application_is_asked_for_each() -> None:
    class Mine(RoundRobin):
        pass

    publish = (MessageQueue("tea", "b", 0),)
    assert Sending(ClientConfig(), "g", Mine()).choose_for_all(Route("tea", {}, publish, publish), [1], 0.0) is None
