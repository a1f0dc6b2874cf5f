"""Messages on their way from the threads that send to the loop that does it: a whole burst with one call of the loop."""

from __future__ import annotations

from collections import deque
from typing import Final

from kappamq.client.blocking.loop_thread import LoopThread
from kappamq.client.bursts.leftovers import Watch
from kappamq.client.bursts.waiting import Handed, Limits, Sink, each_its_own
from kappamq.client.producer.pressure import Allowance
from kappamq.client.producer.producer import AsyncProducer
from kappamq.client.producer.sending import Key
from kappamq.message import Message, MessageQueue

MANY: Final = 16
"""So many at once say that more are on their way."""
PAUSE_S: Final = 0.0005
"""How soon the loop looks again then, without being called: each call would cost as much as the message."""


class Handover:
    """Any thread puts; the loop takes, in the order of `put`."""

    def __init__(self, home: LoopThread, inner: AsyncProducer) -> None:
        self._home = home
        self._inner = inner
        self._handed: deque[Handed] = deque()
        self._coming = False  # the loop has been called, and has not begun to take
        self._watch = Watch(self)

    def __len__(self) -> int:
        return len(self._handed)

    def left_over(self) -> tuple[int, int]:
        """How many messages the loop has not taken; the others are told of by `Sends`."""
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
        """The message has been counted against `limits`; `sink` is told what becomes of it, whatever that is."""
        self._handed.append((message, sink, limits, key, queue, timeout))
        if not self._coming:
            # Whoever comes between these two lines calls the loop as well, which finds nothing the second time.
            self._coming = True
            self._home.loop.call_soon_threadsafe(self._take)

    def hurry(self) -> None:
        """What is submitted to the loop from here on finds all that has been put."""
        if self._handed:
            self._home.loop.call_soon_threadsafe(self._take)

    @property
    def put_so_far(self) -> list[Sink]:
        """Who is to be told of the messages that the loop has not taken."""
        return [handed[1] for handed in self._handed]

    def _take(self) -> None:
        self._coming = False  # first: who puts from here on calls again
        count = len(self._handed)  # what comes meanwhile waits: the loop has other work, too
        try:
            self._inner.accept(self._handed, count)
        except Exception as error:  # it is closed, or could not be started
            refused = [self._handed.popleft() for _ in range(min(count, len(self._handed)))]
            for (message, sink, limits, *_), own in zip(refused, each_its_own(error, len(refused)), strict=False):
                limits.give_back(len(message.body))
                if not sink.done():
                    sink.set_exception(own)
            return
        if count >= MANY and not self._coming:
            self._coming = True
            self._home.loop.call_later(PAUSE_S, self._take)


class WholeAllowance:
    """The limits of a message that is larger than all of them, and has taken all there is."""

    def __init__(self, allowance: Allowance, taken: int) -> None:
        self._allowance = allowance
        self._taken = taken

    def give_back(self, _size: int, count: int = 1) -> None:
        self._allowance.give_back(self._taken, count)
