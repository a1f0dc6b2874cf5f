"""Bugs planted on purpose in the broker and its store, as `kappamq.sim.mutants` does in the core: each must be found.

A bug is a function that replaces another one while a history runs. The checkers know nothing about the bugs, and none of this is in
the code that runs in production.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, NamedTuple
from unittest.mock import patch

from kappamq.broker.copies.members import founding
from kappamq.broker.copies.members import group as group_module
from kappamq.broker.copies.members.group import Group
from kappamq.broker.copies.members.member_files import MemberFiles
from kappamq.broker.upkeep.topic_files import TopicFiles
from kappamq.broker.upkeep.upkeep import Upkeep
from kappamq.protocol.records.record import iter_records
from kappamq.raft import Append, MemberId, Write
from kappamq.raft.leadership import Leadership
from kappamq.raft.progress import Progress
from kappamq.replication import vote_file
from kappamq.sim.brokers.sim_disk import SimFlusher
from kappamq.state.locks import QueueLocks
from kappamq.state.metadata import Metadata
from kappamq.store.log.commit_log import CommitLog
from kappamq.store.log.marks import RaftGroup
from kappamq.store.message_store import MessageStore


class Mutant(NamedTuple):
    what: str
    places: tuple[tuple[Any, str, Callable[..., Any]], ...]


@contextmanager
def planted(mutant: Mutant) -> Iterator[None]:
    with ExitStack() as stack:
        for owner, name, bug in mutant.places:
            stack.enter_context(patch.object(owner, name, bug))
        yield


# Disks


_written = Group.written


def _leader_counts_written(self: Group, start: int, data: bytes) -> None:
    _written(self, start, data)
    if self.node is not None and self.node.leadership is not None:
        self.flushed(self._store.log.end)


_write = Group._write


def _follower_counts_written(self: Group, effect: Write) -> None:
    _write(self, effect)
    self.flushed(effect.end)


def _saves_vote_unsynced(self: MemberFiles, vote: vote_file.Vote) -> None:
    fd = self._files.open(self.vote_path, create=True)
    for at, data in vote_file.writes(vote):
        self._files.pwrite(fd, data, at)
    self._files.close(fd)


def _cuts_in_memory(self: CommitLog, offset: int) -> None:
    if self._next is not None:
        unused, self._next = self._next, None
        self.discard(unused)
    for start, segment in reversed(list(self._segments.items())):
        if start > offset:
            self._drop(segment)
    self._current = self._segments[offset - offset % self.segment_bytes]
    self.end = offset
    self._kernel.open_segment(offset, self.segment_end)


# Marks


def _shows_written(self: RaftGroup, written: int, flushed: int) -> tuple[int, int, int]:
    confirmed = min(self._confirmed(), written)
    return confirmed, written, min(confirmed, flushed)


_flushed = Group.flushed


def _flushes_each_record(self: Group, offset: int) -> None:
    """Treats a batch like single records."""
    node, store = self.node, self._store
    if node is not None and not node.log.cutting:
        for _at, piece in store.log.whole_pieces(store.kernel_module, node.log.flushed, min(offset, node.log.end)):
            for record in iter_records(bytes(piece)):
                _flushed(self, record.log_offset)
    _flushed(self, offset)


_append = Leadership._append


def _names_wanted_terms(self: Leadership, peer: Progress, end: int) -> Append:
    """Names the term records of the wanted bytes, for bytes that may go further."""
    wanted = min(end, peer.sent + self._settings.append_bytes_max)
    return _append(self, peer, end)._replace(records=self._log.terms.between(peer.sent, wanted))


async def _saves_unconfirmed(self: Upkeep, work: list[Any]) -> set[str]:
    await self._write(self._metadata.save, work)
    return {item[0] for item in work}


def _saves_anything(self: Metadata, work: list[Any]) -> None:
    for name, table, stamp, _life in work:
        self._snapshots.save(name, table() if callable(table) else table, stamp)


async def _forgets_files_at_once(
    self: TopicFiles, name: str, deleted_at: int, gone: asyncio.Future[None], ends: dict[int, int]
) -> None:
    try:
        await self._workers.write(self._store.forget_topic, name)
        self._store.queues.forget_readers(name)
    finally:
        gone.set_result(None)


# Consequences of a cut, a deletion, a change of leaders


class _KeepsNumbers:
    """A kernel that does not rewind."""

    def __init__(self, kernel: Any) -> None:
        self.__dict__["_kernel"] = kernel

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kernel, name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self._kernel, name, value)

    def rewind(self) -> None: ...


_cut = MessageStore.cut


def _cuts_without_numbers(self: MessageStore, offset: int) -> list[Any]:
    kernel, self.kernel = self.kernel, _KeepsNumbers(self.kernel)
    try:
        return _cut(self, offset)
    finally:
        self.kernel = kernel


_delete_with_master = Upkeep.delete_with_master


def _deletes_by_itself(self: Upkeep, log_min: int) -> None:
    _delete_with_master(self, self._store.marks.confirmed.offset)


_begin_locks = QueueLocks.begin


def _forgets_leases(self: QueueLocks, now: float) -> None:
    _begin_locks(self, now)
    for leases in self._groups.values():
        for lease in leases.values():
            lease.renewed = float("-inf")


_first_vote = founding.first_vote


def _comes_back_as_itself(config: Any, others: Any) -> vote_file.Vote | None:
    vote = _first_vote(config, others)
    return None if vote is None else replace(vote, member=MemberId(vote.member.name, 1))


MUTANTS: dict[str, Mutant] = {
    "ack-before-fsync": Mutant(
        "the leader counts what it has not flushed", ((Group, "written", _leader_counts_written),)
    ),
    "reports-written": Mutant(
        "a follower reports what it has not flushed", ((Group, "_write", _follower_counts_written),)
    ),
    "vote-unsynced": Mutant(
        "the vote is not durable when it is given", ((MemberFiles, "save_vote", _saves_vote_unsynced),)
    ),
    "earlier-terms": Mutant(
        "bytes of earlier terms are confirmed by counting",
        ((Leadership, "_is_of_our_term", lambda self, offset: self._begin is not None),),
    ),
    "cut-in-memory": Mutant("a cut is not safe against a crash", ((CommitLog, "cut", _cuts_in_memory),)),
    "old-flush": Mutant(
        "a flush of bytes that were cut off is believed", ((SimFlusher, "cut", lambda self, offset: None),)
    ),
    "shows-written": Mutant("dispatch before confirmed", ((RaftGroup, "follow", _shows_written),)),
    "snapshot-unconfirmed": Mutant(
        "a snapshot of what is not confirmed",
        ((Upkeep, "_save", _saves_unconfirmed), (Metadata, "save", _saves_anything)),
    ),
    "files-go-early": Mutant(
        "queue files of a deleted topic go before that is confirmed",
        ((TopicFiles, "_forget_files", _forgets_files_at_once),),
    ),
    "half-a-batch": Mutant("half of a batch is confirmed", ((Group, "flushed", _flushes_each_record),)),
    "terms-not-named": Mutant(
        "bytes are sent without the term record in them", ((Leadership, "_append", _names_wanted_terms),)
    ),
    "numbers-stay": Mutant("queue numbers are not rewound by a cut", ((MessageStore, "cut", _cuts_without_numbers),)),
    "deletes-ahead": Mutant(
        "a follower deletes log files before its leader", ((Upkeep, "delete_with_master", _deletes_by_itself),)
    ),
    "leases-forgotten": Mutant(
        "a new leader gives away locks of another one", ((QueueLocks, "begin", _forgets_leases),)
    ),
    "wiped-votes": Mutant(
        "a member that has lost its disk votes on", ((group_module, "first_vote", _comes_back_as_itself),)
    ),
}
