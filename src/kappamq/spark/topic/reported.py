"""The progress of a stream as stored for a consumer group, so that only changes are sent."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

from kappamq.message import MessageQueue

TRY_AGAIN_S: Final = 10.0
"""An offset that could not be stored is tried again after this time, or when it has changed: its broker may be away."""


class Reported:
    """The offsets of each queue that were stored last, and those that could not be stored."""

    def __init__(self) -> None:
        self._stored: dict[MessageQueue, int] = {}
        self._failed: dict[MessageQueue, int] = {}
        self._try_again_at = 0.0

    def due(self, offsets: Mapping[MessageQueue, int]) -> dict[MessageQueue, int]:
        """Return those of these offsets that have to be stored now."""
        waiting = self._failed if time.monotonic() < self._try_again_at else {}
        return {
            queue: offset
            for queue, offset in offsets.items()
            if self._stored.get(queue) != offset and waiting.get(queue) != offset
        }

    def done(self, stored: Mapping[MessageQueue, int], failed: Mapping[MessageQueue, int]) -> bool:
        """Record the results; returns whether there are queues that failed now but not before."""
        is_news = bool(failed.keys() - self._failed.keys())
        self._stored.update(stored)
        self._failed.update(failed)
        for queue in stored:
            self._failed.pop(queue, None)
        if failed:
            self._try_again_at = time.monotonic() + TRY_AGAIN_S
        return is_news
