"""Long work in short pieces, so that nobody who sends or pulls meanwhile has to wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, TypeVar

Item = TypeVar("Item")
Worker = Callable[..., Awaitable[Any]]
"""Runs a function with its arguments on a thread that may wait for the disk."""

QUEUES_AT_ONCE = 64
"""Queues looked at in one go: about half a millisecond, on the loop or by a thread that keeps the loop from running."""


async def in_slices(items: Sequence[Item], size: int = QUEUES_AT_ONCE) -> AsyncIterator[Sequence[Item]]:
    """The items, so many at a time; everybody else has a turn in between."""
    for start in range(0, len(items), size):
        if start:
            await asyncio.sleep(0)
        yield items[start : start + size]
