"""Message time that stands still until a test moves it, while liveness time goes on as ever."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from typing import Any

from kappamq.errors import ConfigError

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
            raise ConfigError(f"{duration!r} is no duration: write it like '2h', '1h30m', '45s' or '250ms'")
        ms = round(sum(float(number) * _UNITS_MS[unit] for number, unit in parts))
    else:
        ms = round(duration * 1000)
    if ms < 0:
        raise ConfigError(f"time does not go back: {duration!r}")
    return ms


class KitClock:
    """The clock of a `BrokerKit` and of the clients it makes.

    `advance` has everything happen that would have happened meanwhile, in order: deliveries of delayed messages, retries,
    checks of transactions, deletion of what has expired. Nobody is taken for dead because of it."""

    def __init__(self) -> None:
        self._message_ms = time.time_ns() // 1_000_000
        self.pass_ms: Callable[[int], Future[Any]] | None = None  # set by the kit while it runs

    def message_ms(self) -> int:
        return self._message_ms

    def liveness(self) -> float:
        return time.monotonic()

    def not_before(self, ms: int) -> None:
        self._message_ms = max(self._message_ms, ms)

    def advance(self, duration: Duration) -> None:
        """Let message time pass; returns when all that is due by then has happened and consumers have had their say."""
        self._advance(duration).result()

    async def advance_async(self, duration: Duration) -> None:
        """The same from a coroutine, whose loop goes on meanwhile."""
        await asyncio.wrap_future(self._advance(duration))

    def _advance(self, duration: Duration) -> Future[Any]:
        ms = duration_ms(duration)
        if self.pass_ms is None:
            raise ConfigError("the broker of this clock does not run")
        return self.pass_ms(ms)
