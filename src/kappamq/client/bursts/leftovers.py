"""Logs how many messages were under way when their program, or their event loop, ended without waiting for them."""

from __future__ import annotations

import atexit
import logging
import os
import weakref
from typing import Final, Protocol

log = logging.getLogger(__name__)


class Sender(Protocol):
    def left_over(self) -> tuple[int, int]:
        """The number of messages without a result that were not sent, and of those that may be stored."""
        ...


_watched: Final[weakref.WeakSet[Watch]] = weakref.WeakSet()


class Watch:
    """Owned by a sender, and ends with it: logs once, at the end of the program or when the sender is garbage-collected."""

    def __init__(self, sender: Sender) -> None:
        self._sender = weakref.ref(sender)
        self._process = os.getpid()
        _watched.add(self)

    def tell(self, what: str, sender: Sender | None = None) -> None:
        sender = sender or self._sender()
        if sender is None or self._process != os.getpid():  # a fork has copied it: its messages are the parent's
            return
        unsent, maybe = sender.left_over()
        self._process = 0
        if unsent or maybe:
            log.warning(
                "%s with %d messages under way: %d were not sent, %d may have been stored. Close producers, or flush them, before that",
                *(what, unsent + maybe, unsent, maybe),
            )


@atexit.register
def tell_all() -> None:
    for watch in list(_watched):
        watch.tell("the program ended")
