"""Consensus over a log of bytes, as a function: message in, time in, effects out.

Imports nothing of ours, knows no socket, file, clock or record: an entry's position is its log offset, and all that is known of the
bytes is which term wrote them (`terms.py`). `node.py` explains why that is enough. Used by whoever replicates a log, and by `sim/`.

**What the driver does.** It makes one `Node` per life of its process, calls a method of it for each event, and does the effects that
come back, in order, before the next event. A call that is made while effects are being done (`sent`, `record_appended`) puts its own
behind those that are left.

| effect | done when | then |
|---|---|---|
| `Persist` | the ballot is on disk (fdatasync). Nothing behind it before, and **no call into the node until then**: keep messages and ticks | go on |
| `Send` | handed to the connection, or dropped if there is none. In order per peer, also behind a `Replicate` that is still read | |
| `Replicate` | message and bytes are handed to the connection: at once from memory, or from a worker. Ended at a whole group of records | `sent`, once, at any time |
| `Write` | the bytes behind the `Append` that is being handled are written (page cache) at the log's end | later `flushed` |
| `AppendRecord` | a term record (term, this node, members, group id) is written at the log's end | `record_appended` at once, `flushed` later |
| `Cut` | begun. Order and crash safety are the store's: after a crash at any point the log has its old tail or its new end | `cut_done` when durable |
| `Confirmed` | waiters are answered, bytes shown. Persist of it only what is flushed here: the leader's disk may be later than its followers' | |
| `RoleChanged` | away from leader: the append buffer is empty, and waiters hear that it is not known. To leader: nothing is served yet | |
| `LeaderReady` | writes are served | `appended` after each write, before any other call |
| `HoldAppends` | users' appends wait; a role change ends it | |
| `Seed` | the member is given snapshots and an empty log that begins at ours (base: its term and members), once | it says its position |

Flushing runs beside all of this: one fdatasync at a time covers what was written when it began, and comes back as
`flushed(offset, generation)` with the generation that the log had then. On a leader it runs in parallel with the followers' disks.
Bytes are appended by a leader only, and received by a follower only through `Write`.

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
