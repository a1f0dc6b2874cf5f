"""Retries of failed requests: a broker that restarts delays a query by some seconds instead of failing it."""

from __future__ import annotations

import logging
import time
from typing import Final

from kappamq.errors import KappaError, NoPermission, Retry

log = logging.getLogger(__name__)

PATIENCE_S: Final = 120.0
"""Longer than a broker takes to start, and as long as a name server keeps one that has died."""
_PAUSE_S: Final = (0.1, 5.0)
"""The first pause, and the longest; doubled in between."""


class Patience:
    """Counts from the first failure; call `begin_anew` after a success."""

    def __init__(self, what: str, patience_s: float = PATIENCE_S) -> None:
        self._what = what
        self._patience_s = patience_s
        self.begin_anew()

    def begin_anew(self) -> None:
        self._deadline: float | None = None
        self._pause = _PAUSE_S[0]

    def wait_after(self, error: KappaError) -> None:
        """Pause before the next attempt. Raises `error` if a retry would not help, or after too long."""
        now = time.monotonic()
        if self._deadline is None:
            self._deadline = now + self._patience_s
        # For a producer NoPermission means to try another broker; here each queue has only one.
        if error.retry is Retry.NEVER or isinstance(error, NoPermission) or now + self._pause >= self._deadline:
            raise error
        log.warning("%s failed (%s); retrying in %.1f s", self._what, error, self._pause)
        time.sleep(self._pause)
        self._pause = min(2 * self._pause, _PAUSE_S[1])
