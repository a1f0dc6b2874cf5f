from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kappamq.client.balance import STRATEGIES, averagely, circle, share, strategy
from kappamq.errors import ConfigError
from kappamq.message import MessageQueue


def queues(count: int) -> list[MessageQueue]:
    return [MessageQueue("tea", "b", n) for n in range(count)]


def ids(chosen: list[MessageQueue]) -> list[int]:
    return [queue.queue_id for queue in chosen]


def test_averagely_gives_runs_of_neighbours() -> None:
    clients = ["a", "b", "c"]
    assert [ids(averagely(client, clients, queues(8))) for client in clients] == [[0, 1, 2], [3, 4, 5], [6, 7]]


def test_averagely_with_more_clients_than_queues_leaves_the_last_without() -> None:
    clients = ["a", "b", "c"]
    assert [ids(averagely(client, clients, queues(2))) for client in clients] == [[0], [1], []]


def test_circle_deals_like_cards() -> None:
    clients = ["a", "b", "c"]
    assert [ids(circle(client, clients, queues(8))) for client in clients] == [[0, 3, 6], [1, 4, 7], [2, 5]]


@pytest.mark.parametrize("chosen", STRATEGIES.values(), ids=STRATEGIES.keys())
def test_a_client_that_the_broker_does_not_know_yet_gets_nothing(chosen) -> None:
    assert chosen("stranger", ["a", "b"], queues(4)) == []


def java_averagely(index: int, members: int, count: int) -> list[int]:
    """The rule as reference/behaviour.md, section 5, states it."""
    mod = count % members
    size = 1 if count <= members else (count // members + 1 if index < mod else count // members)
    start = index * size if index < mod else index * size + mod
    return [start + n for n in range(max(0, min(size, count - start)))]


@given(st.integers(1, 30), st.integers(0, 100))
def test_averagely_is_javas(members: int, count: int) -> None:
    clients = [f"{n:03}" for n in range(members)]
    for index, client in enumerate(clients):
        assert ids(averagely(client, clients, queues(count))) == java_averagely(index, members, count)


@pytest.mark.parametrize("name", STRATEGIES)
@given(clients=st.sets(st.text(min_size=1), min_size=1, max_size=20), count=st.integers(0, 60))
def test_each_queue_has_exactly_one_reader_whatever_the_order_of_the_lists(
    name: str, clients: set[str], count: int
) -> None:
    seen: list[MessageQueue] = []
    for client in clients:
        seen += share(strategy(name), client, sorted(clients, reverse=True), reversed(queues(count)))
    assert sorted(seen) == queues(count)


def test_an_unknown_strategy_is_named_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"'fair'.*averagely, circle"):
        strategy("fair")
