"""Pauses that a client makes by itself: before a failed message is tried again here, or its queue goes on.

A pause ends when its time has passed. With the testing kit's clock it also ends when a test turns that clock far enough.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol, runtime_checkable

from kappamq.clock import Clock

Later = Callable[..., None]
"""(seconds, what to call, its arguments)"""


@runtime_checkable
class Turnable(Protocol):
    """A clock that can be turned forward."""

    def alarm(self, due_ms: int, ring: Callable[[], None]) -> Callable[[], None]:
        """Call `ring` when message time reaches `due_ms`, on any thread. What is returned is to be called when the pause is
        over, however it ended: until then the clock's owner knows that somebody has something to do."""


def on_loop(seconds: float, call: Callable[..., None], *args: object) -> None:
    """A pause in real time."""
    asyncio.get_running_loop().call_later(seconds, call, *args)


def later(clock: Clock, seconds: float, call: Callable[..., None], *args: object) -> None:
    """Call something on the running loop after a pause."""
    loop = asyncio.get_running_loop()
    over: Callable[[], None] = _nothing
    ended = False

    def end() -> None:
        nonlocal ended
        if ended:
            return
        ended = True
        timer.cancel()
        try:
            call(*args)
        finally:
            over()

    def ring() -> None:
        try:
            if loop.is_running():
                loop.call_soon_threadsafe(end)
                return
        except RuntimeError:
            pass  # it was closed a moment ago
        over()  # nobody is there any more

    timer = loop.call_later(seconds, end)
    if isinstance(clock, Turnable):
        over = clock.alarm(clock.message_ms() + round(seconds * 1000), ring)


def _nothing() -> None:
    pass
