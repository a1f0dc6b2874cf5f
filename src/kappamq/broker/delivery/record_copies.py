"""Copies and the progress of delivery, stored as one group; and what to do if that is not possible now."""

from __future__ import annotations

import logging
from typing import Any

from kappamq.broker.sending.appending import Appender
from kappamq.errors import IllegalMessage, KappaError
from kappamq.native.pure_record import GroupMember

log = logging.getLogger(__name__)

GROUP_MAX = 64  # about a millisecond's work
_AFTER_REFUSAL_MS = 1000


class Copying:
    """Stores groups for a part that delivers in order, and that can retry the same group if it is refused."""

    def __init__(self, what: str, appender: Appender) -> None:
        self._what = what
        self._appender = appender
        self._refused = ""
        self.group_max = GROUP_MAX

    def store(self, copies: list[GroupMember], change: tuple[str, Any], now_ms: int) -> int | None:
        """Return None if it was stored; else the time to try again, with at most `group_max` of them."""
        try:
            self._appender.append_copies(copies, [change])
        except IllegalMessage as error:
            if len(copies) > 1:
                self.group_max = 1  # one of them, but which?
                return now_ms
            log.error("%s: a message cannot be delivered (%s): skipped", self._what, error)
            return self.store([], change, now_ms)
        except KappaError as error:
            if str(error) != self._refused:
                log.warning("delivery of %s is delayed: %s", self._what, error)
            self._refused = str(error)
            return now_ms + _AFTER_REFUSAL_MS
        self.group_max, self._refused = GROUP_MAX, ""
        return None
