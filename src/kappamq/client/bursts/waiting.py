"""A message on its way, and who is told what became of it."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from dataclasses import fields
from typing import TYPE_CHECKING, Protocol, TypeVar

from kappamq import native
from kappamq.client.producer import batching
from kappamq.client.producer.sending import Key
from kappamq.message import Message, MessageQueue, SendResult

log = logging.getLogger(__name__)

native.load().quick_messages(Message, tuple(field.name for field in fields(Message)))

if TYPE_CHECKING:
    from kappamq.native.pure_batches import SendEntry as Waiting
    from kappamq.native.pure_batches import entries_by_topic, front_entries, settle_entries
else:
    _kernel = native.load()
    Waiting, entries_by_topic = _kernel.SendEntry, _kernel.entries_by_topic
    front_entries, settle_entries = _kernel.front_entries, _kernel.settle_entries

__all__ = [
    "Callback",
    "CallbackSink",
    "Handed",
    "Limits",
    "Sink",
    "Waiting",
    "each_its_own",
    "entries_by_topic",
    "front_entries",
    "settle_entries",
    "weigh",
]

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


Handed = tuple[Message, Sink, Limits, Key | None, MessageQueue | None, float | None]
"""What a send is told, for the loop to make a `Waiting` of: message, sink, limits, key, queue, time-out."""


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


def weigh(entry: Waiting) -> None:
    """Set the weight of a message that has more than a body. Raises UnicodeEncodeError for what is no text."""
    entry.weight = batching.size_of(entry.message)


def each_its_own(error: E, count: int) -> list[E]:
    """Return an error for each of several waiters: a shared one would collect the tracebacks of all."""
    notes = getattr(error, "__notes__", [])
    copies = [error]
    for _ in range(count - 1):
        try:
            another = copy.copy(error)
        except Exception:  # of an application: its constructor wants something else than `args`
            another = error
        if notes and another is not error:
            another.__notes__ = list(notes)
        copies.append(another)
    return copies
