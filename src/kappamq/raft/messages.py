"""What members say to each other. Plain values: the framing, and the bytes behind an `Append`, are the driver's.

Each is from one member to one member, incarnations included, and names the sender's term; a node drops what is meant for another
incarnation of itself. The network may lose, repeat, delay and reorder all of them.
"""

from __future__ import annotations

from typing import NamedTuple

from kappamq.raft.members import MemberId
from kappamq.raft.terms import TermRecord


class PreVote(NamedTuple):
    """Would you vote for me in `term`, which is not mine yet? Asked first, so that a member that cannot win disturbs nobody."""

    source: MemberId
    target: MemberId
    term: int
    last_term: int  # of the last byte of my log
    end: int  # of my log


class PreVoteAnswer(NamedTuple):
    source: MemberId
    target: MemberId
    term: int  # granted: as asked; else the term of who refuses
    granted: bool


class Vote(NamedTuple):
    """Vote for me. `forced`: the leader itself wants it, so that it lives does not count."""

    source: MemberId
    target: MemberId
    term: int
    last_term: int
    end: int
    forced: bool


class VoteAnswer(NamedTuple):
    source: MemberId
    target: MemberId
    term: int
    granted: bool


class Beat(NamedTuple):
    """I lead, and I have sent you everything up to `sent` in the stream `stream` (0: there is none, tell me your position)."""

    source: MemberId
    target: MemberId
    term: int
    stream: int
    sent: int
    confirmed: int


class Position(NamedTuple):
    """My log ends at `end`, after bytes of `last_term`. Begin a stream there, or tell me where we part. `stream`: the last one that I
    have heard of."""

    source: MemberId
    target: MemberId
    term: int
    last_term: int
    end: int
    flushed: int
    stream: int = 0


class Diverged(NamedTuple):
    """The answer to a position (`last_term`, `end`) that my log does not contain: of the terms up to yours I have `point_term` as the
    last one, and it ends at `point_end`."""

    source: MemberId
    target: MemberId
    term: int
    last_term: int
    end: int
    point_term: int
    point_end: int


class Append(NamedTuple):
    """The bytes [start, end) of my log come behind this; the byte before them is of `before_term`, and `records` begin in them.

    With start == end there are none: it only says that our logs agree up to here. The sender may end it earlier (`ending`), and
    never later: of what lies behind its end it knows no term records."""

    source: MemberId
    target: MemberId
    term: int
    stream: int
    start: int
    end: int
    before_term: int
    records: tuple[TermRecord, ...]
    confirmed: int

    def ending(self, end: int) -> Append:
        """The same with an earlier end."""
        assert self.start <= end <= self.end, f"[{self.start}, {self.end}) cannot end at {end}"
        if end == self.end:
            return self
        return self._replace(end=end, records=tuple(record for record in self.records if record.start < end))


class Report(NamedTuple):
    """My log ends at `written` and is on disk up to `flushed`. `stream`: the one whose bytes I have taken last (0: none, it counts for
    nothing but a sign of life). With a term above yours: you are no leader any more."""

    source: MemberId
    target: MemberId
    term: int
    stream: int
    written: int
    flushed: int


class TimeoutNow(NamedTuple):
    """You have all that I have: stand for election now, I want you to lead."""

    source: MemberId
    target: MemberId
    term: int


class Join(NamedTuple):
    """You speak to one that is gone; in its place there is me, who may not vote. Take me as a learner. Its term is 0: none."""

    source: MemberId
    target: MemberId
    term: int


Message = PreVote | PreVoteAnswer | Vote | VoteAnswer | Beat | Position | Diverged | Append | Report | TimeoutNow | Join
