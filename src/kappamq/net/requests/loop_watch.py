"""Monitors the event loop: long turns are counted and logged, with the request that took longest."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from typing import Final

from kappamq.protocol.codes import RequestCode

log = logging.getLogger(__name__)

LONG_TURN_S: Final = 0.1
LOOK_S: Final = 0.02
"""Interval of the checks. A turn is measured to within half of it."""
_TOLD_AGAIN_S: Final = 10.0
"""Long turns are logged at most this often; all are counted."""


class LoopWatch:
    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._starting = 0  # servers that are still starting
        self._due = 0.0
        self._cpu = 0.0
        self._told = -math.inf
        self._untold = 0
        self._longest: tuple[float, int, object] | None = (
            None  # longest request since the last check: seconds, code, peer
        )
        self.long_turns = 0
        self.longest_turn_s = 0.0

    def start(self) -> None:
        self._look_again()

    def server_starts(self) -> None:
        """Do not warn of long turns until the server is ready: it reads its files before any peer can wait for it."""
        self._starting += 1

    def server_is_ready(self) -> None:
        """The server is ready, or gave up. The current turn belongs to the start; from here on peers may be waiting."""
        if self._timer is not None and time.monotonic() > self._due:
            self._timer.cancel()
            self._look()
        self._starting -= 1

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def took(self, code: int, peer: object, seconds: float) -> None:
        """Record how long a request occupied the loop."""
        if self._longest is None or seconds > self._longest[0]:
            self._longest = seconds, code, peer

    def _look_again(self) -> None:
        self._due = time.monotonic() + LOOK_S  # uvloop's own time stands still within a turn
        self._cpu = time.thread_time()
        self._longest = None
        self._timer = self._loop.call_later(LOOK_S, self._look)

    def _look(self) -> None:
        now = time.monotonic()
        # The turn began somewhere between the last check and the time this one was due: assume the middle.
        turn_s = now - self._due + LOOK_S / 2
        if turn_s > LONG_TURN_S:
            self.long_turns += 1
            self.longest_turn_s = max(self.longest_turn_s, turn_s)
            cpu_s = time.thread_time() - self._cpu
            if self._starting:
                log.info("a turn of the event loop took %.0f ms while a server was starting", turn_s * 1000)
            elif cpu_s < LONG_TURN_S:
                log.info(
                    "a turn of the event loop took %.0f ms, but only %.0f ms of CPU: the machine is busy, or its disk slow; %s",
                    *(turn_s * 1000, cpu_s * 1000, self._by()),
                )
            else:
                self._untold += 1
                if now - self._told >= _TOLD_AGAIN_S:
                    self._told = now
                    self._tell(turn_s, cpu_s)
                    self._untold = 0
        self._look_again()

    def _tell(self, turn_s: float, cpu_s: float) -> None:
        log.warning(
            "a turn of the event loop took %.0f ms (%.0f ms of CPU): %s; %d such %s since the last report",
            *(turn_s * 1000, cpu_s * 1000, self._by(), self._untold, "turn" if self._untold == 1 else "turns"),
        )

    def _by(self) -> str:
        if self._longest is None:
            return "no request took that long"
        seconds, code, peer = self._longest
        return f"the longest request was {name_of(code)} from {peer} ({seconds * 1000:.0f} ms)"


def name_of(code: int) -> str:
    """Return a request code with its name: `HEART_BEAT (34)`."""
    return f"{RequestCode(code).name} ({code})" if code in RequestCode._value2member_map_ else f"code {code}"
