"""What a node wants done. The package's docstring says in which order, and what the driver owes afterwards."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from kappamq.raft.members import MemberId, Members
from kappamq.raft.messages import Append, Message
from kappamq.raft.terms import TermRecord


class Role(StrEnum):
    FOLLOWER = "follower"
    CANDIDATE = "candidate"
    LEADER = "leader"


class Ballot(NamedTuple):
    """What a node has promised: it is in `term`, and in it has voted for nobody but `voted_for`."""

    term: int
    voted_for: MemberId | None


class Persist(NamedTuple):
    """Make the ballot durable. Nothing behind it may be done before, and the node may be told nothing meanwhile."""

    ballot: Ballot


class Send(NamedTuple):
    """Give the message to its target if there is a connection; else drop it."""

    message: Message


class Replicate(NamedTuple):
    """Send what of `append` fits into `wanted`, and the bytes it names: up to the end of the last whole group of records that ends at
    `wanted` or before, or of the first one if that is longer (`Append.ending`). Then call `sent`, also much later.

    `append` goes up to the end of the log as it is now, with all term records: whichever end is chosen, none of them is missing."""

    append: Append
    wanted: int


class Write(NamedTuple):
    """Write the bytes of the `Append` that has just been handed in at the log's end, which is `start`. Then flush, call `flushed`."""

    start: int
    end: int
    records: tuple[TermRecord, ...]


class AppendRecord(NamedTuple):
    """Append a term record as the leader, and call `record_appended`."""

    term: int
    members: Members


class Cut(NamedTuple):
    """Shorten the log to `offset`, durably; from now on flushes are of `generation`. Then call `cut_done`."""

    offset: int
    generation: int


class Confirmed(NamedTuple):
    """No failure of a minority can take back what lies below `offset`: it may be answered, shown and dispatched."""

    offset: int


class RoleChanged(NamedTuple):
    """`leader`: whom to send clients to, if anybody."""

    role: Role
    term: int
    leader: MemberId | None


class LeaderReady(NamedTuple):
    """The term record is confirmed, and with it everything before it: what writes may be served."""

    term: int


class HoldAppends(NamedTuple):
    """The leadership is being transferred: append nothing while `holding`, so that the successor can catch up."""

    holding: bool


class Seed(NamedTuple):
    """`member` needs bytes that are deleted here: it must be given snapshots, and a log that begins at our minimum."""

    member: MemberId


Effect = (
    Persist | Send | Replicate | Write | AppendRecord | Cut | Confirmed | RoleChanged | LeaderReady | HoldAppends | Seed
)
