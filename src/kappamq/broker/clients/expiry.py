"""Forgets clients whose heartbeats have stopped, checked once a second, and those whose connection was closed."""

from __future__ import annotations

from kappamq.broker.clients.registry import Clients
from kappamq.broker.events import ConnectionLost, Tick
from kappamq.clock import Clock

_EXPIRE_S = 1.0


class ClientExpiry:
    def __init__(self, clients: Clients, clock: Clock) -> None:
        self._clients = clients
        self._clock = clock
        self._expire_at = 0.0

    def ticked(self, event: Tick) -> None:
        now = self._clock.liveness()
        if now < self._expire_at:
            return
        self._expire_at = now + _EXPIRE_S
        for connection in self._clients.expire(now):
            connection.close("no heartbeat for too long")

    def connection_lost(self, event: ConnectionLost) -> None:
        self._clients.lost(event.connection, self._clock.liveness())
