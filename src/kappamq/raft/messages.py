"""The messages between members. Plain values: framing, and the bytes that follow an `Append`, are the driver's task.

A message goes from one member to one other, with their incarnations, and names the sender's term; a node drops a message for another
incarnation of itself. The network may lose, duplicate, delay and reorder all of them.
"""

from __future__ import annotations

from typing import NamedTuple

from kappamq.raft.members import MemberId
from kappamq.raft.terms import TermRecord


class PreVote(NamedTuple):
    """Would you vote for me in `term`, which I have not entered yet? Asked first, so that a member that cannot win disturbs nobody."""

    source: MemberId
    target: MemberId
    term: int
    last_term: int  # of the last byte of my log
    end: int  # of my log


class PreVoteAnswer(NamedTuple):
    source: MemberId
    target: MemberId
    term: int  # granted: the term asked about; refused: the term of the refusing member
    granted: bool


class Vote(NamedTuple):
    """Vote for me. `forced`: the leader itself asked for this election, so grant it although the leader is alive."""

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
    """I lead, and I have sent you everything up to `sent` in the stream `stream` (0: there is no stream, tell me your position)."""

    source: MemberId
    target: MemberId
    term: int
    stream: int
    sent: int
    confirmed: int


class Position(NamedTuple):
    """My log ends at `end`, after bytes of `last_term`. Begin a stream there, or tell me where our logs diverge. `stream`: the last one
    that I know of."""

    source: MemberId
    target: MemberId
    term: int
    last_term: int
    end: int
    flushed: int
    stream: int = 0


class Diverged(NamedTuple):
    """The answer to a position (`last_term`, `end`) that my log does not contain: `point_term` is the last term up to yours in my log,
    and it ends at `point_end`."""

    source: MemberId
    target: MemberId
    term: int
    last_term: int
    end: int
    point_term: int
    point_end: int


class Append(NamedTuple):
    """The bytes [start, end) of my log follow; the byte before them is of `before_term`, and `records` are the term records in them.

    If start == end there are no bytes: it only says that our logs agree up to here. The sender may end it earlier (`ending`), but
    never later: it does not contain the term records behind its end."""

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
        """Return the same message with an earlier end."""
        assert self.start <= end <= self.end, f"[{self.start}, {self.end}) cannot end at {end}"
        if end == self.end:
            return self
        return self._replace(end=end, records=tuple(record for record in self.records if record.start < end))


class Report(NamedTuple):
    """My log ends at `written` and is on disk up to `flushed`. `stream`: the one whose bytes I took last (0: none, the report is only
    a sign of life). With a term above yours it says that you no longer lead."""

    source: MemberId
    target: MemberId
    term: int
    stream: int
    written: int
    flushed: int


class TimeoutNow(NamedTuple):
    """You have everything that I have: stand for election now, I want you to lead."""

    source: MemberId
    target: MemberId
    term: int


class Join(NamedTuple):
    """The member you wrote to is gone; I have replaced it and may not vote. Add me as a learner. The term is 0: none."""

    source: MemberId
    target: MemberId
    term: int


Message = PreVote | PreVoteAnswer | Vote | VoteAnswer | Beat | Position | Diverged | Append | Report | TimeoutNow | Join
