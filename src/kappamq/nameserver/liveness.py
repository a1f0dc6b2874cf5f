"""Which broker addresses are alive: when each last sent a heartbeat, and its owner."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from kappamq.protocol.bodies.all import DataVersion

Owner = TypeVar("Owner")
"""The owner of an address, which may remove it: in practice the connection that registered it."""
Key = tuple[str, str]  # cluster, address


@dataclass(slots=True)
class Live(Generic[Owner]):
    """The state of one registered address."""

    broker_name: str
    owner: Owner
    heard: float  # liveness time, in seconds
    timeout_s: float
    data_version: DataVersion
    ha_address: str
    filter_servers: list[str]
    beats: bool = False  # it has announced a timeout of its own, so it sends beats


class Liveness(Generic[Owner]):
    """The addresses by cluster, and by owner, so that a lost connection does not require a scan of all brokers."""

    def __init__(self) -> None:
        self._live: dict[Key, Live[Owner]] = {}
        self._owned: dict[Owner, set[Key]] = {}
        self._beating: set[Key] = set()

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, key: Key) -> bool:
        return key in self._live

    def __iter__(self) -> Iterator[Key]:
        return iter(self._live)

    def get(self, key: Key) -> Live[Owner] | None:
        return self._live.get(key)

    def put(self, key: Key, live: Live[Owner]) -> None:
        """Add an address, or replace its entry."""
        self.pop(key)
        self._live[key] = live
        self._owned.setdefault(live.owner, set()).add(key)
        if live.beats:
            self._beating.add(key)

    def pop(self, key: Key) -> Live[Owner] | None:
        live = self._live.pop(key, None)
        if live is not None:
            self._beating.discard(key)
            keys = self._owned[live.owner]
            keys.discard(key)
            if not keys:
                del self._owned[live.owner]
        return live

    def owned_by(self, owner: Owner) -> list[Key]:
        return sorted(self._owned.get(owner, ()))

    def heard(self, owner: Owner, now: float) -> None:
        """Record a sign of life of everything that `owner` has registered."""
        for key in self._owned.get(owner, ()):
            self._live[key].heard = now

    def silent(self, now: float, *, beating: bool = False) -> list[Key]:
        """Return the addresses whose heartbeat timeout has expired; `beating`: only of those that have announced one."""
        keys = sorted(self._beating) if beating else list(self._live)
        return [key for key in keys if self._live[key].heard + self._live[key].timeout_s < now]
