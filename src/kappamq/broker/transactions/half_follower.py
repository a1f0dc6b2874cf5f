"""Follows the open transactions on a node that may get the role, so that a role that begins has little to read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

from kappamq.broker.events import Tick
from kappamq.broker.transactions.half_fold import HalfFold
from kappamq.broker.upkeep.slices import Worker

_COUNT: Final = 100
"""Read in one go: a few milliseconds of a thread that keeps the loop from running."""
_REST: Final = 1.0
"""After each such piece it rests so many times as long as that took."""


class HalfFollower:
    def __init__(
        self,
        new_fold: Callable[[], HalfFold],
        worker: Worker,
        run: Callable[[Coroutine[Any, Any, None]], None],
        *,
        may_lead: bool,
    ) -> None:
        """`may_lead`: whether this node can get the role while it runs; else nothing is read before it is needed."""
        self._new_fold = new_fold
        self._worker = worker
        self._run = run
        self._follows = may_lead
        self._may_lead = may_lead
        self._fold: HalfFold | None = None
        self._reading = asyncio.Lock()
        self._busy = False

    def ticked(self, _event: Tick) -> None:
        fold = self._fold
        is_behind = fold is None or fold.is_behind or fold.is_outdated
        if self._follows and not self._busy and is_behind:
            self._busy = True
            self._run(self._follow())

    async def _follow(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            more = True
            while more and self._follows:
                began = loop.time()
                async with self._reading:
                    if not self._follows:
                        return
                    if self._fold is None or self._fold.is_outdated:
                        self._fold = self._new_fold()
                    more = await self._worker(self._fold.read_on, _COUNT)
                await asyncio.sleep(_REST * (loop.time() - began))
        finally:
            self._busy = False

    async def take(self) -> HalfFold:
        """Hand the state to the role that begins; from now on only it reads. `give_back` when it ends."""
        self._follows = False
        async with self._reading:
            fold, self._fold = self._fold, None
            return fold if fold is not None and not fold.is_outdated else self._new_fold()

    def stop(self) -> None:
        """Stop for good."""
        self._follows = self._may_lead = False

    def give_back(self) -> None:
        """This node does not have the role (any more): its state may not match the log that it goes on with."""
        self._follows = self._may_lead
