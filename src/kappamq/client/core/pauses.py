"""Pauses of the client: before a failed message is retried locally, or its queue continues.

A pause ends when its time has passed. With the testing kit's clock it also ends when a test advances that clock far enough.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol, runtime_checkable

from kappamq.clock import Clock

Later = Callable[..., None]
"""Arguments: seconds, the function to call, its arguments."""


@runtime_checkable
class Turnable(Protocol):
    """A clock that can be advanced."""

    def alarm(self, due_ms: int, ring: Callable[[], None]) -> Callable[[], None]:
        """Call `ring` when message time reaches `due_ms`, on any thread. The caller must call the returned function when the
        pause is over, however it ended: until then the clock's owner counts it as pending work."""


def on_loop(seconds: float, call: Callable[..., None], *args: object) -> None:
    """Pause in real time."""
    asyncio.get_running_loop().call_later(seconds, call, *args)


def later(clock: Clock, seconds: float, call: Callable[..., None], *args: object) -> None:
    """Call a function on the running loop after a pause."""
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
            pass  # the loop was closed a moment ago
        over()  # no one is left to end the pause

    timer = loop.call_later(seconds, end)
    if isinstance(clock, Turnable):
        over = clock.alarm(clock.message_ms() + round(seconds * 1000), ring)


def _nothing() -> None:
    pass
