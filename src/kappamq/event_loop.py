"""Programs run on uvloop where it is installed, and on asyncio's own loop where it is not."""

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
    """Run a program to its end, on uvloop where it is installed."""
    # A worker that computes gives the interpreter back after this long when the loop wants it; the usual 5 ms would be a
    # latency of 5 ms.
    sys.setswitchinterval(SWITCH_S)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(main)


def spare_garbage_collections() -> None:
    """Once everything is loaded: what is there now stays, and need not be looked at again.

    A full collection stops all threads for as long as it takes to look at every object, and a peer that has large bodies read
    brings on many of them. Nearly all that requests leave behind goes without it, as soon as nobody uses it."""
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
