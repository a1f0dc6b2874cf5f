"""How long a request of a scope is repeated: every one of them may be, and a broker that restarts takes some seconds."""

from __future__ import annotations

import asyncio
from typing import Final

from kappamq.errors import KappaError, NoPermission, Retry

PATIENCE_S: Final = 3.0
"""For a program that wants to know soon."""
_PAUSE_S: Final = (0.1, 2.0)
"""The first pause, and the longest; doubled in between."""


class Patience:
    """Counts from the first failure of one request on."""

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self._left = patience_s
        self._pause = _PAUSE_S[0]
        self._deadline: float | None = None

    async def wait_after(self, error: KappaError) -> None:
        """Pause before the next attempt. Raises `error` if a repetition cannot help, or after too long."""
        now = asyncio.get_running_loop().time()
        if self._deadline is None:
            self._deadline = now + self._left
        # NoPermission: for a send another broker may have it; here there is no other one.
        if error.retry is Retry.NEVER or isinstance(error, NoPermission) or now + self._pause > self._deadline:
            raise error
        await asyncio.sleep(self._pause)
        self._pause = min(2 * self._pause, _PAUSE_S[1])
