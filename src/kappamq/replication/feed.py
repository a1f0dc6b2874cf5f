"""What one follower was sent and has reported. The leader has one for each connection; it ends with it."""

from __future__ import annotations

from kappamq.replication.frames import BadStream, Report


class Feed:
    """Offsets of one connection: reported flushed <= reported written <= reported received <= sent."""

    def __init__(self, start: int, window_bytes: int, generation: int = 0, *, flushed: int = 0) -> None:
        """The follower holds the log up to `start`; what lies behind is to be sent, at most `window_bytes` ahead of its reports.

        Holding it does not mean that it is on its disk: of that only `flushed` is known before its first report."""
        self.sent_from = start
        self.sent = start
        self.written = start
        self.flushed = flushed
        self.received = start
        self.generation = generation
        self._window_bytes = window_bytes

    @property
    def room(self) -> int:
        """So many bytes may be sent now. What has arrived counts, stored or not: the window may end within a record."""
        return max(0, self._window_bytes - (self.sent - self.received))

    def took(self, size: int) -> None:
        """So many bytes more were handed to the connection."""
        self.sent += size

    def reported(self, report: Report) -> bool:
        """Take a report; whether it says something new. Raises BadStream for one that cannot be true: nobody holds what was not sent
        on this connection, and nobody holds less than before without having cut its log."""
        if report.generation != self.generation:
            return False  # of a log that has been cut since
        received = max(report.received, report.written)
        if received > self.sent:
            raise BadStream(f"it reports the log up to {received}, but was sent only up to {self.sent}")
        if report.written < self.written or report.flushed < self.flushed or received < self.received:
            raise BadStream(
                f"its reports go back: written {self.written} -> {report.written}, flushed {self.flushed} -> {report.flushed}"
            )
        news = (report.written, report.flushed, received) != (self.written, self.flushed, self.received)
        self.written, self.flushed, self.received = report.written, report.flushed, received
        return news
