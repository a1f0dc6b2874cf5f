"""Strategies: what each gives to whom is in the dialogue; what holds for any members and queues, here."""

from __future__ import annotations

from collections.abc import Callable

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
    consistent_hash,
    nearby,
    share,
    strategy,
)
from kappamq.errors import ConfigError
from kappamq.message import MessageQueue
from tests.dialogue import Script, scripts, table


def queues(count: int) -> list[MessageQueue]:
    return [MessageQueue("tea", "b", n) for n in range(count)]


def ids(chosen: list[MessageQueue]) -> list[int]:
    return [queue.queue_id for queue in chosen]


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


def room(name: str) -> str:
    return name.partition("-")[0]


def near(within: str) -> Strategy:
    return nearby(lambda queue: room(queue.broker), room, within)


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


class Dialogue:
    """Brokers with queues, and members of a group. A queue is written broker/number."""

    def given_brokers(self, *names: str, queues: int) -> None:
        self.queues = [MessageQueue("tea", name, number) for name in names for number in range(queues)]

    def given_members(self, *names: str) -> None:
        self.members = list(names)

    def given_rooms(self, *pairs: str) -> None:
        """Of brokers and members: name:room."""
        self.rooms = dict(pair.split(":") for pair in pairs)

    def then_shares(self, name: str) -> list[str]:
        return self.shares(lambda: strategy(name))

    def then_shares_on_a_ring(self, *, virtual_nodes: int) -> list[str]:
        return self.shares(lambda: ConsistentHash(virtual_nodes))

    def then_shares_by_machine_room(self, *rooms: str) -> list[str]:
        return self.shares(lambda: by_machine_room(rooms[0] if len(rooms) == 1 else set(rooms)))

    def then_shares_nearby(self, *, within: str = "averagely") -> list[str]:
        """The room is what stands before the dash."""
        return self.shares(lambda: near(within))

    def then_shares_by_table_of_rooms(self) -> list[str]:
        return self.shares(lambda: nearby(self.rooms, self.rooms))

    def then_shares_by_configuration(self, *queues: str) -> list[str]:
        """Each as topic/broker/number."""
        parts = [queue.split("/") for queue in queues]
        chosen = [MessageQueue(topic, broker, int(number)) for topic, broker, number in parts]
        return self.shares(lambda: by_configuration(chosen))

    def shares(self, make: Callable[[], Strategy]) -> list[str]:
        try:
            chosen = make()
            return table(
                [f"{me}:", *(f"{queue.broker}/{queue.queue_id}" for queue in chosen(me, self.members, self.queues))]
                for me in [*self.members, "stranger"]
            )
        except ConfigError as error:
            return [f"error: {error}"]


@scripts(__file__, "balance")
def test_balance(script: Script) -> None:
    script.replay(lambda scenario: scenario.run(Dialogue()))
