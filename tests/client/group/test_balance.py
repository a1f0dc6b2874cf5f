from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kappamq.client.group.balance import (
    STRATEGIES,
    ConsistentHash,
    Strategy,
    averagely,
    by_configuration,
    by_machine_room,
    circle,
    consistent_hash,
    nearby,
    share,
    strategy,
)
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


# What Java's client 5.3.3 answers; see reference/behaviour.md, section 5. Queues are written broker/id.
CLIENTS = ["10.0.0.1@1", "10.0.0.2@1", "10.0.0.3@1"]
TWO_BROKERS = [MessageQueue("tea", broker, n) for broker in ("broker-a", "broker-b") for n in range(8)]
ROOMS = [MessageQueue("tea", broker, n) for broker in ("r1@a", "r2@b", "r3@c") for n in range(5)]
NEAR = [MessageQueue("tea", broker, n) for broker in ("r1-a", "r2-b", "r3-c") for n in range(5)]
NEAR_CLIENTS = ["r1-c1", "r1-c2", "r2-c1", "r4-c1"]


def room(name: str) -> str:
    return name.partition("-")[0]


def near(within: str) -> Strategy:
    return nearby(lambda queue: room(queue.broker), room, within)


@pytest.mark.parametrize(
    ("chosen", "clients", "queues", "expected"),
    [
        pytest.param(
            consistent_hash,
            CLIENTS,
            TWO_BROKERS,
            ["", "a0 a2 a3 a4 a7 b0 b3 b4 b5 b6 b7", "a1 a5 a6 b1 b2"],
            id="consistent hash",
        ),
        pytest.param(
            ConsistentHash(virtual_nodes=1),
            CLIENTS,
            TWO_BROKERS,
            ["a2 a7 b0 b2 b3 b4 b5 b6", "a0 a3 a4 b7", "a1 a5 a6 b1"],
            id="one virtual node",
        ),
        pytest.param(
            averagely,
            CLIENTS,
            TWO_BROKERS,
            ["a0 a1 a2 a3 a4 a5", "a6 a7 b0 b1 b2", "b3 b4 b5 b6 b7"],
            id="averagely",
        ),
        pytest.param(
            circle, CLIENTS, TWO_BROKERS, ["a0 a3 a6 b1 b4 b7", "a1 a4 a7 b2 b5", "a2 a5 b0 b3 b6"], id="circle"
        ),
        pytest.param(
            by_machine_room({"r1", "r3"}),
            CLIENTS,
            [*ROOMS, MessageQueue("tea", "plain", 0)],
            ["a0 a1 a2 c4", "a3 a4 c0", "c1 c2 c3"],
            id="machine room",
        ),
        pytest.param(
            near("averagely"),
            NEAR_CLIENTS,
            NEAR,
            ["a0 a1 a2 c0 c1", "a3 a4 c2", "b0 b1 b2 b3 b4 c3", "c4"],
            id="nearby",
        ),
        pytest.param(
            near("circle"),
            NEAR_CLIENTS,
            NEAR,
            ["a0 a2 a4 c0 c4", "a1 a3 c1", "b0 b1 b2 b3 b4 c2", "c3"],
            id="nearby, circle",
        ),
    ],
)
def test_members_get_what_java_gives_them(
    chosen: Strategy, clients: list[str], queues: list[MessageQueue], expected: list[str]
) -> None:
    given = [" ".join(f"{queue.broker[-1]}{queue.queue_id}" for queue in chosen(me, clients, queues)) for me in clients]
    assert given == expected


def test_by_configuration_takes_what_it_is_told_and_the_topic_has() -> None:
    told = [*queues(3), MessageQueue("cake", "b", 0), MessageQueue("tea", "b", 77)]
    assert by_configuration(told)("nobody knows me", [], queues(8)) == queues(3)


def test_a_broker_name_with_two_signs_names_no_room() -> None:
    odd = [MessageQueue("tea", "r1@a@b", 0), MessageQueue("tea", "r1", 0), MessageQueue("tea", "r1@a", 0)]
    assert by_machine_room("r1")("c", ["c"], odd) == [odd[2]]


def test_a_room_that_is_missing_in_the_table_is_named() -> None:
    chosen = nearby({"broker-a": "north"}, {"c1": "north"})
    assert chosen("c1", ["c1"], TWO_BROKERS[:8]) == TWO_BROKERS[:8]
    with pytest.raises(ConfigError, match="no room is configured for broker 'broker-b'"):
        chosen("c1", ["c1"], TWO_BROKERS)
    with pytest.raises(ConfigError, match="no room is configured for client 'c2'"):
        chosen("c1", ["c1", "c2"], TWO_BROKERS[:8])


def test_a_ring_without_places_is_refused() -> None:
    with pytest.raises(ConfigError, match="virtual_nodes=0"):
        ConsistentHash(0)


@given(clients=st.sets(st.text(min_size=1), min_size=2, max_size=12), count=st.integers(1, 60), data=st.data())
def test_on_the_ring_only_the_queues_of_the_one_who_leaves_move(clients: set[str], count: int, data) -> None:
    leaves = data.draw(st.sampled_from(sorted(clients)))
    for client in clients - {leaves}:
        before = share(consistent_hash, client, clients, queues(count))
        assert before <= share(consistent_hash, client, clients - {leaves}, queues(count))


@pytest.mark.parametrize("within", ["averagely", "circle", "consistent-hash"])
@given(
    clients=st.sets(st.tuples(st.sampled_from("NSEW"), st.integers(0, 9)), min_size=1, max_size=12),
    brokers=st.sets(st.sampled_from("NSEWX"), max_size=5),
    count=st.integers(0, 12),
)
def test_nearby_every_queue_has_one_reader_and_rooms_stay_among_themselves(
    within: str, clients: set[tuple[str, int]], brokers: set[str], count: int
) -> None:
    names = {f"{where}-{number}" for where, number in clients}
    everything = [MessageQueue("tea", f"{where}-b", n) for where in brokers for n in range(count)]
    seen: list[MessageQueue] = []
    rooms_with_clients = {where for where, _ in clients}
    for name in names:
        mine = share(near(within), name, names, everything)
        seen += mine
        assert all(room(queue.broker) in ({room(name)} | (brokers - rooms_with_clients)) for queue in mine)
    assert sorted(seen) == sorted(everything)


@given(clients=st.sets(st.text(min_size=1), min_size=1, max_size=12), count=st.integers(0, 40))
def test_machine_rooms_share_out_every_queue_of_theirs_once(clients: set[str], count: int) -> None:
    everything = [MessageQueue("tea", f"{where}@b", n) for where in ("in", "out") for n in range(count)]
    seen = [q for client in clients for q in share(by_machine_room({"in"}), client, clients, everything)]
    assert sorted(seen) == everything[:count]


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
    with pytest.raises(ConfigError, match=r"'fair'.*averagely, circle, consistent-hash"):
        strategy("fair")
