"""Consensus over a log of bytes, as a function: message in, time in, effects out.

This package imports nothing of ours and knows no sockets, files, clocks or records. The position of an entry is its log offset, and all
the core knows about the bytes is which term wrote them (`terms.py`); `node.py` explains why this is enough. Used by `replication`, `sim`.

**What the driver does.** It creates one `Node` each time its process starts, calls one of its methods for each event, and carries out
the effects that come back, in order, before the next event. If it calls a method while it carries out effects (`sent`,
`record_appended`), the new effects are queued behind the remaining ones.

| effect | what to do | then call |
|---|---|---|
| `Persist` | save the ballot (fdatasync) before any later effect; make **no call until then**: queue messages and ticks | |
| `Send` | hand it to the connection, or drop it. In order per peer, also behind a `Replicate` that is still being read | |
| `Replicate` | end it at or before `wanted`, hand it and its bytes to the connection; whole groups of records, at least one | `sent` |
| `Write` | write the bytes that came with the current `Append` at the log's end (page cache) | `flushed` later |
| `AppendRecord` | write a term record (term, this node, members, group id, the log's end) at the log's end | `record_appended` at once |
| `Cut` | start it; start no flush until it is durable. After a crash the log has its old tail or its new end | `cut_done` |
| `Confirmed` | answer waiters, show the bytes; save it only up to what our own disk has: a leader's disk may be behind | |
| `RoleChanged` | from leader: empty the append buffer, tell waiters that the outcome is unknown. To leader: serve nothing yet | |
| `LeaderReady` | accept writes | `appended` after each write |
| `HoldAppends` | make users' appends wait, or resume them; a role change ends the hold, too | |
| `Seed` | give the member snapshots and an empty log that begins where ours does (base: its term and members) | it sends its position |

Flushes run in parallel with all of this. One fdatasync runs at a time; it covers what was written when it started, and is reported as
`flushed(offset, generation)`, where the generation is that of the last `Cut` that had been started (0 before the first). On a leader it
runs in parallel with the followers' disks. Call `appended` before any other method, so that the node always knows the whole log.
Only a leader appends bytes; a follower receives them only through `Write`.

**Broken invariants.** An AssertionError from a node means that an invariant is broken (two leaders in a term, a cut below `confirmed`):
the driver stops this member, reports it, and does not call the node again. The node assumes that every message comes from a member;
the driver must check who sent it. An `Append` whose term records cannot follow ours is dropped.

**What the driver must do at a start.** It fsyncs the log it found before it creates a `Node`: the node counts all of it as flushed. `Terms`
come from their file or from the log's term records. `confirmed` may be lower than it was before. The ballot is that of this member *and
incarnation*. The driver chooses a new, larger incarnation with the ballot (0, None) when the ballot or the log is lost, when the log is
damaged below `confirmed` or of a later term than the ballot, and when another broker has written to the log. Such a member is not in the
list of voters: it does not stand for election and is not asked for its vote until a leader has added it as a learner and it has caught
up. To found a new group, give all its voters the same base (`Members` with their incarnations) and logs that are empty or, for a single
voter, its own; the driver ensures that all of them are new.

**What is not supported.** Changing more than one voter at a time; permanent learners; lease reads; a group that has lost a majority of
its disks (it stops); a leader that removes itself (transfer first).
"""

from kappamq.raft.effects import (
    AppendRecord,
    Ballot,
    Confirmed,
    Cut,
    Effect,
    HoldAppends,
    LeaderReady,
    Persist,
    Replicate,
    Role,
    RoleChanged,
    Seed,
    Send,
    Write,
)
from kappamq.raft.leadership import Refused
from kappamq.raft.log import Log
from kappamq.raft.members import MemberId, Members
from kappamq.raft.messages import Append, Message
from kappamq.raft.node import Node
from kappamq.raft.settings import RaftSettings
from kappamq.raft.terms import TermRecord, Terms

__all__ = [
    "Append",
    "AppendRecord",
    "Ballot",
    "Confirmed",
    "Cut",
    "Effect",
    "HoldAppends",
    "LeaderReady",
    "Log",
    "MemberId",
    "Members",
    "Message",
    "Node",
    "Persist",
    "RaftSettings",
    "Refused",
    "Replicate",
    "Role",
    "RoleChanged",
    "Seed",
    "Send",
    "TermRecord",
    "Terms",
    "Write",
]
