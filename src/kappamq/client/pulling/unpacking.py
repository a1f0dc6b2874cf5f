"""Decompresses answers in threads: a compressed body of 2 KB may take a tenth of a second, and the libraries release the GIL.

There are few threads for the whole process, so at most a few bodies are in memory that no caller waits for.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

THREADS: Final = max(1, min(4, os.cpu_count() or 1))
_lock = threading.Lock()
_threads: ThreadPoolExecutor | None = None


async def beside(call: Callable[P, R], *args: P.args, **named: P.kwargs) -> R:
    """Return the result of `call`, which runs in another thread. The waiting task may be cancelled; the call still runs to its end."""
    future = _pool().submit(call, *args, **named)
    return await asyncio.wrap_future(future)


def _pool() -> ThreadPoolExecutor:
    global _threads
    with _lock:
        if _threads is None:
            _threads = ThreadPoolExecutor(THREADS, thread_name_prefix="kappamq-unpack")
        return _threads


def _after_fork() -> None:
    """The threads exist only in the parent, and one of them may have held the lock."""
    global _lock, _threads
    _lock, _threads = threading.Lock(), None


os.register_at_fork(after_in_child=_after_fork)
