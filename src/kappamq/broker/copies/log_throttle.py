"""Logs the same problem of a peer once a minute: a broker that is refused reconnects several times a second, for as long as it runs."""

from __future__ import annotations

import asyncio
from typing import Final

AGAIN_S: Final = 60.0
_REMEMBERED_MAX: Final = 256


class LogThrottle:
    def __init__(self) -> None:
        self._at: dict[tuple[str, str], float] = {}

    def is_news(self, peer: str, what: str) -> bool:
        """Return whether `what` was not logged for this host within the last minute. `peer`: host:port; the port differs each time."""
        now = asyncio.get_running_loop().time()
        key = (peer.rpartition(":")[0], what[:500])
        if key in self._at and now < self._at[key] + AGAIN_S:
            return False
        self._at.pop(key, None)
        while len(self._at) >= _REMEMBERED_MAX:
            del self._at[next(iter(self._at))]
        self._at[key] = now
        return True
