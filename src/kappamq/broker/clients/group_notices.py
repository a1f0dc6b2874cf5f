"""Notifies the members of a consumer group that it has changed: once per group, however often it changed meanwhile.

A client may be a member of a thousand groups, and all of them change when it joins or leaves.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from kappamq.broker.clients.registry import ConsumerGroup, tell_members
from kappamq.broker.events import MembersChanged
from kappamq.config.broker import BrokerConfig
from kappamq.net.requests.fair_turns import FairTurns
from kappamq.state.groups import Groups

log = logging.getLogger(__name__)


class GroupNotices:
    def __init__(
        self,
        config: BrokerConfig,
        groups: Groups,
        turns: FairTurns,
        run: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._config = config
        self._groups = groups
        self._turns = turns
        self._run = run
        self._changed: dict[str, ConsumerGroup] = {}
        self._is_running = False

    def members_changed(self, event: MembersChanged) -> None:
        """Notify the members soon: in the next turn, or in a later one if many groups have changed."""
        group = event.group
        if not self._may_tell(group.name):
            return
        self._changed[group.name] = group
        if not self._is_running:
            self._is_running = True
            self._run(self._tell_all())

    def _may_tell(self, group: str) -> bool:
        known = self._groups.table.get(group)
        return self._config.notify_consumer_changes and (known is None or known.notify_changed_enable)

    async def _tell_all(self) -> None:
        try:
            await self._turns.run(self._tell())
        finally:
            self._is_running = False

    def _tell(self) -> Iterator[None]:
        while self._changed:
            name = next(iter(self._changed))
            group = self._changed.pop(name)
            try:
                tell_members(group)
            except Exception:  # the other groups must be notified all the same
                log.exception(
                    "could not notify members of group %s of a change; they notice it by themselves within 20 s", name
                )
            yield
