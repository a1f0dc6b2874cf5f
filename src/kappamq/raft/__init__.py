"""Consensus over a log of bytes, as a function: message in, time in, effects out.

Imports nothing of ours, knows no socket, file, clock or record: an entry's position is its log offset, and all that is known of the
bytes is which term wrote them (`terms.py`). `node.py` explains why that is enough. Used by whoever replicates a log, and by `sim/`.

**What the driver does.** It makes one `Node` per life of its process, calls a method of it for each event, and does the effects that
come back, in order, before the next event. A call that is made while effects are being done (`sent`, `record_appended`) puts its own
behind those that are left.

| effect | what is to be done | and then |
|---|---|---|
| `Persist` | save the ballot (fdatasync); nothing behind it before, and **no call until then**: keep messages and ticks | |
| `Send` | hand it to the connection, or drop it. In order per peer, also behind a `Replicate` that is still being read | |
| `Replicate` | end it at `wanted` or before, hand it and its bytes to the connection; whole groups of records, at least one | `sent` |
| `Write` | write the bytes behind the `Append` that is being handled at the log's end (page cache) | `flushed` later |
| `AppendRecord` | write a term record (term, this node, members, group id, the log's end) at the log's end | `record_appended` at once |
| `Cut` | begin it; no flush begins until it is durable. After a crash the log has its old tail or its new end | `cut_done` |
| `Confirmed` | answer waiters, show bytes; save it only as far as our own disk is: a leader's may be behind | |
| `RoleChanged` | from leader: empty the append buffer, tell waiters that it is not known. To leader: serve nothing yet | |
| `LeaderReady` | serve what writes | `appended` after each write |
| `HoldAppends` | let users' appends wait, or go on; a role change ends it, too | |
| `Seed` | give the member snapshots and an empty log that begins where ours does (base: its term and members) | it says its position |

Flushing runs beside all of this: one fdatasync at a time covers what was written when it began, and comes back as
`flushed(offset, generation)`, with the generation of the last `Cut` that was begun (0 before the first). On a leader it runs in parallel
with the followers' disks. `appended` comes before any other call, so that the node never knows less of the log than there is.
Bytes are appended by a leader only, and received by a follower only through `Write`.

**When something cannot be.** An AssertionError from a node means that an invariant is broken (two leaders in a term, a cut below
`confirmed`): the driver stops this member and says so, and does not call the node again. Messages are taken for those of members: who
may speak is the driver's to check. An `Append` whose term records cannot follow ours is dropped.

**What the driver owes at a start.** What it found in the log is fsynced before a `Node` is made: it counts as flushed. `Terms` come from
their file or from the log's term records. `confirmed` may be less than was once known. The ballot is that of this member *and
incarnation*, and the driver makes a new, larger incarnation with the ballot (0, None) when the ballot or the log is lost, damaged below
`confirmed` or of a later term than the ballot, and when another broker has written to the log. Such a member is in no list of voters, so
it does not stand, and nobody asks for its vote, until a leader has taken it in as a learner and it has caught up. A new group is
founded by giving all its voters the same base (`Members` with their incarnations) and logs that are empty or, for a single voter, its
own; the driver sees to it that all of them are new.

**What is not supported.** More than one voter changed at a time; learners that stay learners; reads from a lease; a group whose majority
has lost its disks (it stands still); a leader that removes itself (transfer first).
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
