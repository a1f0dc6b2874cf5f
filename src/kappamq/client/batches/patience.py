"""How long requests of a scope are retried: all of them may be repeated, and a broker takes some seconds to restart."""

from __future__ import annotations

import asyncio
from typing import Final

from kappamq.errors import KappaError, NoPermission, Retry

PATIENCE_S: Final = 3.0
"""For a program that wants an early error."""
_PAUSE_S: Final = (0.1, 2.0)
"""The first pause, and the longest; doubled in between."""


class Patience:
    """The time counts from the first failure of a request."""

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self._left = patience_s
        self._pause = _PAUSE_S[0]
        self._deadline: float | None = None

    async def wait_after(self, error: KappaError) -> None:
        """Pause before the next attempt. Raises `error` if a retry cannot help, or when the time is over."""
        now = asyncio.get_running_loop().time()
        if self._deadline is None:
            self._deadline = now + self._left
        # NoPermission: a send could go to another broker; here there is no other one.
        if error.retry is Retry.NEVER or isinstance(error, NoPermission) or now + self._pause > self._deadline:
            raise error
        await asyncio.sleep(self._pause)
        self._pause = min(2 * self._pause, _PAUSE_S[1])
