"""The lane of a queue: messages wait in it while a request is in flight, and leave together.

Messages with a key, or for a queue that the caller chose, have an ordered lane: one request at a time, through all its attempts."""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, Final

from kappamq.client.bursts.burst import Burst
from kappamq.client.bursts.waiting import Waiting, each_its_own, front_entries
from kappamq.message import MessageQueue
from kappamq.net.channel import Channel

if TYPE_CHECKING:
    from kappamq.client.bursts.sends import Sends

log = logging.getLogger(__name__)

BURST_COUNT_MAX: Final = 1024
BURST_BYTES_MAX: Final = 256 << 10
"""Larger batches would add latency, not throughput."""


class Lane:
    def __init__(self, sends: Sends, queue: MessageQueue, *, ordered: bool) -> None:
        self.sends = sends
        self.queue = queue
        self.ordered = ordered
        self.due = False  # will send at the end of the turn, or of its linger time
        self._waiting: deque[Waiting] = deque()
        self._weight = 0
        self._busy = False
        self._bytes_max = min(BURST_BYTES_MAX, sends.config.message_bytes_max)

    @property
    def is_idle(self) -> bool:
        return not self._busy and not self._waiting

    @property
    def is_full(self) -> bool:
        return self._weight >= self._bytes_max or len(self._waiting) >= BURST_COUNT_MAX

    @property
    def wants_to_send(self) -> bool:
        return bool(self._waiting) and not self._busy

    def put(self, entry: Waiting) -> bool:
        """Add a message. Returns whether there are enough for a request, and none is in flight."""
        waiting = self._waiting
        waiting.append(entry)
        self._weight += entry.weight
        return not self._busy and (self._weight >= self._bytes_max or len(waiting) >= BURST_COUNT_MAX)

    def put_all(self, entries: list[Waiting]) -> bool:
        """Add messages, as `put` does."""
        self._waiting.extend(entries)
        self._weight += sum([entry.weight for entry in entries])
        return not self._busy and self.is_full

    def send(self) -> Channel | None:
        """Send what is waiting, if nothing is in flight. Returns the connection on which bytes wait for `flush`, if any.

        Raises nothing: the caller has other lanes, too."""
        while self._waiting and not self._busy:
            entries: list[Waiting] = []
            try:
                entries = self._next()
                channel = self._leave(entries) if entries else None
            except Exception as error:
                log.exception("messages for %s could not be sent", self.queue)
                self._busy = False
                for entry, own in zip(entries, each_its_own(error, len(entries)), strict=False):
                    self.sends.fail(entry, own)
                if not entries:
                    return None  # it would fail again: wait for the next message, or until these time out
            else:
                if channel is not None:
                    return channel
        return None

    def _leave(self, entries: list[Waiting]) -> Channel | None:
        made = self.sends.prepared(entries)
        if made is None:
            return None  # none of them can be sent
        self._busy = True
        return Burst(self, *made).start()

    def finished(self, *, in_trouble: bool = False) -> None:
        """The request in flight was settled or, `in_trouble`, is left to others: waiting messages may choose another queue."""
        self._busy = False
        if in_trouble and self._waiting:
            waiting, self._waiting, self._weight = self._waiting, deque(), 0
            for entry in waiting:
                self.sends.again(entry)
        if self._waiting:
            self.sends.lane_free(self)
        else:
            self.sends.lane_idle(self)

    def batch_refused(self, weight: int) -> None:
        """A broker refused a batch whose members it accepts one by one: the size may be the reason."""
        self._bytes_max = max(1, min(self._bytes_max, weight // 2))

    def _next(self) -> list[Waiting]:
        """Take the messages for one request: those at the front that can share a batch, or one that cannot."""
        entries, gone, weight = front_entries(self._waiting, self._bytes_max, BURST_COUNT_MAX)
        self._weight -= weight
        for entry in gone:
            self.sends.left(entry)  # cancelled before it was sent
        return entries
