"""Message time that stands still until a test advances it, while liveness time runs on."""

from __future__ import annotations

import asyncio
import heapq
import logging
import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from kappamq.client.core import registry
from kappamq.errors import ClientError, ConfigError

log = logging.getLogger(__name__)

Duration = str | float | timedelta
_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|[smhd])")


def duration_ms(duration: Duration) -> int:
    """Milliseconds of "2h", "1h30m", "250ms", a timedelta, or a number of seconds."""
    if isinstance(duration, timedelta):
        ms = round(duration / timedelta(milliseconds=1))
    elif isinstance(duration, str):
        text = duration.replace(" ", "")
        parts = _PART.findall(text)
        if not parts or "".join(number + unit for number, unit in parts) != text:
            raise ConfigError(f"{duration!r} is not a duration: write it like '2h', '1h30m', '45s' or '250ms'")
        ms = round(sum(float(number) * _UNITS_MS[unit] for number, unit in parts))
    elif isinstance(duration, bool) or not isinstance(duration, int | float):
        raise ConfigError(
            f"{duration!r} is not a duration: give a number of seconds, a timedelta, or a string such as '1h30m'"
        )
    else:
        ms = round(duration * 1000)
    if ms < 0:
        raise ConfigError(f"a duration must not be negative, got {duration!r}")
    return ms


class KitClock:
    """The clock of a `BrokerKit` and its clients.

    `advance` makes everything happen that is due in that time, in order: deliveries of delayed messages, retries,
    transaction checks, deletion of expired files. It does not expire heartbeats, locks or connections."""

    def __init__(self) -> None:
        self._message_ms = time.time_ns() // 1_000_000
        self.pass_ms: Callable[[int], Future[Any]] | None = None  # set by the kit while it runs
        self._lock = threading.Lock()
        self._alarms: list[_Alarm] = []  # a heap
        self._set_count = 0
        self._ringing: set[_Alarm] = set()

    def message_ms(self) -> int:
        return self._message_ms

    def liveness(self) -> float:
        return time.monotonic()

    def uptime_ms(self) -> int:
        return self._message_ms  # both clocks always agree here

    def not_before(self, ms: int) -> None:
        """Advance message time to `ms`, if that is in the future."""
        self._message_ms = max(self._message_ms, ms)

    def advance(self, duration: Duration) -> None:
        """Advance message time; returns when everything due by then has happened and consumers are idle."""
        refuse_on_a_loop_of_clients("advance")
        _tell(self._advance(duration).result())

    async def advance_async(self, duration: Duration) -> None:
        """Like `advance`, from a coroutine, whose loop keeps running."""
        _tell(await asyncio.wrap_future(self._advance(duration)))

    def _advance(self, duration: Duration) -> Future[Any]:
        ms = duration_ms(duration)
        if self.pass_ms is None:
            raise ConfigError("the broker of this clock is not running")
        return self.pass_ms(ms)

    # -- pauses of clients -------------------------------------------------------------------------------------------------

    def alarm(self, due_ms: int, ring: Callable[[], None]) -> Callable[[], None]:
        """See kappamq.client.core.pauses."""
        with self._lock:
            self._set_count += 1
            made = _Alarm(due_ms, self._set_count, ring)
            heapq.heappush(self._alarms, made)

        def over() -> None:
            with self._lock:
                made.is_over = True
                self._ringing.discard(made)

        return over

    @property
    def is_ringing(self) -> bool:
        """Whether the end of a pause was signalled to a client that has not ended it yet."""
        return bool(self._ringing)

    def next_alarm_ms(self) -> int | None:
        with self._lock:
            while self._alarms and self._alarms[0].is_over:
                heapq.heappop(self._alarms)
            return self._alarms[0].due_ms if self._alarms else None

    def ring_due(self) -> bool:
        """Ring all alarms that are due; returns False if there are none."""
        with self._lock:
            due: list[_Alarm] = []
            while self._alarms and self._alarms[0].due_ms <= self._message_ms:
                alarm = heapq.heappop(self._alarms)
                if not alarm.is_over:
                    due.append(alarm)
            self._ringing.update(due)
        for alarm in due:
            alarm.ring()
        return bool(due)


@dataclass(slots=True, eq=False)
class _Alarm:
    due_ms: int
    number: int  # alarms of the same time ring in the order in which they were set
    ring: Callable[[], None]
    is_over: bool = False

    def __lt__(self, other: _Alarm) -> bool:
        return (self.due_ms, self.number) < (other.due_ms, other.number)


def _tell(hung: str | None) -> None:
    if hung is not None:
        log.warning("message time was advanced before everything had settled: %s", hung)


def refuse_on_a_loop_of_clients(call: str) -> None:
    """A call that waits for clients must not block the loop that they run on."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return
    if registry.lives_on(loop):
        raise ClientError(f"{call}() would block the event loop that your clients run on: await {call}_async() instead")
