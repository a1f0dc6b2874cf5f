"""Pulls that wait for messages: parked per queue, and tried again when their queue grows or their time is up.

The store gets `grown` when it is made and calls it with the queues that grew, once per turn. Pulls park here. So the store and the
pulls need not know each other.
"""

from __future__ import annotations

from kappamq.broker.pulling.long_poll import LongPoll
from kappamq.broker.pulling.waking import PullRequest, Run, Waking
from kappamq.native.interface import Kernel
from kappamq.net.requests.fair_turns import FairTurns
from kappamq.net.serving.connection import Connection


class ParkedPulls:
    def __init__(self, kernel: Kernel, turns: FairTurns, run: Run, parked_max: int, connection_max: int) -> None:
        self._table: LongPoll[PullRequest] = LongPoll(kernel, parked_max, connection_max)
        self._waking = Waking(turns, run)
        self.wake = self._waking.wake

    @property
    def count(self) -> int:
        return self._table.count

    def park(self, request: PullRequest, until: float) -> bool:
        """Keep it until its queue grows or liveness time reaches `until`; False if there are too many already."""
        return self._table.park(request.topic, request.queue_id, until, request, request.connection)

    def waits_for(self, topic: str, queue_id: int, connection: Connection) -> int:
        """How many pulls of the connection wait for this queue."""
        return self._table.waits_for(topic, queue_id, connection)

    def grown(self, queues: list[tuple[str, int]]) -> None:
        """These queues have new messages: pulls that wait for them are tried again."""
        self.wake([request for queue in queues for request in self._table.grown(*queue)])

    def expire(self, now: float) -> None:
        """Pulls that have waited long enough get the answer that there is nothing."""
        expired = self._table.expired(now)
        for request in expired:
            request.suspend_ms = 0
        self.wake(expired)

    def take(self, topic: str, queue_id: int) -> list[PullRequest]:
        """All pulls that wait for this queue; they are not parked any more."""
        return self._table.grown(topic, queue_id)

    def take_of(self, connection: Connection, topic: str) -> list[PullRequest]:
        """What a peer has parked in the queues of a topic; it is not parked any more."""
        return self._table.take(connection, topic)

    def lost(self, connection: Connection) -> None:
        self._table.drop(connection)
        self._waking.lost(connection)
