"""Rate limit for warnings that any peer can trigger: one per name and minute, then the number of suppressed ones."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final

log = logging.getLogger(__name__)

PERIOD_S: Final = 60.0
NAMES_MAX: Final = 1000
"""Further names within the same minute are only counted, since peers can invent names at no cost."""


@dataclass(slots=True)
class _Told:
    since: float
    left_out: int = 0


class RepeatedWarnings:
    """Call `settle` periodically: it logs how many warnings were suppressed. `now` is liveness time, in seconds."""

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
        """For each name whose minute is over, log how many warnings about it were suppressed, and forget it."""
        while self._told:
            name, told = next(iter(self._told.items()))
            if now - told.since < PERIOD_S:
                return
            del self._told[name]
            if told.left_out:
                log.warning("suppressed %d more warnings about broker name %s", told.left_out, name)
            if self._unnamed:
                log.warning(
                    "suppressed %d warnings about further broker names (more than %d names)", self._unnamed, NAMES_MAX
                )
                self._unnamed = 0
