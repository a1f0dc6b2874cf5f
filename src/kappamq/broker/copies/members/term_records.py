"""Term records in the log: metadata records of the kind `term`, which every broker stores and only members of a Raft group read."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from kappamq.broker.sending.log_writer import LogWriter
from kappamq.errors import ProtocolError, StoreError
from kappamq.protocol.names import METADATA_TOPIC
from kappamq.protocol.records.record import Record, decode, iter_records
from kappamq.raft import MemberId, Members, TermRecord, Terms
from kappamq.replication.vote_file import member_from
from kappamq.state.metadata import Metadata
from kappamq.store.message_store import MessageStore

log = logging.getLogger(__name__)

TERM_KIND: Final = "term"


def term_change(term: int, leader: MemberId, members: Members, group_id: str, begin: int) -> dict[str, Any]:
    """`begin`: where the log ended. An end mark between it and the record was written for the record, in the same term."""
    return {
        "term": term,
        "from": begin,
        "leader": list(leader),
        "voters": [list(member) for member in sorted(members.voters)],
        "learners": [list(member) for member in sorted(members.learners)],
        "group": group_id,
    }


def append_term(store: MessageStore, writer: LogWriter, metadata: Metadata, change: dict[str, Any], now_ms: int) -> int:
    """Write a term record, even if the gate refuses other records; returns where it ends. Raises StoreError."""
    now_ms = max(now_ms, store.last_ms)
    member = metadata.member(TERM_KIND, change, now_ms)
    try:
        start, _number, size = store.append(member, now_ms)
    except store.kernel_module.SegmentFull:
        if not writer.make_room():
            raise StoreError("there is no room for the record of a new term") from None
        # The end mark is ours, too: if it counted to the previous term, its bytes would differ from what that leader wrote there.
        start, _number, size = store.append(member, now_ms)
    writer.end_turn(now_ms)
    return start + size


def find_terms(store: MessageStore, terms: Terms) -> None:
    """Add the term records of the log after the last one in `terms`: the file of terms may be older than the log."""
    known = terms.last.start if terms.records else terms.base.start - 1
    found = [record for record in _in_queue(store, known) if record is not None]
    found += _behind(store, max(known + 1, store.marks.dispatched.offset))
    for record in sorted(found, key=lambda record: record.start):
        if record.start > known:
            terms.append(record)
            known = record.start


def _in_queue(store: MessageStore, known: int) -> Iterator[TermRecord | None]:
    first, end, _next, _stored = store.queue_state(METADATA_TOPIC, 0)
    for number in range(end - 1, first - 1, -1):
        entry = store.entry(METADATA_TOPIC, 0, number)
        if entry is None:
            continue
        if entry[0] <= known:
            return
        data = store.record(entry[0])
        if data is not None:
            yield _term_of(decode(data))


def _behind(store: MessageStore, start: int) -> list[TermRecord]:
    """Return those that are not in a queue yet."""
    found = []
    for _at, piece in store.log.whole_pieces(
        store.kernel_module, max(start, store.marks.dispatched.offset), store.log.end
    ):
        try:
            found += [term for record in iter_records(bytes(piece)) if (term := _term_of(record)) is not None]
        except ProtocolError as error:  # an end mark
            log.debug("no records: %s", error)
    return found


def _term_of(record: Record) -> TermRecord | None:
    if record.topic != METADATA_TOPIC or b'"term"' not in record.body:
        return None
    try:
        content = msgspec.json.decode(record.body)
        if content["kind"] != TERM_KIND:
            return None
        change = content["change"]
        voters, learners = (
            frozenset(member_from(member, side) for member in change[side]) for side in ("voters", "learners")
        )
        begin = int(change.get("from", record.log_offset))
        if not 0 <= begin <= record.log_offset:
            raise ValueError(f"it begins at {begin}")
        return TermRecord(begin, int(change["term"]), Members(voters, learners))
    except (msgspec.DecodeError, LookupError, TypeError, ValueError) as error:
        log.warning("the term record at %d is malformed: %s", record.log_offset, error)
        return None
