"""Background jobs: errors are logged, and a stop waits for them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

log = logging.getLogger(__name__)


class Jobs:
    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()

    def run(self, job: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(job)
        self._running.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a background job failed", exc_info=task.exception())

    def __len__(self) -> int:
        return len(self._running)

    async def finish(self, timeout_s: float) -> None:
        """Wait for those that run, but not for ever."""
        if self._running:
            await asyncio.wait(self._running, timeout=timeout_s)
