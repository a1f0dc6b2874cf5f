"""Resets under fire: an operator moves a group, a member follows, and another member, which never hears of it, commits.

The first two use even offsets only, the deaf member odd ones: an odd offset is one that it should not have been able to set.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.wire import Refused, Wire
from kappamq.protocol.bodies.clients import ConsumerData, HeartbeatData, SubscriptionData
from kappamq.protocol.codes import ResponseCode
from kappamq.protocol.headers.admin import ResetOffsetByBroker
from kappamq.protocol.headers.client import HeartBeat
from tests.crash.checker import Violation
from tests.crash.traffic import TOPIC

GROUP = "reset-group"
PAUSE_S = 0.02
RESET_PART = 0.3


@dataclass(slots=True)
class Move:
    """An offset that somebody wanted, in the order of time. Nobody else moves the queue meanwhile."""

    offset: int
    reset: bool
    acked: bool = False


def judge(queue_id: int, stored: int | None, moves: Sequence[Move]) -> list[Violation]:
    """The last reset that was answered, or something that came after it; never what the deaf member has committed."""
    wrong: list[Violation] = []
    if stored is not None and stored % 2:
        wrong.append(Violation("reset undone", f"queue {queue_id}: {stored}, by a member that has not heard of it"))
    last = max((number for number, move in enumerate(moves) if move.reset and move.acked), default=None)
    if last is not None:
        possible = {move.offset for move in moves[last:]}
        if stored not in possible and not wrong:
            text = (
                f"queue {queue_id}: {stored}, not {moves[last].offset} or what was committed since {sorted(possible)}"
            )
            wrong.append(Violation("reset lost", text))
    return wrong


@dataclass(slots=True)
class Resets:
    queues: int
    moves: dict[int, list[Move]] = field(default_factory=dict)
    count: int = 0  # that were answered

    def actors(self, address: str, dice: random.Random) -> list[Actor]:
        return [Mover(self, address, dice.getrandbits(64)), Deaf(self, address, dice.getrandbits(64))]

    def check(self, wire: Wire) -> list[Violation]:
        wrong: list[Violation] = []
        for queue_id in range(self.queues):
            moves = self.moves.get(queue_id, [])
            stored = wire.committed(GROUP, TOPIC, queue_id) if moves else None
            wrong += judge(queue_id, stored, moves)
            if stored is not None:  # what a restart has found is there for good
                known = any(move.reset and move.acked for move in moves)
                self.moves[queue_id] = [Move(stored, reset=known, acked=known)]
        return wrong

    def was_reset(self, queue_id: int) -> bool:
        return any(move.reset and move.acked for move in self.moves.get(queue_id, []))


class Actor:
    def __init__(self, resets: Resets, address: str, seed: int) -> None:
        self._resets, self._address = resets, address
        self._dice = random.Random(seed)

    def run(self, stop: threading.Event) -> None:
        with Wire(self._address) as wire:
            self._join(wire)
            while not stop.wait(PAUSE_S):
                queue_id = self._dice.randrange(self._resets.queues)
                try:
                    self.act(wire, queue_id)
                except Refused as error:
                    # The topic is not there yet, or has fewer messages than a moment ago we thought.
                    if error.code not in (ResponseCode.TOPIC_NOT_EXIST, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST):
                        raise

    def _join(self, wire: Wire) -> None:
        subscription = SubscriptionData(topic=TOPIC, version=1)
        beat = HeartbeatData(
            client_id=type(self).__name__, consumers=[ConsumerData(group=GROUP, subscriptions=[subscription])]
        )
        wire.ask(HeartBeat(), beat.encode())

    def act(self, wire: Wire, queue_id: int) -> None:
        raise NotImplementedError


class Mover(Actor):
    """Operator and obedient member in one, so that one comes after the other."""

    def __init__(self, resets: Resets, address: str, seed: int) -> None:
        super().__init__(resets, address, seed)
        self._at: dict[int, int] = {}

    def act(self, wire: Wire, queue_id: int) -> None:
        moves = self._resets.moves.setdefault(queue_id, [])
        if self._dice.random() < RESET_PART:
            end = wire.max_offset(TOPIC, queue_id)
            move = Move(2 * self._dice.randint(0, end // 2), reset=True)
            moves.append(move)
            asked = ResetOffsetByBroker(
                topic=TOPIC, group=GROUP, queue_id=queue_id, offset=move.offset, timestamp=0, force=False
            )
            answer = wire.ask(asked)
            if answer.code:
                moves.remove(move)
                raise Refused("reset", answer)
            move.acked = True
            self._resets.count += 1
            return
        if queue_id not in self._at:
            self._at[queue_id] = wire.committed(GROUP, TOPIC, queue_id) or 0
        pulled = wire.pull(TOPIC, queue_id, self._at[queue_id], group=GROUP)
        self._at[queue_id] = pulled.next_offset
        if pulled.records:
            move = Move(pulled.next_offset - pulled.next_offset % 2, reset=False)
            moves.append(move)
            wire.commit(GROUP, TOPIC, queue_id, move.offset)


class Deaf(Actor):
    """Neither pulls nor asks: whatever it commits is from before the reset."""

    def act(self, wire: Wire, queue_id: int) -> None:
        end = wire.max_offset(TOPIC, queue_id)
        if self._resets.was_reset(queue_id) and end:
            wire.commit(GROUP, TOPIC, queue_id, 2 * self._dice.randrange((end + 1) // 2) + 1)
