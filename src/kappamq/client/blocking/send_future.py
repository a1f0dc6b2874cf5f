"""The future of a send: behaves like `concurrent.futures.Future`, at a tenth of its cost.

Most futures are settled before a thread waits for them. So the lock and the lists for waiting are created only when one does."""

from __future__ import annotations

import os
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final

from kappamq.message import SendResult

_PENDING: Final = "PENDING"
_SETTLED: Final = frozenset(("FINISHED", "CANCELLED", "CANCELLED_AND_NOTIFIED"))


class _Gate:
    """Guards against a race between the thread that settles a future and those that begin to wait for it. One for all, held briefly."""

    def __init__(self) -> None:
        self.lock = threading.Lock()


_gate: Final = _Gate()


def reopen_after_fork() -> None:
    """A thread that exists only in the parent may have held the lock."""
    _gate.lock = threading.Lock()


os.register_at_fork(after_in_child=reopen_after_fork)


class SendFuture(Future[SendResult]):
    """Settled on the thread of the loop. Cancelling it keeps its message from being sent, if that has not happened yet."""

    # What the constructor of the base class would set. Each object gets its own lists with its condition.
    _state: str = _PENDING
    _result: SendResult | None = None
    _exception: BaseException | None = None
    _waiters: Any = ()
    _done_callbacks = ()
    _own_condition: threading.Condition | None = None

    def __init__(self) -> None:
        pass

    if not TYPE_CHECKING:

        @property
        def _condition(self) -> threading.Condition:
            found = self._own_condition
            if found is None:
                with _gate.lock:
                    found = self._own_condition
                    if found is None:
                        self._waiters, self._done_callbacks = [], []
                        found = self._own_condition = threading.Condition()
            return found

    def done(self) -> bool:
        return self._state in _SETTLED

    def cancelled(self) -> bool:
        return self._state in ("CANCELLED", "CANCELLED_AND_NOTIFIED")

    def result(self, timeout: float | None = None) -> SendResult:
        if self._state == "FINISHED" and self._exception is None:
            assert self._result is not None
            return self._result
        return super().result(timeout)

    def set_result(self, result: SendResult) -> None:
        """Do nothing if it was cancelled a moment ago."""
        self._settle(result, None)

    def set_exception(self, exception: BaseException | None) -> None:
        self._settle(None, exception)

    def abandon(self, error: BaseException) -> None:
        """After a fork, in the child, where no other thread exists and none will settle it."""
        if self._state == _PENDING:
            self._own_condition = None
            self._exception, self._state = error, "FINISHED"

    def _settle(self, result: SendResult | None, error: BaseException | None) -> None:
        with _gate.lock:
            condition = self._own_condition
            if condition is None:  # no one reads it
                if self._state != _PENDING:
                    return
                self._result, self._exception, self._state = result, error, "FINISHED"
                return
        with condition:
            if self._state != _PENDING:
                return
            self._result, self._exception, self._state = result, error, "FINISHED"
            for waiter in self._waiters:
                if error is None:
                    waiter.add_result(self)
                else:
                    waiter.add_exception(self)
            condition.notify_all()
        self._invoke_callbacks()  # type: ignore[attr-defined]
