"""What one follower was sent and has reported. The leader has one feed per connection; it ends with the connection."""

from __future__ import annotations

from kappamq.replication.frames import BadStream, Report


class Feed:
    """Offsets of one connection: reported flushed <= reported written <= reported received <= sent."""

    def __init__(self, start: int, window_bytes: int, generation: int = 0, *, flushed: int = 0) -> None:
        """The follower holds the log up to `start`; it is sent the bytes behind that, at most `window_bytes` ahead of its reports.

        What it holds need not be on its disk: before its first report only `flushed` is known to be."""
        self.sent_from = start
        self.sent = start
        self.written = start
        self.flushed = flushed
        self.received = start
        self.generation = generation
        self._window_bytes = window_bytes

    @property
    def room(self) -> int:
        """How many bytes may be sent now. Received bytes count even if not stored yet: the window may end within a record."""
        return max(0, self._window_bytes - (self.sent - self.received))

    def took(self, size: int) -> None:
        """`size` more bytes were handed to the connection."""
        self.sent += size

    def reported(self, report: Report) -> bool:
        """Take a report; return whether it says something new. Raises BadStream for an impossible one: a follower cannot hold what was not
        sent on this connection, nor less than before unless it has cut its log."""
        if report.generation != self.generation:
            return False  # it is from before a cut of that log
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
