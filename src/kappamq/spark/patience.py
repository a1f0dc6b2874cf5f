"""How long a request that failed is tried again: a broker that restarts costs a query some seconds, not its life."""

from __future__ import annotations

import logging
import time
from typing import Final

from kappamq.errors import KappaError, NoPermission, Retry

log = logging.getLogger(__name__)

PATIENCE_S: Final = 120.0
"""Longer than a broker takes to start, and as long as a name server keeps one that has died."""
_PAUSE_S: Final = (0.1, 5.0)
"""Before the first repetition, and at most; doubled in between."""


class Patience:
    """Counts from the first failure; `begin_anew` when something has worked."""

    def __init__(self, what: str, patience_s: float = PATIENCE_S) -> None:
        self._what = what
        self._patience_s = patience_s
        self.begin_anew()

    def begin_anew(self) -> None:
        self._deadline: float | None = None
        self._pause = _PAUSE_S[0]

    def wait_after(self, error: KappaError) -> None:
        """Pause before the next try. Raises `error` where that would not help, or if it went on for too long."""
        now = time.monotonic()
        if self._deadline is None:
            self._deadline = now + self._patience_s
        # NoPermission is worth another broker to a producer; here each queue has one.
        if error.retry is Retry.NEVER or isinstance(error, NoPermission) or now + self._pause >= self._deadline:
            raise error
        log.warning("%s failed (%s): trying again in %.1f s", self._what, error, self._pause)
        time.sleep(self._pause)
        self._pause = min(2 * self._pause, _PAUSE_S[1])
