"""Accepted sockets that are not connections yet: with TLS enabled, the peer sends first, and may take its time.

They count like connections, in total and per address. If there are too many, the oldest of the address with most of them is
closed, so that they do not keep other addresses out.
"""

from __future__ import annotations

from collections.abc import Callable

from kappamq.net.serving.limits import ConnectionLimits
from kappamq.net.serving.opening import Address

Ends = tuple[Address, Address]
"""Both addresses of a socket, which identify it."""


class _Socket:
    __slots__ = ("is_silent", "let_go")

    def __init__(self, let_go: Callable[[], None]) -> None:
        self.let_go = let_go
        self.is_silent = True


class HalfOpen:
    """For one server; shared by all its ports."""

    def __init__(self, limits: ConnectionLimits, is_trusted: Callable[[str], bool] = lambda ip: False) -> None:
        """`is_trusted`: a proxy that connects for many clients. Its sockets count in total, but not for its address."""
        self._limits = limits
        self._is_trusted = is_trusted
        self._sockets: dict[str, dict[Ends, _Socket]] = {}  # by address; for each, the oldest first
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def make_room(self, ip: str, sockets_max: int) -> str | None:
        """Make room for one more socket from this address by closing others; or return why it must be refused."""
        trusted = self._is_trusted(ip)
        while not trusted and (full := self._limits.address_full(ip)):
            if not self._let_go(ip, silent_only=True):
                return full
        while full := self._full(sockets_max):
            largest = max(self._sockets, key=lambda each: len(self._sockets[each]), default=ip)
            # A socket that has sent something is closed only for another address: the one with most gains nothing by opening more.
            if not self._let_go(largest, silent_only=largest == ip):
                return full
        return None

    def begin(self, ends: Ends, let_go: Callable[[], None]) -> None:
        """Count a socket until `end`."""
        ip = ends[0][0]
        self._sockets.setdefault(ip, {})[ends] = _Socket(let_go)
        self._count += 1
        self._limits.opening(None if self._is_trusted(ip) else ip, 1)

    def spoke(self, ends: Ends) -> None:
        """Note that the peer has sent something."""
        found = self._sockets.get(ends[0][0], {}).get(ends)
        if found is not None:
            found.is_silent = False

    def end(self, ends: Ends) -> None:
        """Note that it became a connection, or was closed. May be called twice."""
        ip = ends[0][0]
        sockets = self._sockets.get(ip)
        if sockets is None or sockets.pop(ends, None) is None:
            return
        if not sockets:
            del self._sockets[ip]
        self._count -= 1
        self._limits.opening(None if self._is_trusted(ip) else ip, -1)

    def _full(self, sockets_max: int) -> str | None:
        if self._count >= sockets_max:
            return f"{self._count} connections have not completed their handshake"
        return self._limits.full()

    def _let_go(self, ip: str, *, silent_only: bool) -> bool:
        """Close the one that has been silent for longest; if all have sent something, the oldest, unless `silent_only`."""
        sockets = self._sockets.get(ip, {})
        ends = next((ends for ends, each in sockets.items() if each.is_silent), None)
        if ends is None and not silent_only:
            ends = next(iter(sockets), None)
        if ends is None:
            return False
        let_go = sockets[ends].let_go
        self.end(ends)
        let_go()
        return True
