"""Whether this member should lead: not with damage that others may not have, without room for more, or with a clock that is ahead.

A leader's clock gives store times. One whose clock is far ahead would store times in the future, and its successor's timers would wait
for them. Each member gets the others' clocks when they connect and with later messages, and compares its own with most of
them. When its own clock is set, the others' may have been set with it (machines resume, time servers step them all): it compares
once it has had time to hear from the others again.
"""

from __future__ import annotations

import logging
from typing import Final

from kappamq.broker.copies.mending.mender import Mender
from kappamq.broker.sending.gate import NO_ROOM, Gate
from kappamq.broker.upkeep.clock_watch import REMEDY, duration
from kappamq.clock import Clock
from kappamq.raft import Node
from kappamq.replication.greeting import MemberHello

log = logging.getLogger(__name__)

AHEAD_MAX_MS: Final = 60_000
_STEP_MS: Final = 10_000  # our clock was set by this much
_ANEW_MS: Final = 1_000  # ten heartbeats: after that all reachable members have sent their present clocks
_ALONE_MS: Final = 10_000  # if no other member leads for this long, one without room, or with a wrong clock, may


class Fitness:
    def __init__(self, clock: Clock, gate: Gate, mender: Mender) -> None:
        self._clock = clock
        self._gate = gate
        self._mender = mender
        # Their clocks minus our liveness time, and when they were received, all in milliseconds.
        self._others: dict[str, tuple[float, float]] = {}
        self._ours: float | None = None  # the same of our clock
        self._set_at = float("-inf")  # when our clock was set
        self._is_ahead = False
        self._leader_seen: float | None = None  # or when we were asked first: the others need time to elect one, too

    def clock_of(self, member: str, now_ms: int) -> None:
        """Note another member's clock. 0: not sent."""
        if now_ms:
            heard = self._clock.liveness() * 1000
            self._others[member] = now_ms - heard, heard

    def told_to(self, hello: MemberHello | None) -> int:
        """Return our clock, for a member that wants it with each message; else 0."""
        return self._clock.message_ms() if hello is not None and hello.hears_clocks else 0

    def may_lead(self, node: Node, now_ms: float) -> bool:
        if self._mender.is_unfit:
            return False
        # Others may say what they like: only the clocks of members count.
        self._others = {name: told for name, told in self._others.items() if node.members.named(name) is not None}
        is_ahead = self._look_at_clock()
        if self._leader_seen is None or (node.leader is not None and node.leadership is None):
            self._leader_seen = now_ms
        if not is_ahead and not self._gate.has(NO_ROOM):
            return True
        return node.leadership is None and now_ms - self._leader_seen > _ALONE_MS

    def _look_at_clock(self) -> bool:
        now = self._clock.liveness() * 1000
        ours = self._clock.message_ms() - now
        if self._ours is not None and abs(ours - self._ours) > _STEP_MS:
            self._set_at = now
        self._ours = ours
        if now - self._set_at < _ANEW_MS:
            return self._is_ahead
        ahead_ms = self._ahead_ms(ours)
        is_ahead, was_ahead = ahead_ms > AHEAD_MAX_MS, self._is_ahead
        self._is_ahead = is_ahead
        if is_ahead and not was_ahead:
            log.error(
                "raft: the clock of this machine is %s ahead of those of most other members: this member does not stand "
                "for election, and hands over if it leads; %s",
                duration(ahead_ms),
                REMEDY,
            )
        elif was_ahead and not is_ahead:
            log.warning(
                "raft: the clock of this machine agrees with those of the other members again: this member may lead"
            )
        return is_ahead

    def _ahead_ms(self, ours: float) -> int:
        """Return by how much, at least, we are ahead of more than half of the others: by clocks received since ours was set, if any."""
        anew = [theirs for theirs, heard in self._others.values() if heard > self._set_at]
        differences = sorted(ours - theirs for theirs in anew or [theirs for theirs, _heard in self._others.values()])
        return round(differences[(len(differences) - 1) // 2]) if differences else 0
