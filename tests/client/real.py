"""A name server and real brokers on the test's own loop: small files, free ports, gone with the test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from kappamq.broker.broker import Broker
from kappamq.clock import SystemClock
from kappamq.config.broker import BrokerConfig
from kappamq.config.nameserver import NameServerConfig
from kappamq.config.net import NetConfig
from kappamq.config.store import StoreConfig
from kappamq.nameserver.nameserver import NameServer

SMALL: dict[str, Any] = {
    "segment_bytes": 4 << 20,
    "queue_file_entries": 1000,
    "index_slots": 997,
    "index_entries": 10_000,
    "message_bytes_max": 256 << 10,
}


class RealCluster:
    def __init__(self, root: Path, names: list[str], broker: dict[str, Any]) -> None:
        self._root = root
        self._broker = broker
        self.names = names
        self.brokers: dict[str, Broker] = {}
        self._nameserver = NameServer(
            NameServerConfig(listen_host="127.0.0.1", port=0, root=root / "namesrv"), SystemClock(), net=NetConfig()
        )

    @property
    def nameserver(self) -> str:
        return self._nameserver.address

    @property
    def broker(self) -> Broker:
        return self.brokers[self.names[0]]

    async def start(self) -> None:
        await self._nameserver.start()
        for name in self.names:
            await self.start_broker(name)

    async def start_broker(self, name: str) -> Broker:
        given = {"port": 0, "listen_host": "127.0.0.1", "name": name, "nameservers": (self.nameserver,)} | self._broker
        broker = await Broker.open(
            BrokerConfig(**given), StoreConfig(root=self._root / name, **SMALL), NetConfig(), SystemClock()
        )
        await broker.start()
        self.brokers[name] = broker
        return broker

    async def stop_broker(self, name: str) -> None:
        await self.brokers.pop(name).stop()

    async def stop(self) -> None:
        for name in list(self.brokers):
            await self.stop_broker(name)
        await self._nameserver.stop()

    def options(self, **others: Any) -> dict[str, Any]:
        """For a client of this cluster; times short enough for a test that waits for them."""
        return {"nameserver": self.nameserver, "rebalance_ms": 200, "commit_ms": 50, "pull_hold_ms": 500, **others}


@asynccontextmanager
async def real_cluster(root: Path, brokers: int = 1, **broker: Any) -> AsyncIterator[RealCluster]:
    cluster = RealCluster(root, [f"broker-{number}" for number in range(brokers)], broker)
    try:
        await cluster.start()
        yield cluster
    finally:
        await cluster.stop()
