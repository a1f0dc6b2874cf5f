"""What a leader knows of one other member."""

from __future__ import annotations

from kappamq.raft.members import MemberId


class Progress:
    """A stream begins where the two logs are known to agree, and is numbered, so that reports of an earlier one do not fill its window.

    `flushed` outlives streams: what a member of this incarnation has on disk of our log stays there for as long as we lead."""

    __slots__ = ("flushed", "heard", "member", "reading", "sent", "stream", "streaming")

    def __init__(self, member: MemberId, now: float) -> None:
        self.member = member
        self.heard = now
        self.stream = 0
        self.streaming = False
        self.sent = 0  # in this stream; before it, what the two logs have in common
        self.reading = False  # a `Replicate` is under way
        self.flushed = 0

    def begin_stream(self, common: int, flushed: int, heard_of: int = 0) -> None:
        """The member's log ends at `common`, and is ours up to there. `heard_of`: the last stream it knows, also of a time when it was
        removed and added again."""
        self.stream = max(self.stream, heard_of) + 1
        self.streaming, self.reading = True, False
        self.sent = common
        self.flushed = max(self.flushed, min(flushed, common))

    def is_answered(self, stream: int) -> bool:
        """Whether a position that was told by who had heard of `stream` is answered by a stream that began since. To begin another one for
        it would be to send everything again, and again for whatever that one makes the member say. If what has begun never
        arrives, the next beat names it, and the member asks once more."""
        return self.streaming and stream < self.stream

    def end_stream(self) -> None:
        self.streaming = self.reading = False

    def was_sent(self, stream: int, end: int) -> bool:
        """Whether the `Replicate` of this stream was meant."""
        if stream != self.stream or not self.reading:
            return False
        assert end > self.sent, f"nothing was sent to {self.member}: {self.sent} to {end}"
        self.sent, self.reading = end, False
        return True

    def was_reported(self, stream: int, flushed: int) -> bool:
        """Whether more is on the member's disk than before. What was not sent to it in this stream it cannot have of us."""
        if stream != self.stream or not self.streaming:
            return False
        flushed = min(flushed, self.sent)
        if flushed <= self.flushed:
            return False
        self.flushed = flushed
        return True
