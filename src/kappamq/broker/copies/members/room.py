"""A member whose disk is full waits, and stays a member. Bytes that would need another log file are not accepted, as if they had been
lost on the
way; the leader still hears from us, and is asked for the rest when there is room."""

from __future__ import annotations

import logging

from kappamq.broker.upkeep.next_file import NextLogFile
from kappamq.raft import Message
from kappamq.raft.messages import Append, Beat
from kappamq.store.log.commit_log import CommitLog

log = logging.getLogger(__name__)


class Room:
    def __init__(self, log_files: CommitLog, next_file: NextLogFile) -> None:
        self._log = log_files
        self._next_file = next_file
        self._waiting = False

    def taken(self, message: Message) -> Message | None:
        """Return the part of a leader's message that can be accepted now. None: it has to be sent again."""
        if isinstance(message, Append) and message.end >= self._log.segment_end and message.end > message.start:
            if self._has_next():
                return message
            if not self._waiting:
                self._waiting = True
                log.error(
                    "raft: no disk space for the next log file, waiting at offset %d; free some space, replication resumes by itself",
                    self._log.end,
                )
            return None
        if isinstance(message, Beat) and self._waiting:
            if not self._has_next():
                # If we reported our position, the same bytes would be sent to us again, ten times a second.
                return message._replace(sent=min(message.sent, self._log.end))
            self._waiting = False
            log.warning("raft: disk space is available again, replication resumes at offset %d", self._log.end)
        return message

    def _has_next(self) -> bool:
        if not self._log.next_is_ready:
            self._next_file.demand()
        return self._log.next_is_ready
