"""Seeding in a Raft group: members whose log cannot be continued, the terms of a log that begins later, files kept for members."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from kappamq.broker.copies.seeding.asking import Seeding
from kappamq.config.copies import CopiesConfig
from kappamq.errors import KappaError
from kappamq.raft import Message, Node, Terms
from kappamq.raft.messages import PreVote, TimeoutNow, Vote
from kappamq.replication import terms_file
from kappamq.store.message_store import MessageStore

log = logging.getLogger(__name__)

_ELECTING: Final = (PreVote, Vote, TimeoutNow)
_LOOK_AGAIN_S: Final = 2.0


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
        self._looking: asyncio.Task[None] | None = None
        self._look_again = 0.0

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
        if self._leads(leader):
            self._look(leader, self._judge)

    def _leads(self, name: str) -> bool:
        node = self._node()
        return node is not None and node.leader is not None and node.leader.name == name

    def leader_begins_at(self, log_min: int, leader: str, delete_below: Callable[[int], None]) -> None:
        """That member reports where its log begins. `delete_below` gets where it really begins, if that lets files of ours go."""
        now = asyncio.get_running_loop().time()
        if log_min >= self._store.log.min + self._store.config.segment_bytes and now >= self._look_again:
            self._look_again = now + _LOOK_AGAIN_S  # each beat reports it, and files may be needed here for longer
            self._look(leader, lambda _leader, begin: delete_below(begin))

    def _look(self, leader: str, then: Callable[[str, int], None]) -> None:
        """Ask the leader at its known address: a report that costs data is not believed by itself."""
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._ask(leader, then))

    async def _ask(self, leader: str, then: Callable[[str, int], None]) -> None:
        place = self._place_of(leader)
        if place is None:
            return
        try:
            begin = await self._seeding.leader_begins(place)
        except (KappaError, OSError, EOFError, TimeoutError) as error:
            log.info("raft: %s cannot be asked where its log begins: %s", leader, error)
            return  # it says so again
        if self._leads(leader):
            then(leader, begin)

    def _judge(self, leader: str, begin: int) -> None:
        """Up to `confirmed` our log is the leader's: unless its log begins above that, we can continue."""
        if begin > self._store.marks.confirmed.offset:
            self._too_far_behind(
                self._place_of(leader) or "",
                f"its log ends at {self._store.log.end}, and the log of the leader ({leader}) begins at {begin}",
            )

    async def stop(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)

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
