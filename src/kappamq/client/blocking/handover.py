"""Hands messages from the threads that send to the event loop: one wake-up of the loop for a whole burst."""

from __future__ import annotations

from collections import deque
from typing import Final

from kappamq.client.blocking.loop_thread import LoopThread
from kappamq.client.bursts.leftovers import Watch
from kappamq.client.bursts.waiting import Limits, Sink, Waiting, each_its_own
from kappamq.client.producer.pressure import Allowance
from kappamq.client.producer.producer import AsyncProducer
from kappamq.client.producer.sending import Key
from kappamq.message import Message, MessageQueue

MANY: Final = 16
"""This many at once suggest that more are coming."""
PAUSE_S: Final = 0.0005
"""How soon the loop looks again then, without being woken: each wake-up would cost as much as a message."""


class Handover:
    """Any thread may `put`; the loop takes, in the order of `put`."""

    def __init__(self, home: LoopThread, inner: AsyncProducer) -> None:
        self._home = home
        self._inner = inner
        self._handed: deque[Waiting] = deque()
        self._limit_s = inner.config.send_timeout_ms / 1000
        self._coming = False  # the loop has been woken, and has not begun to take
        self._watch = Watch(self)

    def __len__(self) -> int:
        return len(self._handed)

    def left_over(self) -> tuple[int, int]:
        """The number of messages the loop has not taken; `Sends` counts the others."""
        return len(self), 0

    def put(
        self,
        message: Message,
        sink: Sink,
        limits: Limits,
        key: Key | None = None,
        queue: MessageQueue | None = None,
        timeout: float | None = None,
    ) -> None:
        """Add a message, already counted against `limits`; `sink` gets its result or error in every case."""
        try:
            if key is None:
                key = message.sharding_key or None
            # Its time begins when the loop takes it.
            entry = Waiting(message, sink, limits, key, queue, 0.0, self._limit_s if timeout is None else timeout, 0)
        except Exception as error:  # for example, the topic is not a string
            self._home.loop.call_soon_threadsafe(_refuse, len(message.body), sink, limits, error)
            return
        self._handed.append(entry)
        if not self._coming:
            # A thread that gets between these two lines wakes the loop as well, which then finds nothing the second time.
            self._coming = True
            self._home.loop.call_soon_threadsafe(self._take)

    def hurry(self) -> None:
        """Calls submitted to the loop from now on run after all messages put before."""
        if self._handed:
            self._home.loop.call_soon_threadsafe(self._take)

    @property
    def put_so_far(self) -> list[Sink]:
        """Return the sinks of the messages that the loop has not taken."""
        return [entry.sink for entry in self._handed]

    def _take(self) -> None:
        self._coming = False  # first: a `put` after this wakes the loop again
        count = len(self._handed)  # later messages wait: the loop has other work, too
        try:
            self._inner.accept(self._handed, count)
        except Exception as error:  # it is closed, or could not be started
            refused = [self._handed.popleft() for _ in range(min(count, len(self._handed)))]
            for entry, own in zip(refused, each_its_own(error, len(refused)), strict=False):
                _refuse(entry.size, entry.sink, entry.limits, own)
            return
        if count >= MANY and not self._coming:
            self._coming = True
            self._home.loop.call_later(PAUSE_S, self._take)


def _refuse(size: int, sink: Sink, limits: Limits, error: Exception) -> None:
    limits.give_back(size)
    if not sink.done():
        sink.set_exception(error)


class WholeAllowance:
    """The limits of a message that is larger than all of them, and has taken everything."""

    def __init__(self, allowance: Allowance, taken: int) -> None:
        self._allowance = allowance
        self._taken = taken

    def give_back(self, _size: int, count: int = 1) -> None:
        self._allowance.give_back(self._taken, count)
