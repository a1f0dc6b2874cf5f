"""How far the log has come in one respect, and the waiters for it to advance."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

Waiter = TypeVar("Waiter")


class Watermark(Generic[Waiter]):
    """`written`, `flushed`, `dispatched`...: an offset that only grows. A waiter is opaque: a future, a parked reply, a string.

    Waiters are served in order of arrival, which is mostly log order.
    """

    __slots__ = ("_waiting", "offset")

    def __init__(self, offset: int = 0) -> None:
        self.offset = offset
        self._waiting: deque[tuple[int, Waiter]] = deque()

    def wait(self, offset: int, waiter: Waiter) -> bool:
        """Park `waiter` until the watermark reaches `offset`; False (and not parked) if it is there already."""
        if offset <= self.offset:
            return False
        # A late waiter for an early offset (it waited for something else first) queues behind the others, because `advance` only
        # looks at the first one.
        self._waiting.append((offset, waiter))
        return True

    def advance(self, offset: int) -> list[Waiter]:
        """Move to `offset`; return the waiters it releases, in log order."""
        assert offset >= self.offset, f"a watermark never goes back: {self.offset} -> {offset}"
        self.offset = offset
        waiting = self._waiting
        reached: list[Waiter] = []
        if not waiting:
            return reached
        while waiting and waiting[0][0] <= offset:
            reached.append(waiting.popleft()[1])
        return reached

    def give_up(self, which: Callable[[Waiter], bool] | None = None) -> list[Waiter]:
        """Remove waiters from the front while `which` is true for them; all without `which`."""
        waiting = self._waiting
        given: list[Waiter] = []
        while waiting and (which is None or which(waiting[0][1])):
            given.append(waiting.popleft()[1])
        return given

    def cut(self, offset: int) -> list[Waiter]:
        """The log was cut to `offset`: go back there, and return the waiters for what is gone."""
        gone = [waiter for end, waiter in self._waiting if end > offset]
        if gone:
            self._waiting = deque(waiting for waiting in self._waiting if waiting[0] <= offset)
        self.offset = min(self.offset, offset)
        return gone

    def reset(self, offset: int) -> None:
        """Set the mark where recovery found it. There must be no waiters."""
        assert not self._waiting
        self.offset = offset
