"""Creates the next log file on a separate thread before it is needed, and reports early if there is no room for it."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import Executor, Future, wait

from kappamq.broker.events import LogFilePrepared
from kappamq.broker.sending.gate import NO_ROOM, Gate
from kappamq.clock import Clock
from kappamq.errors import NotAvailable
from kappamq.events import Events
from kappamq.store.log.commit_log import CommitLog, Segment

log = logging.getLogger(__name__)

_PREPARE_BELOW = 0.5  # make the next log file when the current one is half full
_PREPARE_AGAIN_S = 1.0


class NextLogFile:
    def __init__(self, log_files: CommitLog, gate: Gate, clock: Clock, events: Events, thread: Executor) -> None:
        """`thread`: one that never has to wait for readers, for the loop itself waits for the next log file when it is needed."""
        self._log = log_files
        self._gate = gate
        self._clock = clock
        self._events = events
        self._thread = thread
        self._preparing: Future[Segment] | None = None
        self._prepare_at = 0.0  # not before this time: the disk had no room the last time

    def prepare_in_time(self) -> None:
        """Called periodically: create the next log file if it will be needed soon."""
        current = self._log
        if current.end % current.segment_bytes > _PREPARE_BELOW * current.segment_bytes or self._gate.has(NO_ROOM):
            self._prepare()

    def demand(self) -> None:
        """The next file is needed now: wait until it is there, or the disk has said that it cannot be."""
        if not self._gate.has(NO_ROOM):
            self._prepare()
        self.finish()

    def _prepare(self) -> None:
        if not self._log.next_is_ready and self._preparing is None and self._clock.liveness() >= self._prepare_at:
            loop = asyncio.get_running_loop()
            self._preparing = self._thread.submit(self._log.prepare)
            self._preparing.add_done_callback(lambda made: loop.call_soon_threadsafe(self._prepared, made))

    def finish(self) -> None:
        """The next file is needed now: wait for the worker that makes it, if there is one."""
        if self._preparing is not None:
            wait([self._preparing])
            self._prepared(self._preparing)

    def _prepared(self, made: Future[Segment]) -> None:
        """A disk without room for the next file is full, while there is still time to say so."""
        if made is not self._preparing:
            return  # the log writer could not wait, and has taken it
        self._preparing = None
        try:
            self._log.prepared(made.result())
            self._gate.open(NO_ROOM)
        except OSError as error:
            self._prepare_at = self._clock.liveness() + _PREPARE_AGAIN_S
            text = (
                f"there is no room for the next log file ({error.strerror}): free some space, writing resumes by itself"
            )
            if self._gate.close(NO_ROOM, NotAvailable(text)):
                log.error("refusing messages: %s", text)
        self._events.publish(LogFilePrepared())

    def stop(self) -> None:
        self.finish()
        self._thread.shutdown(wait=True)
