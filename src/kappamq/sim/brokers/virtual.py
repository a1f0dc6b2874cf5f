"""Within this context the simulating process uses the world's time and dice: modules use `time` and `random` where the result of a
history must not depend on them (the duration of a request, the time at which a file was written), but histories must be repeatable."""

from __future__ import annotations

import logging
import random
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from kappamq.sim.world import World

START_MS = 1_700_000_000_000


class WorldClock:
    """The clocks of one simulated machine."""

    def __init__(self, world: World, skew_ms: int = 0) -> None:
        self._world = world
        self._skew_ms = skew_ms

    def message_ms(self) -> int:
        return START_MS + self._skew_ms + int(self._world.now)

    def liveness(self) -> float:
        return 1000 + self._world.now / 1000

    def uptime_ms(self) -> int:
        return 1_000_000 + int(self._world.now)


@contextmanager
def virtual(world: World) -> Iterator[None]:
    dice = random.Random(world.seed)
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)  # faults cause many warnings

    def seconds() -> float:
        return 1000 + world.now / 1000

    replaced: dict[tuple[Any, str], Any] = {
        (time, "time"): lambda: START_MS / 1000 + world.now / 1000,
        (time, "time_ns"): lambda: (START_MS + int(world.now)) * 1_000_000,
        (time, "monotonic"): seconds,
        (time, "perf_counter"): seconds,
        (time, "thread_time"): seconds,
        (random, "random"): dice.random,
        (random, "randrange"): dice.randrange,
        (random, "uniform"): dice.uniform,
        (secrets, "token_hex"): lambda size=16: dice.randbytes(size).hex(),
    }
    patches = [patch.object(where, name, value) for (where, name), value in replaced.items()]
    try:
        for each in patches:
            each.start()
        yield
    finally:
        for each in patches:
            each.stop()
        logging.disable(before)
