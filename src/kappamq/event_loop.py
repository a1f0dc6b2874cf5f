"""Runs programs on uvloop if it is installed, otherwise on asyncio's own loop."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

log = logging.getLogger(__name__)
T = TypeVar("T")

SWITCH_S = 0.0002
GARBAGE_THRESHOLDS = (5_000, 20, 50)


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a program to its end, on uvloop if it is installed."""
    # How long a computing thread may keep the GIL when the loop wants it; the default of 5 ms would add 5 ms of latency.
    sys.setswitchinterval(SWITCH_S)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(main)


def spare_garbage_collections() -> None:
    """Freeze all objects allocated so far, so that garbage collections skip them. Call once everything is loaded.

    A full collection stops all threads while it visits every object, and a peer that sends large bodies triggers many of
    them. Nearly all garbage of requests is freed by reference counting anyway."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GARBAGE_THRESHOLDS)


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        log.info("uvloop is not installed: using asyncio's own event loop, which is slower")
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
