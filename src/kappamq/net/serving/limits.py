"""Limits on connections and their timeouts. Pure: addresses and the time are passed in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

from kappamq.config.net import NetConfig

OTHER_DESCRIPTORS = 512
"""Descriptors reserved for log files, libraries, workers and others."""
ADDRESS_SHARE: Final = 2
"""One address may have this fraction of the total, so that it cannot take everything."""


def shares(descriptors: int, connections_max: int, files_max: int) -> tuple[int, int]:
    """Divide the descriptors between sockets and files: as configured, or reduced to fit."""
    left = descriptors - OTHER_DESCRIPTORS
    if connections_max + files_max <= left:
        return connections_max, files_max
    files = min(files_max, max(16, left // 4))
    return min(connections_max, max(16, left - files)), files


class ConnectionLimits:
    """Counts connections in total and per address, including sockets that are not connections yet (half_open.py)."""

    def __init__(self, config: NetConfig) -> None:
        self._config = config
        self._per_ip: Counter[str] = Counter()
        self._opening: Counter[str | None] = Counter()  # None: those that count towards no address
        self._opening_total = 0
        self.total = 0

    def full(self) -> str | None:
        """Return why a connection must be refused, None if there is room."""
        if self.total + self._opening_total >= self._config.connections_max:
            return f"there are {self.total + self._opening_total} connections already (connections_max)"
        return None

    def address_full(self, ip: str) -> str | None:
        """Return why a connection from this address must be refused."""
        there = self._per_ip[ip] + self._opening[ip]
        if there >= self._config.connections_per_ip_max:
            return f"there are {there} connections from {ip} already (connections_per_ip_max)"
        return None

    def opening(self, ip: str | None, more: int) -> None:
        """Count sockets that are not connections yet: one more, or one less."""
        self._opening_total += more
        self._opening[ip] += more
        if not self._opening[ip]:
            del self._opening[ip]

    def admit(self, ip: str) -> str | None:
        """Count a new connection; or return why it must be refused."""
        reason = self.full() or self.address_full(ip)
        if reason is None:
            self.total += 1
            self._per_ip[ip] += 1
        return reason

    def move(self, ip: str, other: str) -> str | None:
        """Count a connection towards another address from now on; or return why it must be refused."""
        reason = self.address_full(other)
        if reason is None:
            self.leave(ip)
            self.total += 1
            self._per_ip[other] += 1
        return reason

    def leave(self, ip: str) -> None:
        self.total -= 1
        self._per_ip[ip] -= 1
        if not self._per_ip[ip]:
            del self._per_ip[ip]


class Holder(Protocol):
    counted_as: str


H = TypeVar("H", bound=Holder)


class HeldBytes(Generic[H]):
    """Bytes buffered for peers: per peer, per address and in total. Selects the one to close when there are too many.

    That is the largest holder, not the one that asks next: otherwise the largest holders could keep everyone else out."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._addresses: dict[str, dict[H, int]] = {}
        self._sums: dict[str, int] = {}
        self.total = 0

    def of(self, holder: H) -> int:
        return self._addresses.get(holder.counted_as, {}).get(holder, 0)

    def of_address(self, address: str) -> int:
        return self._sums.get(address, 0)

    def keep(self, holder: H, size: int) -> None:
        """Record that the holder has `size` bytes buffered now."""
        address = holder.counted_as
        holders = self._addresses.get(address)
        if holders is None:
            if not size:
                return
            holders = self._addresses[address] = {}
            self._sums[address] = 0
        more = size - holders.get(holder, 0)
        if size:
            holders[holder] = size
        else:
            holders.pop(holder, None)
        self.total += more
        self._sums[address] += more
        if not holders:
            del self._addresses[address], self._sums[address]

    def too_much(
        self, grown: str, may_go: Callable[[H], bool], worst_first: Callable[[H], bool] | None = None
    ) -> H | None:
        """Return the holder to close after the bytes of the address `grown` have grown, None if there is room.

        That is the largest holder of the address that holds most; among these, holders for which `worst_first` is true come
        first."""
        holders = self._addresses.get(grown, {})
        if len(holders) > 1 and self._sums[grown] > self._bytes_max // ADDRESS_SHARE:
            return _largest(holders, may_go, worst_first)
        if self.total <= self._bytes_max:
            return None
        for address in sorted(self._sums, key=self._sums.__getitem__, reverse=True):
            found = _largest(self._addresses[address], may_go, worst_first)
            if found is not None:
                return found
        return None


def _largest(holders: dict[H, int], may_go: Callable[[H], bool], worst_first: Callable[[H], bool] | None) -> H | None:
    may = [
        (worst_first(holder) if worst_first else False, size, holder)
        for holder, size in holders.items()
        if may_go(holder)
    ]
    return max(may, key=lambda each: each[:2])[2] if may else None


def overdue(
    config: NetConfig,
    now: float,
    *,
    opened: float,
    last_read: float,
    last_write: float,
    partial_since: float | None,
    spoken: bool,
) -> str | None:
    """Return why a connection has timed out, None if it has not. Times are liveness seconds."""
    if not spoken and now - opened > config.first_frame_s:
        return f"no complete frame within {config.first_frame_s:g} s of connecting"
    if partial_since is not None and now - partial_since > config.frame_s:
        return f"a frame was still incomplete after {config.frame_s:g} s"
    if config.idle_s and now - max(last_read, last_write) > config.idle_s:
        return f"idle for {config.idle_s:g} s"
    return None
