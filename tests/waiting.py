"""Waiting for something that will happen, with an end. The only place in the tests that may sleep."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(what: Callable[[], T], *, timeout: float = 30.0, pause: float = 0.01, text: str = "") -> T:
    """Call `what` until it returns something true, and return that. AssertionError after `timeout` seconds."""
    end = time.monotonic() + timeout
    while True:
        result = what()
        if result:
            return result
        if time.monotonic() > end:
            raise AssertionError(f"{text or what} did not come true in {timeout} s; last value {result!r}")
        time.sleep(pause)


async def eventually_async(
    what: Callable[[], T | Awaitable[T]], *, timeout: float = 30.0, pause: float = 0.005, text: str = ""
) -> T:
    """The same on an event loop; `what` may be a coroutine function."""
    end = time.monotonic() + timeout
    while True:
        result = what()
        value = await result if isinstance(result, Awaitable) else result
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"{text or what} did not come true in {timeout} s; last value {value!r}")
        await asyncio.sleep(pause)
