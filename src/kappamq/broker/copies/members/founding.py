"""How a member starts: with the state on its disk, as a founder of a new group, as a group of one with the log of a single broker,
or as the newcomer of an existing group."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Sequence
from typing import Any

from kappamq.broker.copies.members.member_files import AS_NEW, MemberFiles
from kappamq.broker.copies.members.term_records import find_terms, term_change
from kappamq.config.broker import BrokerConfig
from kappamq.config.copies import CopiesConfig
from kappamq.errors import StoreError
from kappamq.raft import Log, MemberId, Members, Node, RaftSettings, TermRecord, Terms
from kappamq.raft.effects import Ballot
from kappamq.replication.greeting import MemberHello
from kappamq.replication.vote_file import Vote
from kappamq.store.lock import unusable
from kappamq.store.message_store import MessageStore
from kappamq.store.recovery import Recovered

log = logging.getLogger(__name__)


def introduction(
    config: CopiesConfig, broker: BrokerConfig, store: MessageStore, vote: Vote | None, address: str, now_ms: int
) -> MemberHello:
    """This member's greeting to another. `vote`: None before it belongs to the group. `address`: where its clients reach it."""
    return MemberHello(
        cluster=broker.cluster,
        name=broker.name,
        group=config.group or "",
        members=",".join(sorted(config.members)),
        member=config.member or "",
        address=address,
        segment_bytes=store.config.segment_bytes,
        delay_levels=broker.delay_levels,
        term=vote.ballot.term if vote is not None else 0,
        end=store.log.end,
        group_id=vote.group_id if vote is not None else "",
        incarnation=vote.member.incarnation if vote is not None else 0,
        broker_id=broker.broker_id or config.member_id,
        place=config.members.get(config.member or "", ""),
        now_ms=now_ms,
        hears_clocks=1,
    )


def first_vote(config: CopiesConfig, others: Sequence[MemberHello | None]) -> Vote | None:
    """Return the initial vote of a member without state, once it knows enough of the `others` (None: not heard of yet). If all are new,
    the group is founded; if it exists, this one replaces a lost member, under another incarnation, and waits to be admitted."""
    assert config.member is not None
    known = next((hello for hello in others if hello is not None and not hello.is_new), None)
    if known is not None:
        group_id, member = known.group_id, _new_member(config.member)
        log.warning(
            "raft: this member is new in an existing group: it joins as %s and is seeded with everything", member
        )
    elif all(hello is not None for hello in others):
        group_id, member = f"{config.group}:{','.join(sorted(config.members))}", MemberId(config.member, 1)
        log.info("raft: all members of group %s are new: starting the group", config.group)
    else:
        return None
    return Vote(counter=1, ballot=Ballot(0, None), member=member, group_id=group_id)


def demand_no_log(config: CopiesConfig, store: MessageStore, files: MemberFiles) -> None:
    """Raise StoreError if a new member of a group of several has messages."""
    me = config.member or ""
    if store.log.end:
        raise StoreError(
            f"{store.config.root} holds messages that no Raft group has written ({files.vote_path.name} is missing). To make a group of "
            f"it, start it with dLegerPeers={me}-{config.members[me]} alone, and add the others with `kappamq member add`. To have it "
            f"join a group that exists, start it with an empty data directory"
        )


def vote_alone(
    config: CopiesConfig, store: MessageStore, files: MemberFiles, found: Recovered
) -> tuple[Vote, dict[str, Any]]:
    """Return the initial vote of a group of one, and the change that must be on disk before it. Existing bytes keep
    their term: 0, or the terms of a group that this log was in once. Raises StoreError if this log cannot be trusted."""
    assert config.member is not None
    root, loaded = store.config.root, files.load_terms()
    if loaded is not None and loaded[0].records:
        raise StoreError(
            f"{root} belongs to a member of a Raft group ({files.terms_path.name} is there), but {files.vote_path.name} is missing: it "
            f"does not know what it has promised. {AS_NEW}. To found a new group with this log, for good, delete {files.terms_path.name}"
        )
    if found.damage:
        start, end = found.damage[0]
        raise StoreError(
            f"the log in {root} is damaged from {start} to {end}: a group does not begin with it. Start it as a broker of its own; or "
            f"look at it with `kappamq store verify`"
        )
    terms = Terms(TermRecord(0, 0, Members()))
    find_terms(store, terms)
    me, term, end = _new_member(config.member), terms.last.term + 1, store.log.end
    group_id = f"{config.group}:{me.name}#{me.incarnation}"
    log.warning(
        "raft: %s starts group %s with its log up to %d; add members with `kappamq member add`", me, config.group, end
    )
    change = term_change(term, me, Members(frozenset({me})), group_id, end)
    return Vote(counter=1, ballot=Ballot(term, me), member=me, group_id=group_id), change


def _new_member(name: str) -> MemberId:
    return MemberId(name, time.time_ns() // 1_000_000)


def node_at_start(config: CopiesConfig, store: MessageStore, files: MemberFiles, vote: Vote, now: float) -> Node:
    """Return the node of a member that belongs to the group, for the first time or again. Raises StoreError if its log is not the one it
    left."""
    if vote.member.name != config.member:
        raise StoreError(
            f"{store.config.root} belongs to member {vote.member.name}, this broker is member {config.member} (dLegerSelfId)"
        )
    end = store.log.end
    loaded = files.load_terms()
    terms = loaded[0] if loaded is not None else Terms(TermRecord(0, 0, _founders(config, vote)))
    noted = len({record.term for record in terms.records})
    read = (terms.base, terms.records)
    terms.cut(max(end, terms.base.start))
    if noted > 1 and not terms.records and end <= terms.base.start:
        # One term's record may have been cut again; of several, all but the last were confirmed.
        raise StoreError(
            f"{store.config.root} has lost its log: {noted} terms are noted, and nothing is left of them. {AS_NEW}"
        )
    find_terms(store, terms)
    terms.trim(store.log.min)
    if loaded is not None and read != (terms.base, terms.records):
        try:
            files.save_terms(terms, vote.group_id)
        except OSError as error:
            raise unusable(files.terms_path, error) from error
    try:
        # Only confirmed bytes were ever deleted: this holds also if a power cut has restored the deleted files.
        known = max(store.marks.confirmed.offset, terms.base.start)
        logged = Log(terms, end, min(known, end))
        settings = RaftSettings(append_bytes_max=config.append_bytes_max)
        return Node(vote.member, vote.ballot, logged, now=now, dice=random.random, settings=settings)
    except ValueError as error:
        raise StoreError(f"{store.config.root} is not what this member has left: {error}. {AS_NEW}") from None


def _founders(config: CopiesConfig, vote: Vote) -> Members:
    """Return the members of a new group. A later one is in no list until the leader admits it."""
    if vote.member.incarnation != 1:
        return Members()
    return Members(frozenset(MemberId(name, 1) for name in config.members))
