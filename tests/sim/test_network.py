from __future__ import annotations

from dataclasses import replace

import pytest

from kappamq.raft import MemberId, Message
from kappamq.raft.messages import TimeoutNow
from kappamq.sim.checkers import Violation
from kappamq.sim.disk import Piece
from kappamq.sim.network import STORM, Network
from kappamq.sim.settings import Faults
from kappamq.sim.world import World

A, B = MemberId("A", 1), MemberId("B", 1)


class Net:
    def __init__(self, **faults: float) -> None:
        self.arrived: list[int] = []
        self.world = World(1)
        self.network = Network(self.world, replace(Faults(), **faults), self._deliver)  # type: ignore[arg-type]

    def _deliver(self, target: str, message: Message, pieces: tuple[Piece, ...]) -> None:
        assert target == "B"
        self.arrived.append(message.term)

    def send(self, count: int) -> list[int]:
        for number in range(count):
            self.network.send(TimeoutNow(A, B, number))
        self.world.run_until(self.world.now + 10_000)
        return self.arrived


def test_a_connection_keeps_the_order_and_a_bad_network_does_not() -> None:
    assert Net(ordered=True, delay_ms=10).send(50) == list(range(50))
    unordered = Net(ordered=False, delay_ms=10).send(50)
    assert sorted(unordered) == list(range(50)) != unordered


def test_loss_and_duplicates() -> None:
    assert 0 < len(Net(loss=0.5).send(100)) < 100
    assert len(Net(duplicated=1.0).send(10)) == 20


def test_a_cut_link_carries_nothing_in_that_direction() -> None:
    net = Net()
    net.network.cut = {("A", "B")}
    assert net.send(5) == []
    net.network.cut = {("B", "A")}
    assert net.send(5) == list(range(5))


def test_what_is_under_way_when_a_link_is_cut_is_lost() -> None:
    net = Net()
    net.network.send(TimeoutNow(A, B, 1))
    net.network.cut = {("A", "B")}
    net.world.run_until(1000)
    assert net.arrived == []


def test_partitions_cut_something_and_not_everything() -> None:
    names = ["A", "B", "C"]
    for seed in range(40):
        network = Network(World(seed), Faults(), lambda *_: None)
        links = network.partition("A", names)
        assert 0 < len(links) <= 4
        assert network.cut == links


def test_a_healed_network_loses_nothing() -> None:
    net = Net(loss=1.0, ordered=False)
    net.network.healed = True
    assert net.send(20) == list(range(20))


def test_a_storm_is_noticed() -> None:
    with pytest.raises(Violation, match="a storm"):
        Net().send(STORM)
