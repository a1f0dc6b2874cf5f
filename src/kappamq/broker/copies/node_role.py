"""The role of this node in its group: registered with name servers, and carried out by beginning and ending the role that may write.

A role begins and ends with awaits, decisions come at any time: one task brings the one to what the other last said.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from kappamq.errors import NotMaster

log = logging.getLogger(__name__)

_AGAIN_S = 1.0


class NodeRole:
    def __init__(self, slave_id: int = 0, version: int = 0) -> None:
        """`slave_id`: of this node while it is not the master; 0: it always is."""
        self._slave_id = slave_id
        self._decided = (slave_id == 0, version)  # whether this node is to lead, and since which term that is so
        self._done = self._decided
        self._leads = slave_id == 0
        self._changed = asyncio.Event()

    # -- what name servers are told ----------------------------------------------------------------------------------------

    @property
    def broker_id(self) -> int:
        return 0 if self.is_master else self._slave_id

    @property
    def version(self) -> int:
        return self._decided[1]

    @property
    def is_master(self) -> bool:
        """Decided to be, and ready for it."""
        return self._leads and self._done == self._decided

    @property
    def is_held(self) -> bool:
        """Something of the role that may write is there, and ends before anything else if this node is not to have it any more."""
        return self._leads

    # -- what is decided ---------------------------------------------------------------------------------------------------

    def lead(self, version: int) -> None:
        self._decide(True, version)

    def follow(self, version: int) -> None:
        self._decide(False, version)

    def _decide(self, leads: bool, version: int) -> None:
        self._decided = (leads, version)
        self._changed.set()

    async def run(
        self,
        begin: Callable[[Callable[[], bool]], Awaitable[None]],
        end: Callable[[], Awaitable[None]],
        told: Callable[[], None],
    ) -> None:
        """Begin and end the role as decided, for ever. A decision that has been taken back and taken again meanwhile is another one: the
        role ends in between. `begin` gets a function that says whether the decision still holds, and raises NotMaster if not. `told`:
        after each change, so that name servers hear of it."""
        while True:
            self._changed.clear()
            while self._done != self._decided:
                decided = self._decided
                try:
                    if self._leads:
                        await end()
                        self._leads = False  # not before: what has failed is tried again
                    if decided[0] and decided == self._decided:
                        await begin(lambda decided=decided: decided == self._decided)  # type: ignore[misc]
                        self._leads = True
                    self._done = decided
                    told()
                except NotMaster:
                    continue  # another decision came while the role began
                except Exception:
                    self._leads = True  # or a part of it, which has to end
                    log.exception("could not change the role of this node, retrying")
                    await asyncio.sleep(_AGAIN_S)
            await self._changed.wait()
