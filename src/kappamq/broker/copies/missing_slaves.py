"""A synchronous master logs when slaves that it waits for are missing, and when they are back."""

from __future__ import annotations

import logging
from typing import Final

log = logging.getLogger(__name__)

PATIENCE_S: Final = 10.0
"""A slave that is started with its master, or comes back at once, is not missing."""


class MissingSlaves:
    def __init__(self) -> None:
        self._since: float | None = None  # liveness time
        self._told = False

    def look(self, missing: str | None, now: float) -> None:
        """`missing`: which slaves are missing, None if all are there."""
        if missing is None:
            if self._told:
                log.warning("copies: enough slaves are connected again")
            self.forget()
        elif self._since is None:
            self._since = now
        elif not self._told and now - self._since >= PATIENCE_S:
            self._told = True
            log.warning(
                "copies: %s: messages are stored without a copy, and their senders get code 11 (SLAVE_NOT_AVAILABLE); "
                "start the slaves and check their logs",
                missing,
            )

    def forget(self) -> None:
        """No slaves are required any more."""
        self._since, self._told = None, False
