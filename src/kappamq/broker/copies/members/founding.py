"""How a member begins: with what it finds on its disk, as a founder of a new group, or as the newcomer of one that exists."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Sequence

from kappamq.broker.copies.members.member_files import AS_NEW, MemberFiles
from kappamq.broker.copies.members.term_records import find_terms
from kappamq.config.copies import CopiesConfig
from kappamq.errors import StoreError
from kappamq.raft import Log, MemberId, Members, Node, TermRecord, Terms
from kappamq.raft.effects import Ballot
from kappamq.replication.greeting import MemberHello
from kappamq.replication.vote_file import Vote
from kappamq.store.message_store import MessageStore

log = logging.getLogger(__name__)


def first_vote(config: CopiesConfig, others: Sequence[MemberHello | None]) -> Vote | None:
    """What a member without a past may promise, once it knows enough of the `others` (None: not heard of yet). If all are new, the
    group begins; if it exists, this one takes the place of one that is gone, under another incarnation, and waits to be taken in."""
    assert config.member is not None
    known = next((hello for hello in others if hello is not None and not hello.is_new), None)
    if known is not None:
        group_id, member = known.group_id, MemberId(config.member, time.time_ns() // 1_000_000)
        log.warning("raft: the group exists, and this member is new in it: it joins as %s and gets everything", member)
    elif all(hello is not None for hello in others):
        group_id, member = f"{config.group}:{','.join(sorted(config.members))}", MemberId(config.member, 1)
        log.info("raft: all members of group %s are new: the group begins", config.group)
    else:
        return None
    return Vote(counter=1, ballot=Ballot(0, None), member=member, group_id=group_id)


def node_at_start(config: CopiesConfig, store: MessageStore, files: MemberFiles, vote: Vote, now: float) -> Node:
    """The node of a member that belongs to the group, for the first time or again. Raises StoreError if its log is not what it has left."""
    if vote.member.name != config.member:
        raise StoreError(
            f"{store.config.root} belongs to member {vote.member.name}, this broker is member {config.member} (dLegerSelfId)"
        )
    end = store.log.end
    loaded = files.load_terms()
    terms = loaded[0] if loaded is not None else Terms(TermRecord(0, 0, _founders(config, vote)))
    noted = len({record.term for record in terms.records})
    terms.cut(max(end, terms.base.start))
    if noted > 1 and not terms.records and end <= terms.base.start:
        # One term's record may have been cut again; of several, all but the last were confirmed.
        raise StoreError(
            f"{store.config.root} has lost its log: {noted} terms are noted, and nothing is left of them. {AS_NEW}"
        )
    find_terms(store, terms)
    terms.trim(store.log.min)
    try:
        # Only what is confirmed was ever deleted: that counts also if a power cut has brought the deleted files back.
        known = max(store.marks.confirmed.offset, terms.base.start)
        logged = Log(terms, end, min(known, end))
        return Node(vote.member, vote.ballot, logged, now=now, dice=random.random)
    except ValueError as error:
        raise StoreError(f"{store.config.root} is not what this member has left: {error}. {AS_NEW}") from None


def _founders(config: CopiesConfig, vote: Vote) -> Members:
    """The members of a group that begins. One that comes later is in no list until the leader takes it in."""
    if vote.member.incarnation != 1:
        return Members()
    return Members(frozenset(MemberId(name, 1) for name in config.members))
