"""A message on its way, and who is told what became of it."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from typing import Final, Protocol, TypeVar

from kappamq.client.producer import batching
from kappamq.client.producer.sending import Key
from kappamq.message import Message, MessageQueue, SendResult

log = logging.getLogger(__name__)

MEMBER_BYTES: Final = 128
"""What a message without properties takes in a batch beside its body, at most."""

E = TypeVar("E", bound=BaseException)


class Sink(Protocol):
    """Is told the result. A future of asyncio or of a thread is one."""

    def done(self) -> bool: ...

    def set_result(self, result: SendResult, /) -> None: ...

    def set_exception(self, error: BaseException, /) -> None: ...


class Limits(Protocol):
    """What sends in flight take of the limits is given back here."""

    def give_back(self, size: int, count: int = 1) -> None: ...


Callback = Callable[[SendResult | None, BaseException | None], object]


class CallbackSink:
    """Calls a function with the result and None, or with None and the error."""

    __slots__ = ("_call", "_done")

    def __init__(self, call: Callback) -> None:
        self._call = call
        self._done = False

    def done(self) -> bool:
        return self._done

    def set_result(self, result: SendResult) -> None:
        self._tell(result, None)

    def set_exception(self, error: BaseException) -> None:
        self._tell(None, error)

    def _tell(self, result: SendResult | None, error: BaseException | None) -> None:
        self._done = True
        try:
            self._call(result, error)
        except Exception:
            log.exception("the callback of a send failed")


class Waiting:
    """One message between `send` and its result. Until it is settled it counts against `limits`."""

    __slots__ = (
        *("accepted", "born_ms", "deadline", "joins", "key", "limits", "message", "queue"),
        *("sent", "settled", "sink", "size", "weight"),
    )

    def __init__(
        self,
        message: Message,
        sink: Sink,
        limits: Limits,
        key: Key | None,
        queue: MessageQueue | None,
        accepted: float,
        deadline: float,
        born_ms: int,
    ) -> None:
        self.message = message
        self.sink = sink
        self.limits = limits
        self.key = key
        self.queue = queue
        self.accepted = accepted  # liveness time, as is `deadline`
        self.deadline = deadline
        self.born_ms = born_ms
        self.size = len(message.body)
        self.sent = False  # a request with it may have left
        self.settled = False
        self.weight = 0
        self.joins = batching.may_join(message)

    def weigh(self) -> None:
        """Set `weight`, an upper estimate of the bytes it takes in a batch. Raises UnicodeEncodeError for what is no text."""
        message = self.message
        if message.tags or message.keys or message.properties or message.sharding_key:
            self.weight = batching.size_of(message)
        else:
            self.weight = self.size + MEMBER_BYTES

    @property
    def limit(self) -> float:
        """How many seconds the message was given."""
        return self.deadline - self.accepted


def each_its_own(error: E, count: int) -> list[E]:
    """Return an error for each of several waiters: a shared one would collect the tracebacks of all."""
    notes = getattr(error, "__notes__", [])
    copies = [error]
    for _ in range(count - 1):
        another = copy.copy(error)
        if notes:
            another.__notes__ = list(notes)
        copies.append(another)
    return copies
