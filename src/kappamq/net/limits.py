"""How many connections there may be, and how long each may keep us waiting. Pure: told who comes and what time it is."""

from __future__ import annotations

from collections import Counter

from kappamq.config.net import NetConfig

OTHER_DESCRIPTORS = 512
"""Log files, libraries, workers, and what we did not think of."""


def shares(descriptors: int, connections_max: int, files_max: int) -> tuple[int, int]:
    """How many descriptors (sockets, files) may have, so that neither takes the other's: as wished, or cut to fit."""
    left = descriptors - OTHER_DESCRIPTORS
    if connections_max + files_max <= left:
        return connections_max, files_max
    files = min(files_max, max(16, left // 4))
    return min(connections_max, max(16, left - files)), files


class ConnectionLimits:
    """Counts connections in total and per address."""

    def __init__(self, config: NetConfig) -> None:
        self._config = config
        self._per_ip: Counter[str] = Counter()
        self.total = 0

    def admit(self, ip: str) -> str | None:
        """Count a newcomer; or the reason why it has to go."""
        if self.total >= self._config.connections_max:
            return f"there are {self.total} connections already (connections_max)"
        if self._per_ip[ip] >= self._config.connections_per_ip_max:
            return f"there are {self._per_ip[ip]} connections from {ip} already (connections_per_ip_max)"
        self.total += 1
        self._per_ip[ip] += 1
        return None

    def leave(self, ip: str) -> None:
        self.total -= 1
        self._per_ip[ip] -= 1
        if not self._per_ip[ip]:
            del self._per_ip[ip]


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
    """Why a connection has outstayed its welcome, None if it has not. Times are liveness seconds."""
    if not spoken and now - opened > config.first_frame_s:
        return f"no whole frame within {config.first_frame_s:g} s of connecting"
    if partial_since is not None and now - partial_since > config.frame_s:
        return f"a frame was still incomplete after {config.frame_s:g} s"
    if config.idle_s and now - max(last_read, last_write) > config.idle_s:
        return f"idle for {config.idle_s:g} s"
    return None
