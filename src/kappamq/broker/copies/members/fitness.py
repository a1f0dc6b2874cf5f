"""Whether this member should lead: not with damage that others may not have, without room for more, or with a clock that is ahead.

A leader stamps what it stores. One whose clock is far ahead would stamp times to come, and its successor would have timers wait for
them. Each member hears what the others' clocks show when they connect, and holds its own against most of them.
"""

from __future__ import annotations

import logging
from typing import Final

from kappamq.broker.copies.mending.mender import Mender
from kappamq.broker.sending.gate import NO_ROOM, Gate
from kappamq.broker.upkeep.clock_watch import REMEDY, duration
from kappamq.clock import Clock
from kappamq.raft import Node

log = logging.getLogger(__name__)

AHEAD_MAX_MS: Final = 60_000
_ALONE_MS: Final = 10_000  # nobody else leads for so long: then one without room, or with another time, may


class Fitness:
    def __init__(self, clock: Clock, gate: Gate, mender: Mender) -> None:
        self._clock = clock
        self._gate = gate
        self._mender = mender
        self._others: dict[str, float] = {}  # what their clocks show, less our liveness time, in milliseconds
        self._is_ahead = False
        self._leader_seen: float | None = None  # or when we were asked first: the others need time to elect one, too

    def clock_of(self, member: str, now_ms: int) -> None:
        """Another member says what its clock shows. 0: it does not say."""
        if now_ms:
            self._others[member] = now_ms - self._clock.liveness() * 1000

    def may_lead(self, node: Node, now_ms: float) -> bool:
        if self._mender.is_unfit:
            return False
        is_ahead = self._look_at_clock()
        if self._leader_seen is None or (node.leader is not None and node.leadership is None):
            self._leader_seen = now_ms
        if not is_ahead and not self._gate.has(NO_ROOM):
            return True
        return node.leadership is None and now_ms - self._leader_seen > _ALONE_MS

    def _look_at_clock(self) -> bool:
        ahead_ms = self._ahead_ms()
        is_ahead, was_ahead = ahead_ms > AHEAD_MAX_MS, self._is_ahead
        self._is_ahead = is_ahead
        if is_ahead and not was_ahead:
            log.error(
                "raft: the clock of this machine is %s ahead of those of most other members: this member does not stand, and hands over if "
                "it leads; %s",
                duration(ahead_ms),
                REMEDY,
            )
        elif was_ahead and not is_ahead:
            log.warning("raft: the clock of this machine agrees with those of other members again: this one may lead")
        return is_ahead

    def _ahead_ms(self) -> int:
        """So far, or further, we are ahead of more than half of the others that we have heard of."""
        ours = self._clock.message_ms() - self._clock.liveness() * 1000
        differences = sorted(ours - theirs for theirs in self._others.values())
        return round(differences[(len(differences) - 1) // 2]) if differences else 0
