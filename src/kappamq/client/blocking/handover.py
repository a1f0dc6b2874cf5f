"""Messages on their way from the threads that send to the loop that does it: a whole burst with one call of the loop."""

from __future__ import annotations

from collections import deque

from kappamq.client.blocking.loop_thread import LoopThread
from kappamq.client.bursts.waiting import Limits, Sink
from kappamq.client.producer.pressure import Allowance
from kappamq.client.producer.producer import AsyncProducer
from kappamq.client.producer.sending import Key
from kappamq.message import Message, MessageQueue

_Handed = tuple[Message, Sink, Limits, Key | None, MessageQueue | None, float | None]


class Handover:
    """Any thread puts; the loop takes. In the order of `put`, and before whatever is submitted to the loop after it."""

    def __init__(self, home: LoopThread, inner: AsyncProducer) -> None:
        self._home = home
        self._inner = inner
        self._handed: deque[_Handed] = deque()
        self._coming = False  # the loop has been called, and has not begun to take

    def __len__(self) -> int:
        return len(self._handed)

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

    def drain_after_fork(self) -> list[Sink]:
        """In the child of a fork, where nobody takes any more: who waits for an answer."""
        return [handed[1] for handed in self._handed]

    def _take(self) -> None:
        self._coming = False  # first: who puts from here on calls again
        handed, inner = self._handed, self._inner
        try:
            accepted = inner.start().clock.liveness()
        except Exception as error:
            refused = error
        else:
            for _ in range(len(handed)):  # what comes meanwhile has its own call: the loop has other work, too
                inner.accept(*handed.popleft(), accepted)
            return
        for _ in range(len(handed)):
            message, sink, limits, *_ = handed.popleft()
            limits.give_back(len(message.body))
            if not sink.done():
                sink.set_exception(refused)


class WholeAllowance:
    """The limits of a message that is larger than all of them, and has taken all there is."""

    def __init__(self, allowance: Allowance, taken: int) -> None:
        self._allowance = allowance
        self._taken = taken

    def give_back(self, _size: int, count: int = 1) -> None:
        self._allowance.give_back(self._taken, count)
