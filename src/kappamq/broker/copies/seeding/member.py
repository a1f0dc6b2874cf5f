"""Seeding in a Raft group: members whose log cannot be continued, the terms of a log that begins later, files kept for members."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kappamq.broker.copies.seeding.asking import Seeding
from kappamq.config.copies import CopiesConfig
from kappamq.raft import Message, Node, Terms
from kappamq.raft.messages import PreVote, TimeoutNow, Vote
from kappamq.replication import terms_file
from kappamq.store.message_store import MessageStore

_ELECTING: Final = (PreVote, Vote, TimeoutNow)


class MemberSeeding:
    def __init__(
        self,
        store: MessageStore,
        config: CopiesConfig,
        seeding: Seeding,
        too_far_behind: Callable[[str, str], None],
        place_of: Callable[[str], str | None],
        node: Callable[[], Node | None],
        group_id: Callable[[], str],
        is_connected: Callable[[str], bool],
    ) -> None:
        """`too_far_behind`: called with the leader's address and the reason, if our log cannot be continued. `is_connected`: whether
        that member is connected."""
        self._config = config
        self._store = store
        self._seeding = seeding
        self._too_far_behind = too_far_behind
        self._place_of = place_of
        self._node = node
        self._group_id = group_id
        self._is_connected = is_connected

    # -- this member may have only a part of the log -----------------------------------------------------------------------

    @property
    def is_pending(self) -> bool:
        return self._seeding.is_pending

    def demand_whole(self) -> None:
        """Raise StoreError if a group cannot begin with this member's store."""
        self._seeding.demand_whole()

    def ignores(self, message: Message) -> bool:
        """A member with only a part of the log neither votes nor stands for election."""
        return self.is_pending and isinstance(message, _ELECTING)

    def cannot_go_on(self, leader: str) -> None:
        """That member reports that it no longer has the bytes that would continue our log."""
        node = self._node()
        if node is not None and node.leader is not None and node.leader.name == leader:
            self._too_far_behind(
                self._place_of(leader) or "",
                f"its log ends at {self._store.log.end}, and the log of the leader ({leader}) begins behind that",
            )

    # -- others ------------------------------------------------------------------------------------------------------------

    def terms_at(self, begin: int) -> str:
        """Return the term and the members before a log that begins there."""
        node = self._node()
        assert node is not None
        terms = Terms(node.log.terms.base, node.log.terms.records)
        terms.trim(begin)
        return terms_file.encode(Terms(terms.base), self._group_id()).decode()

    @property
    def needed_from(self) -> int:
        """Log files from here on are kept for members that are connected and do not have them yet, up to a limit."""
        node, end = self._node(), self._store.log.end
        leadership = node.leadership if node is not None else None
        if leadership is None:
            return end
        held = [
            progress.flushed
            for member, progress in leadership.peers.items()
            if progress.streaming and self._is_connected(member.name)
        ]
        return max(min(held, default=end), end - self._config.keep_bytes_max)

    async def renew_below(self, log_min: int) -> None:
        """Log files that members need cannot be replaced by copies at the log's end: they stay."""
