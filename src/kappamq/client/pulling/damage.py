"""Damaged messages in brokers' answers: each is counted once and skipped; for each queue, one is logged per interval."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from kappamq.message import DamagedMessage, MessageQueue

log = logging.getLogger(__name__)

TELL_AGAIN_S: Final = 10.0
"""The shortest interval between logged messages of one queue; each says how many were not logged."""
_REMEMBERED_MAX: Final = 10_000


class DamageReports:
    """For one client. A message that is pulled again, after a rebalance or a reset, is not logged again."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.count = 0
        self._now = now
        self._queues: dict[MessageQueue, tuple[float, int]] = {}  # when one was logged, and how many have come since
        self._told: dict[tuple[object, ...], None] = {}

    def report(self, damaged: DamagedMessage) -> bool:
        """Count a damaged message, and log it unless another one of its queue was logged just now. Returns False if it is known."""
        known = damaged.queue, damaged.fingerprint
        if known in self._told:
            return False
        if len(self._told) >= _REMEMBERED_MAX:
            del self._told[next(iter(self._told))]
        self._told[known] = None
        self.count += 1
        now = self._now()
        told, since = self._queues.pop(damaged.queue, (now - TELL_AGAIN_S, 0))
        if now - told < TELL_AGAIN_S:
            self._queues[damaged.queue] = told, since + 1
            return True
        if len(self._queues) >= _REMEMBERED_MAX:
            del self._queues[next(iter(self._queues))]
        self._queues[damaged.queue] = now, 0
        log.warning(
            "topic %s queue %d of broker %s: the message at offset %d, log offset %s, is damaged (%s) and was skipped%s; "
            "run `kappamq store verify` on that broker's data directory",
            damaged.queue.topic,
            damaged.queue.queue_id,
            damaged.queue.broker,
            damaged.queue_offset,
            "unknown" if damaged.log_offset is None else damaged.log_offset,
            damaged.reason,
            f", as were {since} others of this queue" if since else "",
        )
        return True
