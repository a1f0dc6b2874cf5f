"""Runs programs on uvloop if it is installed, otherwise on asyncio's own loop."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

log = logging.getLogger(__name__)
T = TypeVar("T")

SWITCH_S = 0.00002
"""How long a computing thread may keep the GIL when the loop wants it. Every callback of uvloop takes the GIL anew, so in a turn with
twenty callbacks the loop waits for it twenty times: with the default of 5 ms this adds 100 ms to a turn, with 0.2 ms still 4 ms for each
thread that computes. Two threads that compute at once pay with half as much CPU again; that is why there should be few of them."""
GARBAGE_THRESHOLDS = (3_000, 4, 1_000)
"""The first two keep a collection of young objects below two milliseconds (15,000 objects): it stops all threads. A large request
creates a hundred thousand objects, nearly all of which are freed by reference counting. Full collections: see `IdleCollections`."""
OLD_GARBAGE = 2
"""An idle process looks for old garbage after so many collections of the middle generation (30,000 new objects)."""
MUCH_GARBAGE = 5
"""After so many (75,000) there is too much to be visited, see `IdleCollections`."""
LONG_S = 0.005
"""What survives an idle collection that took longer is not visited again."""
FROZEN_MORE = 500_000
"""Frozen objects that may be garbage, 50 to 100 MB at most. Visiting them all takes a few hundred milliseconds."""
_LOOK_S = 0.25
_IDLE_SHARE = 0.05  # of the time between two looks


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a program to its end, on uvloop if it is installed."""
    sys.setswitchinterval(SWITCH_S)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(main)


def spare_garbage_collections() -> None:
    """Freeze all objects allocated so far, so that garbage collections skip them. Call once everything is loaded, within the loop.

    A full collection stops all threads while it visits every object, and a peer that sends large bodies triggers many of
    them. Nearly all garbage of requests is freed by reference counting anyway."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GARBAGE_THRESHOLDS)
    IdleCollections(asyncio.get_running_loop()).start()


class IdleCollections:
    """Collects old garbage in moments in which the process has nothing else to do.

    A process that is never idle does it after `GARBAGE_THRESHOLDS[2]` collections of the middle generation, as Python does.

    Nobody knows that the moment stays idle, and visiting what 12,000 new topics consist of takes 50 to 100 ms. So what such a collection
    has left is frozen, and much that has come at once is frozen without a look at it. What is garbage there, in cycles, would stay for
    ever: when there are `FROZEN_MORE` more than after the last time, everything is visited."""

    def __init__(self, loop: asyncio.AbstractEventLoop, cpu_s: Callable[[], float] = time.process_time) -> None:
        """`cpu_s`: the CPU that all threads of the process have used."""
        self._loop = loop
        self._cpu_s = cpu_s
        self._before = cpu_s()
        self._frozen_max = _frozen_max()

    def start(self) -> None:
        self._before = self._cpu_s()
        self._loop.call_later(_LOOK_S, self._look)

    def _look(self) -> None:
        used = self._cpu_s() - self._before
        if used < _IDLE_SHARE * _LOOK_S:
            self._collect(gc.get_count()[2])
        self.start()

    def _collect(self, count: int) -> None:
        if count < OLD_GARBAGE:
            return
        if gc.get_freeze_count() > self._frozen_max:
            gc.unfreeze()
            gc.collect()
            gc.freeze()
            self._frozen_max = _frozen_max()
        elif count >= MUCH_GARBAGE:
            gc.freeze()
        else:
            began = time.perf_counter()
            gc.collect()
            if time.perf_counter() - began > LONG_S:
                gc.freeze()


def _frozen_max() -> int:
    return gc.get_freeze_count() + FROZEN_MORE


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        log.info("uvloop is not installed: using asyncio's own event loop, which is slower")
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
