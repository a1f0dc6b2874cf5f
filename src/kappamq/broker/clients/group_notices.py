"""Members of a consumer group hear that it has changed, each group once, however often it changed meanwhile.

A client may be a member of a thousand groups, and all of them change when it comes or goes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from kappamq.broker.clients.registry import ConsumerGroup, tell_members
from kappamq.net.requests.fair_turns import FairTurns

log = logging.getLogger(__name__)


class GroupNotices:
    def __init__(self, turns: FairTurns, run: Callable[[Coroutine[Any, Any, None]], None]) -> None:
        self._turns = turns
        self._run = run
        self._changed: dict[str, ConsumerGroup] = {}
        self._is_running = False

    def add(self, group: ConsumerGroup) -> None:
        """Tell the members soon: in the next turn, or in one of those behind it if many groups have changed."""
        self._changed[group.name] = group
        if not self._is_running:
            self._is_running = True
            self._run(self._tell_all())

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
            except Exception:  # the other groups must hear all the same
                log.exception(
                    "members of group %s were not told of a change; they notice it within 20 s by themselves", name
                )
            yield
