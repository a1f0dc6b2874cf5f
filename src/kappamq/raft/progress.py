"""What a leader knows about one other member."""

from __future__ import annotations

from kappamq.raft.members import MemberId


class Progress:
    """A stream begins where the two logs are known to agree. Streams are numbered, so that reports of an earlier one do not count in it.

    `flushed` outlives streams: while we lead, bytes of our log that this incarnation has on disk stay there."""

    __slots__ = ("flushed", "heard", "member", "reading", "sent", "stream", "streaming")

    def __init__(self, member: MemberId, now: float) -> None:
        self.member = member
        self.heard = now
        self.stream = 0
        self.streaming = False
        self.sent = 0  # up to here in this stream; at its beginning, where the two logs agree
        self.reading = False  # a `Replicate` was ordered and is not reported as `sent` yet
        self.flushed = 0

    def begin_stream(self, common: int, flushed: int, heard_of: int = 0) -> None:
        """The member's log ends at `common` and is the same as ours up to there. `heard_of`: the last stream it knows, which may be from
        before it was removed and added again."""
        self.stream = max(self.stream, heard_of) + 1
        self.streaming, self.reading = True, False
        self.sent = common
        self.flushed = max(self.flushed, min(flushed, common))

    def is_answered(self, stream: int) -> bool:
        """Whether a stream that began since then already answers a position whose sender knew `stream`. A second stream would send
        everything again, and once more for each message that it causes. If what has begun never arrives, the next beat names the stream,
        and the member asks again."""
        return self.streaming and stream < self.stream

    def end_stream(self) -> None:
        self.streaming = self.reading = False

    def was_sent(self, stream: int, end: int) -> bool:
        """Record that a `Replicate` was carried out; return whether it belonged to this stream."""
        if stream != self.stream or not self.reading:
            return False
        assert end > self.sent, f"nothing was sent to {self.member}: {self.sent} to {end}"
        self.sent, self.reading = end, False
        return True

    def was_reported(self, stream: int, flushed: int) -> bool:
        """Record a report; return whether the member has more on disk than before. Bytes not sent in this stream do not count."""
        if stream != self.stream or not self.streaming:
            return False
        flushed = min(flushed, self.sent)
        if flushed <= self.flushed:
            return False
        self.flushed = flushed
        return True
