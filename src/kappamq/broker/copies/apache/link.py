"""The connection of an Apache slave, seen from its master: its reports, the log in its protocol, heartbeats.

Such a slave reports neither its name nor its state; we rely on its operator that its log is a copy of ours. It reports what is in its
page cache, and it delivers to its clients what it has, whether or not this broker does already. So it counts for synchronous
copies only if that is configured (`copies.count_apache_slaves`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from kappamq.broker.copies.log_sender import LogSender, Master
from kappamq.errors import KappaError
from kappamq.replication import classic
from kappamq.replication.feed import Feed
from kappamq.replication.frames import Report

log = logging.getLogger(__name__)


class ApacheLink(LogSender):
    speaks = "apache"

    def __init__(self, master: Master, lost: Callable[[LogSender], None]) -> None:
        super().__init__(master, lost)
        self._reports = classic.Reports()
        self._loop = asyncio.get_running_loop()
        self._said_at = self._heard_at = self._loop.time()
        self._first = 0

    @property
    def broker_id(self) -> int | None:
        return None

    @property
    def address(self) -> str:
        return self.peer

    def data_received(self, data: bytes) -> None:
        try:
            reported = self._reports.feed(data)
            if reported is not None:
                self._heard_at = self._loop.time()
                self._take(reported)
        except KappaError as error:
            log.warning("copies: closed the connection of %s, an Apache slave: %s", self.peer, error)
            self.close()

    def _take(self, reported: int) -> None:
        feed = self.feed
        if feed is None:
            self._begin(reported)
        elif reported == self._first and feed.written == feed.sent_from:
            return  # it has not stored anything yet; an empty one begins at a later place than it says
        elif feed.reported(Report(0, 0, reported, reported)):
            self._room.set()
            self._master.reported(self)

    def _begin(self, reported: int) -> None:
        start = self._master.greet_apache(reported)
        self._first = reported
        self.feed = Feed(start, self._master.config.window_bytes, flushed=start)  # its reports do not distinguish these
        log.info("copies: an Apache slave at %s replicates from offset %d", self.peer, start)
        self._master.joined(self)
        self.catch_up()

    def tell_marks(self) -> None:
        """Called many times a second: send a heartbeat when it is due, and disconnect a slave that sends none."""
        now = self._loop.time()
        if now - self._heard_at > classic.SILENCE_S:
            log.warning("copies: %s, an Apache slave, has been silent for %g s", self.peer, classic.SILENCE_S)
            self.abort()
        elif self.feed is not None and self._catching_up is None and now - self._said_at >= classic.BEAT_S:
            self._said_at = now
            self._write(classic.beat(self.feed.sent))

    def _send(self, start: int, data: bytes) -> None:
        assert self.feed is not None
        self._said_at = self._loop.time()
        self.feed.took(len(data))
        self._write(b"".join(part for pair in classic.pieces(start, data) for part in pair))
