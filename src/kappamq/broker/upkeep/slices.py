"""Long work in short pieces, so that clients that send or pull meanwhile need not wait for it.

An answer about 20,000 queues is made slice by slice: numbers from the tables on the loop, times from disk and JSON by a
worker, and only the bytes are kept. Whole tables of objects would cost the loop twice, when they are made and when they go.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from kappamq.message import MessageQueue
from kappamq.protocol import fastjson
from kappamq.protocol.bodies.body import Body

Item = TypeVar("Item")
Worker = Callable[..., Awaitable[Any]]
"""Runs a function with its arguments on a thread that may wait for the disk."""

QUEUES_AT_ONCE = 64
"""Queues looked at in one go: about half a millisecond, on the loop or by a thread that keeps the loop from running."""


def rows(table: Mapping[MessageQueue, Body]) -> bytes:
    """Rows of a JSON object, without the braces around them."""
    return fastjson.dumps({queue: body.to_json() for queue, body in table.items()})[1:-1]


def spliced(body: bytes, name: str, parts: Iterable[bytes]) -> bytes:
    """An encoded body in which the object or list `name` is empty, with these rows in it."""
    mark = f'"{name}":'.encode()
    at = body.index(mark) + len(mark) + 1
    assert body[at : at + 1] in b"}]", f"{name} is not empty"
    return body[:at] + b",".join(part for part in parts if part) + body[at:]


async def in_slices(items: Sequence[Item], size: int = QUEUES_AT_ONCE) -> AsyncIterator[Sequence[Item]]:
    """Yield the items, this many at a time; other work runs in between."""
    for start in range(0, len(items), size):
        if start:
            await asyncio.sleep(0)
        yield items[start : start + size]
