"""Warnings that anybody can provoke as often as he likes: one for each name in a minute, then how many were left out."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final

log = logging.getLogger(__name__)

PERIOD_S: Final = 60.0
NAMES_MAX: Final = 1000
"""Further names of the same minute are only counted: names cost a stranger nothing."""


@dataclass(slots=True)
class _Told:
    since: float
    left_out: int = 0


class RepeatedWarnings:
    """Call `settle` now and then: it tells how many warnings were left out. `now` is liveness time, in seconds."""

    def __init__(self) -> None:
        self._told: dict[str, _Told] = {}  # oldest first
        self._unnamed = 0

    def warn(self, name: str, text: str, now: float) -> None:
        self.settle(now)
        told = self._told.get(name)
        if told is not None:
            told.left_out += 1
        elif len(self._told) >= NAMES_MAX:
            self._unnamed += 1
        else:
            self._told[name] = _Told(now)
            log.warning("%s", text)

    def settle(self, now: float) -> None:
        """Tell of each name whose minute is over how many warnings about it were left out, and forget it."""
        while self._told:
            name, told = next(iter(self._told.items()))
            if now - told.since < PERIOD_S:
                return
            del self._told[name]
            if told.left_out:
                log.warning("%d more warnings about broker name %s were left out", told.left_out, name)
            if self._unnamed:
                log.warning("warnings about more than %d broker names: %d were left out", NAMES_MAX, self._unnamed)
                self._unnamed = 0
