"""Damaged messages in brokers' answers: each is logged once, counted, and skipped."""

from __future__ import annotations

import logging
from typing import Final

from kappamq.message import DamagedMessage

log = logging.getLogger(__name__)

_REMEMBERED_MAX: Final = 10_000


class DamageReports:
    """For one client. A message that is pulled again, after a rebalance or a reset, is not logged again."""

    def __init__(self) -> None:
        self.count = 0
        self._told: dict[tuple[object, ...], None] = {}

    def report(self, damaged: DamagedMessage) -> bool:
        """Log and count a damaged message. Returns False if that was done before."""
        known = damaged.queue, damaged.fingerprint
        if known in self._told:
            return False
        if len(self._told) >= _REMEMBERED_MAX:
            del self._told[next(iter(self._told))]
        self._told[known] = None
        self.count += 1
        log.warning(
            "topic %s queue %d of broker %s: the message at offset %d, log offset %s, is damaged (%s) and was skipped; "
            "run `kappamq store verify` on that broker's data directory",
            damaged.queue.topic,
            damaged.queue.queue_id,
            damaged.queue.broker,
            damaged.queue_offset,
            "unknown" if damaged.log_offset is None else damaged.log_offset,
            damaged.reason,
        )
        return True
