"""A message in flight, and the sink that gets its result."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from dataclasses import fields
from typing import TYPE_CHECKING, Protocol, TypeVar

from kappamq import native
from kappamq.client.producer import batching
from kappamq.message import Message, SendResult

log = logging.getLogger(__name__)

native.load().quick_messages(Message, tuple(field.name for field in fields(Message)))

if TYPE_CHECKING:
    from kappamq.native.pure_batches import CallbackSink, entries_by_topic, front_entries, settle_entries
    from kappamq.native.pure_batches import SendEntry as Waiting
else:
    _kernel = native.load()
    CallbackSink, Waiting, entries_by_topic = _kernel.CallbackSink, _kernel.SendEntry, _kernel.entries_by_topic
    front_entries, settle_entries = _kernel.front_entries, _kernel.settle_entries

__all__ = [
    "Callback",
    "CallbackSink",
    "Limits",
    "Sink",
    "Waiting",
    "complain",
    "each_its_own",
    "entries_by_topic",
    "front_entries",
    "settle_entries",
    "weigh",
]

E = TypeVar("E", bound=BaseException)


class Sink(Protocol):
    """Gets the result. A future of asyncio or of a thread is one."""

    def done(self) -> bool: ...

    def set_result(self, result: SendResult, /) -> None: ...

    def set_exception(self, error: BaseException, /) -> None: ...


class Limits(Protocol):
    """Releases the share of the limits that sends in flight have taken."""

    def give_back(self, size: int, count: int = 1) -> None: ...


Callback = Callable[[SendResult | None, BaseException | None], object]


def complain() -> None:
    """Log the exception that a callback has just raised."""
    log.exception("the callback of a send failed")


def weigh(entry: Waiting) -> None:
    """Set the weight of a message that has more than a body. Raises UnicodeEncodeError for invalid text."""
    entry.weight = batching.size_of(entry.message)


def each_its_own(error: E, count: int) -> list[E]:
    """Return an error for each of several waiters: a shared one would collect the tracebacks of all."""
    notes = getattr(error, "__notes__", [])
    copies = [error]
    for _ in range(count - 1):
        try:
            another = copy.copy(error)
        except Exception:  # an application's own error: its constructor needs other arguments than `args`
            another = error
        if notes and another is not error:
            another.__notes__ = list(notes)
        copies.append(another)
    return copies
