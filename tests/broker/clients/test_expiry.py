"""Silent clients are let go, and whoever hangs up is forgotten."""

from __future__ import annotations

from typing import Any

from kappamq.broker.clients.expiry import ClientExpiry
from kappamq.broker.clients.registry import Clients
from kappamq.broker.events import ConnectionLost, Tick
from kappamq.clock import VirtualClock
from kappamq.config.broker import BrokerConfig
from kappamq.events import Events
from kappamq.protocol.bodies.clients import HeartbeatData, ProducerData


class Peer:
    def __init__(self) -> None:
        self.closed: list[str] = []

    def close(self, why: str) -> None:
        self.closed.append(why)


def beat(clients: Clients, peer: Any, now: float) -> None:
    clients.heartbeat(peer, HeartbeatData(client_id="c", producers=[ProducerData("p")]), 0, 0, now)


def test_who_is_silent_is_closed_and_who_hangs_up_is_forgotten() -> None:
    clock = VirtualClock()
    clients = Clients(BrokerConfig(client_expiry_ms=10_000), Events())
    expiry = ClientExpiry(clients, clock)
    silent, alive = Peer(), Peer()
    beat(clients, silent, clock.liveness())
    clock.advance(6)
    beat(clients, alive, clock.liveness())
    expiry.ticked(Tick())
    assert not silent.closed
    clock.advance(5)
    expiry.ticked(Tick())
    expiry.ticked(Tick())  # it is looked at once a second
    assert (silent.closed, alive.closed) == (["no heartbeat for too long"], [])
    expiry.connection_lost(ConnectionLost(silent))  # type: ignore[arg-type]
    assert list(clients.producers["p"]) == [alive]
