"""The effects a node asks for. The package's docstring says how to carry them out, in which order, and what to call afterwards."""

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
    """What a node has promised: it is in `term`, and has voted for nobody but `voted_for` in that term."""

    term: int
    voted_for: MemberId | None


class Persist(NamedTuple):
    """Make the ballot durable. Carry out no later effect before that, and call no method of the node meanwhile."""

    ballot: Ballot


class Send(NamedTuple):
    """Send the message to its target if it is connected; otherwise drop it."""

    message: Message


class Replicate(NamedTuple):
    """Send the part of `append` below `wanted`, with its bytes: up to the end of the last whole group of records that ends at or
    before `wanted`, or of the first group if that is longer (`Append.ending`). Then call `sent`, which may be much later.

    `append` extends to the present end of the log and has all its term records, so none is missing whichever end is chosen."""

    append: Append
    wanted: int


class Write(NamedTuple):
    """Write the bytes of the `Append` that is being handled at the log's end, which is `start`. Then flush and call `flushed`."""

    start: int
    end: int
    records: tuple[TermRecord, ...]


class AppendRecord(NamedTuple):
    """Append a term record as the leader, and call `record_appended`."""

    term: int
    members: Members


class Cut(NamedTuple):
    """Truncate the log to `offset`, durably; flushes from now on belong to `generation`. Then call `cut_done`."""

    offset: int
    generation: int


class Confirmed(NamedTuple):
    """The failure of a minority cannot lose the bytes below `offset`: they may be acknowledged, shown and dispatched."""

    offset: int


class RoleChanged(NamedTuple):
    """`leader`: where to redirect clients, if a leader is known."""

    role: Role
    term: int
    leader: MemberId | None


class LeaderReady(NamedTuple):
    """The term record and everything before it are confirmed: the leader may accept writes."""

    term: int


class HoldAppends(NamedTuple):
    """The leadership is being transferred: append nothing while `holding`, so that the successor can catch up."""

    holding: bool


class Seed(NamedTuple):
    """`member` needs bytes that are deleted here: it must get snapshots and a log that begins where ours does."""

    member: MemberId


Effect = (
    Persist | Send | Replicate | Write | AppendRecord | Cut | Confirmed | RoleChanged | LeaderReady | HoldAppends | Seed
)
